"""Ranks that die: whoever depended on them is told who and how."""

import os
import signal
import time

import numpy as np

SIZE = 4


def caught(call):
    """What a call raised, as the test can compare it."""
    import foldcast

    try:
        call()
    except foldcast.FoldcastError as error:
        return {"class": type(error).__name__, "text": str(error), "rank": error.rank, "elapsed": error.elapsed}
    return None


def victim_is_idle(rank, size, count):
    import foldcast
    from _ranks import ready

    array = np.ones(count, np.float32)
    foldcast.allreduce(array)
    if rank == 2:
        ready("idle")
        time.sleep(1000)
    ready("calls")
    return caught(lambda: foldcast.allreduce(array))


def victim_is_in_a_call(rank, size, count):
    import foldcast
    from _ranks import ready

    array = np.ones(count, np.float32)
    foldcast.allreduce(array)
    if rank == 3:  # the others wait for this one, and one of them dies in its wait
        ready("late")
        while not os.path.exists(os.path.join(os.environ["FOLDCAST_TEST_DIRECTORY"], "go")):
            time.sleep(0.005)
    ready("calls")
    # What the victim had given before it died may be all that this call needs of it: then the next one fails.
    return caught(lambda: foldcast.allreduce(array)) or caught(lambda: foldcast.allreduce(array))


def check_told(found, rank):
    assert found["class"] == "RankDiedError", found
    assert found["rank"] == 2 and "rank 2 was killed by signal 9 (SIGKILL)" in found["text"], found
    assert f"rank {rank}: allreduce" in found["text"] and found["elapsed"] >= 0, found


def idle(ranks, count):
    with ranks.start(SIZE, victim_is_idle, count, launcher=["--keep-going"]) as job:
        job.wait_ready(2, "idle")
        for rank in (0, 1, 3):
            job.wait_ready(rank, "calls")
        time.sleep(0.2)
        job.kill(2)
        job.finish(expect=128 + signal.SIGKILL)
        for rank in (0, 1, 3):
            check_told(job.results[rank], rank)


def in_call(ranks, count):
    with ranks.start(SIZE, victim_is_in_a_call, count, launcher=["--keep-going"]) as job:
        for rank in (0, 1, 2):
            job.wait_ready(rank, "calls")
        time.sleep(0.2)
        job.kill(2)
        time.sleep(0.2)
        (job._directory / "go").touch()
        job.finish(expect=128 + signal.SIGKILL)
        for rank in (0, 1, 3):
            # Who calls only after another one was told finds the group ended, for the same reason.
            found = job.results[rank]
            assert found["class"] in ("RankDiedError", "GroupAbortedError") and found["rank"] == 2, found
            assert "rank 2 was killed by signal 9 (SIGKILL)" in found["text"], found
        assert any(job.results[rank]["class"] == "RankDiedError" for rank in (0, 1, 3)), job.results


def test_idle_small(ranks):
    idle(ranks, 2)


def test_idle_large(ranks):
    idle(ranks, 1 << 20)


def test_in_a_call_small(ranks):
    in_call(ranks, 2)


def test_in_a_call_large(ranks):
    in_call(ranks, 1 << 20)


def hammered(rank, size, count):
    import foldcast
    from _ranks import ready

    array, out = np.ones(count, np.float32), np.empty(count, np.float32)
    foldcast.allreduce(array)
    ready("calls")
    while True:
        found = caught(lambda: foldcast.allreduce(array, out=out))
        if found:
            return found
        assert (out == size).all()


def test_killed_at_any_moment(ranks):
    for count, pause in [(1, 0.05), (5_000, 0.11), (100_000, 0.2), (1 << 20, 0.3)]:
        with ranks.start(3, hammered, count, launcher=["--keep-going"]) as job:
            for rank in range(3):
                job.wait_ready(rank, "calls")
            time.sleep(pause)
            job.kill(2)
            job.finish(expect=128 + signal.SIGKILL)
            for rank in (0, 1):
                check_told(job.results[rank], rank)


def survivors_go_on(rank, size):
    import foldcast

    foldcast.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    first = caught(lambda: foldcast.allreduce([1.0]))
    again = caught(lambda: foldcast.allreduce([1.0]))
    rest = foldcast.new_group([0, 2, 3])
    return [first, again, rest.allreduce([rank]).tolist()]


def test_survivors_go_on(ranks):
    job = ranks(4, survivors_go_on, launcher=["--keep-going"], expect=128 + signal.SIGKILL)
    for rank in (0, 2, 3):
        first, again, total = job.results[rank]
        assert first["class"] in ("RankDiedError", "GroupAbortedError") and first["rank"] == 1, first
        assert again["class"] == "GroupAbortedError" and "rank 1 was killed by signal 9" in again["text"], again
        assert total == [5]


def left_early(rank, size, how):
    import sys

    import foldcast

    foldcast.allreduce([1.0])
    if rank == 1:
        if how == "exit":
            sys.exit(0)
        elif how == "shutdown":
            foldcast.shutdown()
            return None
        os._exit(0)
    return caught(lambda: foldcast.allreduce([1.0]))


def test_a_rank_that_left_is_named(ranks):
    for how, words in [("exit", "left in order"), ("shutdown", "left in order"), ("_exit", "exited with status 0")]:
        job = ranks(3, left_early, how)
        for rank in (0, 2):
            found = job.results[rank]
            assert found["class"] in ("RankDiedError", "GroupAbortedError") and found["rank"] == 1, (how, found)
            assert f"rank 1 {words}" in found["text"], (how, found)


def left_after_its_part(rank, size):
    import foldcast

    handle = foldcast.allreduce_async(np.full(10_000, rank, np.float32))
    if rank:
        time.sleep(0.3)
    total = handle.wait()
    assert (total == sum(range(size))).all()
    foldcast.shutdown()


def test_a_rank_that_did_its_part_may_leave(ranks):
    ranks(3, left_after_its_part)
