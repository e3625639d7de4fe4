"""Ranks that are late, stand still or never come: who waits says for whom, burns nothing, and gives up at its deadline."""

import os
import re
import resource
import signal
import sys
import time

import numpy as np


def caught(call):
    import foldcast

    try:
        call()
    except foldcast.FoldcastError as error:
        return [type(error).__name__, str(error)]
    return None


def one_stands_still(rank, size, how):
    import foldcast
    from _ranks import ready

    array = np.ones(100_000, np.float32)
    foldcast.allreduce(array)
    if rank == 2:
        ready("stands")
        if how == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        end = time.monotonic() + 60
        while time.monotonic() < end and not os.path.exists(f"{os.environ['FOLDCAST_TEST_DIRECTORY']}/go"):
            pass
        return None
    found = caught(lambda: foldcast.allreduce(array, timeout=1.2))
    ready("told")
    return found


def test_nccl_1324_and_vllm_ascend_382_who_stands_still_is_named_by_all_that_wait(ranks):
    """The first warning comes early, the next ones each after twice the time."""
    for how in ("loops", "stopped"):
        with ranks.start(4, one_stands_still, how, env={"FOLDCAST_WARN_AFTER": "0.2"}) as job:
            for rank in (0, 1, 3):
                job.wait_ready(rank, "told")
            (job._directory / "go").touch()
            if how == "stopped":
                job.kill(2, signal.SIGCONT)
            job.finish()
        kinds = set()
        for rank in (0, 1, 3):
            kind, text = job.results[rank]
            kinds.add(kind)
            # Who is told by another one's deadline before its own is told by whom, too.
            named = "waited for rank 2 to" if kind == "DeadlineError" else "reached its deadline waiting for rank 2"
            assert kind in ("DeadlineError", "GroupAbortedError") and named in text, text
            pattern = rf"rank {rank}: allreduce.*: waiting since (\d+\.\d) s for rank 2 to (\w+ )+"
            waited = [float(found[1]) for found in re.finditer(pattern, job.stderr)]
            assert len(waited) >= 2 and all(b >= 2 * a - 0.11 for a, b in zip(waited, waited[1:])), job.stderr
        assert "DeadlineError" in kinds


def one_pauses(rank, size):
    import foldcast
    from _ranks import ready

    group = foldcast.new_group(range(size), "joined late")
    foldcast.barrier()
    ready("up")
    # Rank 0 is the first member: the others ask it for the group's memory.
    for number in range(200):
        assert group.allreduce(np.full(50_000, number, np.float32))[-1] == size * number
        time.sleep(0.002)
    return True


def test_a_rank_that_is_stopped_for_a_while_is_not_dead(ranks):
    with ranks.start(3, one_pauses) as job:
        for rank in range(3):
            job.wait_ready(rank, "up")
        for rank in range(3):
            job.kill(rank, signal.SIGSTOP)
            time.sleep(0.3)
            job.kill(rank, signal.SIGCONT)
        job.finish()
        assert all(job.results)


def waits(rank, size):
    import foldcast

    array = np.ones(100_000, np.float32)
    foldcast.allreduce_async(array).wait()
    shares = []
    for way in ("blocking", "submitted", "no call"):
        foldcast.barrier()
        if rank == 1:
            time.sleep(1)
        begin, used = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
        if way == "blocking":
            foldcast.allreduce(array)
        elif way == "submitted":
            foldcast.allreduce_async(array, name="x").wait()
        elif rank == 0:
            time.sleep(1)
        now = resource.getrusage(resource.RUSAGE_SELF)
        cpu = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
        shares.append(100 * cpu / (time.monotonic() - begin))
    return shares


def test_ompi_6433_and_mpi4py_419_waiting_burns_no_core(ranks):
    """The whole process: the thread that calls, and those of the library."""
    shares = ranks(2, waits).results[0]
    assert all(share < 40 for share in shares), shares


def comes_late(rank, size):
    import foldcast

    if rank == 1:
        time.sleep(1)
    return foldcast.allreduce([1]).tolist()


def never_comes(rank, size):
    import foldcast
    from _ranks import ready

    if rank == 1:
        time.sleep(60)
    found = caught(lambda: foldcast.init(timeout=1))
    ready("told")
    return found


def test_tensorflow_35878_a_rank_that_comes_late_or_never(ranks):
    assert ranks(2, comes_late).results == [[2], [2]]
    with ranks.start(2, never_comes, launcher=["--keep-going"]) as job:
        job.wait_ready(0, "told")
        job.kill(1)
        job.finish(expect=128 + signal.SIGKILL)
        kind, text = job.results[0]
        assert kind == "DeadlineError" and "waited for rank 1 to join job" in text, text


def never_born(rank, size, how):
    import foldcast

    if rank == 1:
        time.sleep(0.2)
        if how == "raises":
            raise RuntimeError("before init")
        if how == "exits":
            sys.exit(3)
        os._exit(0)
    return caught(foldcast.init)


def test_mpich_6124_a_rank_that_ends_before_init(ranks):
    for how, status in (("raises", 1), ("exits", 3), ("leaves", 0)):
        job = ranks(3, never_born, how, launcher=["--keep-going"], expect=status)
        for rank in (0, 2):
            kind, text = job.results[rank]
            assert kind == "RankDiedError" and f"rank 1 exited with status {status}" in text, text


def fails_beside_a_sleeper(rank, size):
    import foldcast

    foldcast.barrier()
    if rank == 1:
        raise RuntimeError("on purpose")
    if rank == 2:
        time.sleep(1000)
    foldcast.allreduce([1.0])


def test_pytorch_76287_an_exception_ends_the_job_and_is_told_last(ranks):
    job = ranks(3, fails_beside_a_sleeper, expect=1)
    lines = job.stderr.strip().splitlines()
    assert "[1] RuntimeError: on purpose" in lines, job.stderr
    assert lines[-1].startswith("foldcast run: rank 1 failed first: exited with status 1"), job.stderr
