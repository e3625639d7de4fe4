"""Groups that go on after a death, by shrink()."""

import os
import signal
import sys
import time

import numpy as np


def refused(call, *words):
    """What a call raised: its class; its text has these words."""
    import foldcast

    try:
        call()
    except foldcast.FoldcastError as error:
        assert all(word in str(error) for word in words), error
        return error
    raise AssertionError("nothing was raised")


def death_by_death(rank, size):
    import foldcast

    assert foldcast.group("hccl_world_group").ended is None
    seconds = []
    for victim in range(size - 1, 0, -1):
        assert foldcast.allreduce([1]).tolist() == [victim + 1]
        start = time.monotonic()
        if rank == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        error = refused(lambda: foldcast.allreduce([1]), f"rank {victim} was killed by signal 9")
        assert isinstance(error, (foldcast.RankDiedError, foldcast.GroupAbortedError)) and error.rank == victim, error
        assert f"rank {victim} was killed" in foldcast.group("hccl_world_group").ended
        group = foldcast.shrink()
        assert foldcast.allreduce([rank]).tolist() == [sum(range(victim))]
        seconds.append(time.monotonic() - start)
        assert group.ended is None and group.ranks == tuple(range(victim)), group
        assert (group.name, group.size, group.rank) == ("hccl_world_group", victim, rank)
        assert (foldcast.size(), foldcast.rank()) == (size, rank), "the numbers of the world stay"
    return seconds


def test_horovod_2484_deaths_are_caught_and_the_rest_goes_on(ranks):
    """Also the first correct allreduce comes within a second of the death; printed, not asserted."""
    with ranks.start(5, death_by_death, launcher=["--keep-going"]) as job:
        job.finish(expect=128 + signal.SIGKILL)
    print("s from before the death to the next result:", [round(s, 4) for s in job.results[0]])
    assert len(job.results[0]) == 4 and "Traceback" not in job.stderr, job.stderr


def groups_and_names(rank, size):
    import foldcast
    from hccl.manage.api import get_group_rank_from_world_rank, get_rank_id, get_rank_size

    group = foldcast.new_group([0, 1, 3], name="g", timeout=50)
    if rank == 2:
        error = refused(lambda: foldcast.shrink("g"))
        assert isinstance(error, foldcast.NotInGroupError)
    else:
        assert group.allreduce([rank]).tolist() == [4]
    foldcast.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    world = foldcast.shrink(timeout=60)
    assert world.ranks == (0, 2, 3) and foldcast.allreduce([1]).tolist() == [3]
    place = [0, None, 1, 2][rank]
    assert (get_rank_size(), get_rank_id()) == (3, place) and get_group_rank_from_world_rank(3, world.name) == 2
    if rank != 2:
        # Each group is shrunk by itself; by name or by handle.
        fresh = foldcast.shrink("g") if rank else group.shrink()
        assert (fresh.ranks, fresh.name, fresh.timeout) == ((0, 3), "g", 50.0), fresh
        assert foldcast.allreduce([rank], group="g").tolist() == [3]
        assert isinstance(refused(lambda: group.allreduce([1])), (foldcast.RankDiedError, foldcast.GroupAbortedError))
        assert group.shrink().allreduce([rank], name="x").tolist() == [3], "the old handle leads to the new group"
        fresh.destroy()
        assert isinstance(refused(fresh.shrink), foldcast.ClosedError)
        again = foldcast.new_group([0, 3], name="g")
        assert again.allreduce([rank]).tolist() == [3]
    assert foldcast.broadcast([rank], root=1).tolist() == [2], "roots are ranks in the group"
    assert foldcast.allgather([rank]).tolist() == [0, 2, 3]
    foldcast.shutdown()
    assert isinstance(refused(world.shrink), foldcast.ClosedError)
    assert isinstance(refused(foldcast.shrink), foldcast.ClosedError)


def test_groups_and_names(ranks):
    ranks(4, groups_and_names, launcher=["--keep-going"], expect=128 + signal.SIGKILL)


def late_rank(rank, size):
    import foldcast

    foldcast.barrier()
    start = time.monotonic()
    if rank == 2:
        time.sleep(1)
    error = refused(lambda: foldcast.shrink(timeout=0.3), "rank 2", "shrink")
    assert isinstance(error, (foldcast.DeadlineError, foldcast.GroupAbortedError)) and error.rank == 2, error
    assert rank != 2 or isinstance(error, foldcast.GroupAbortedError)
    assert error.op == "shrink" and error.elapsed >= (0.29 if rank != 2 else 0), error.elapsed
    # Had the others tried again before, the late one would just have met them.
    time.sleep(max(0, start + 2 - time.monotonic()))
    assert foldcast.shrink().ranks == (0, 1, 2)
    assert foldcast.allreduce([1]).tolist() == [3]


def test_a_late_rank_is_named_on_all(ranks):
    ranks(3, late_rank)


def too_few(rank, size, least):
    import foldcast

    foldcast.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    refused(foldcast.barrier)
    rest = foldcast.shrink(timeout=30)
    if rest.size < least:
        sys.exit(f"rank {rank}: {rest.size} of at least {least} ranks are left: {foldcast.group(rest.name).ranks}")
    raise AssertionError(rest)


def test_horovod_3494_too_few_survivors_end_with_the_reason(ranks):
    job = ranks(2, too_few, 2, launcher=["--keep-going"], expect=128 + signal.SIGKILL)
    assert "rank 0: 1 of at least 2 ranks are left: (0,)" in job.stderr, job.stderr


def interrupted(rank, size):
    import foldcast
    from _ranks import ready

    foldcast.barrier()
    if rank == 1:
        time.sleep(1)
        error = refused(foldcast.shrink, "a wait of rank 0 was interrupted")
        assert isinstance(error, foldcast.GroupAbortedError) and error.rank == 0
    else:
        ready("waits")
        try:
            foldcast.shrink()
        except KeyboardInterrupt:
            time.sleep(1.5)
        else:
            raise AssertionError("not interrupted")
    assert foldcast.shrink().size == 2


def test_ctrl_c_ends_the_wait_on_all(ranks):
    with ranks.start(2, interrupted) as job:
        job.wait_ready(0, "waits")
        time.sleep(0.3)
        job.kill(0, signal.SIGINT)
        job.finish()


def holdings():
    time.sleep(0.2)  # the monitors may still have a request open
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    with open("/proc/self/maps") as maps:
        mapped = len(maps.readlines())
    return [len(os.listdir("/proc/self/fd")), mapped, int(status["Threads"]), int(status["VmRSS"].split()[0])]


def a_hundred(rank, size):
    import foldcast

    array = np.ones(100_000, np.float32)

    def epoch(number):
        assert (foldcast.allreduce(array, name="x") == size).all()
        foldcast.allreduce([1])
        if rank == number % size:
            foldcast.abort()
        foldcast.shrink()

    for number in range(20):
        epoch(number)
    before = holdings()
    for number in range(100):
        epoch(number)
    after = holdings()
    assert after[0] <= before[0] and after[2] <= before[2], (before, after)
    assert after[1] <= before[1] + 8 and after[3] <= before[3] + 4096, (before, after)
    return [before, after]


def test_a_hundred_epochs_leave_nothing_behind(ranks):
    for before, after in ranks(2, a_hundred).results:
        print("descriptors, mappings, threads, KiB:", before, after)
