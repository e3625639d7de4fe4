"""Beginning and end: init, shutdown, exits, forks, and what is left behind."""

import os
import pathlib
import subprocess
import sys
import threading
import time

import numpy as np


def implicit_init(rank, size):
    import foldcast

    assert not foldcast.is_initialized()
    assert foldcast.allreduce([1]).tolist() == [size]
    assert foldcast.is_initialized()
    foldcast.init()
    foldcast.init(timeout=1)
    assert (foldcast.rank(), foldcast.size()) == (rank, size)
    assert (foldcast.local_rank(), foldcast.local_size()) == (rank, size)


def init_refuses(rank, size):
    import foldcast

    for wrong in (0, -1, float("nan"), "soon"):
        try:
            foldcast.init(wrong)
        except foldcast.InvalidArgumentError as error:
            assert error.field == "timeout"
        else:
            raise AssertionError(wrong)
    foldcast.shutdown()  # nothing to do yet
    foldcast.abort()
    assert not foldcast.is_initialized()
    foldcast.init(30.5)
    assert foldcast.allreduce([1]).tolist() == [size]


def after_shutdown(rank, size):
    import foldcast

    group = foldcast.new_group(range(size))
    group.barrier()
    foldcast.shutdown()
    foldcast.shutdown()
    assert not foldcast.is_initialized()
    for call in (
        lambda: foldcast.allreduce([1]),
        lambda: foldcast.allreduce_async([1]),
        foldcast.barrier,
        group.barrier,
        lambda: group.allreduce([1]),
    ):
        try:
            call()
        except foldcast.ClosedError:
            pass
        else:
            raise AssertionError("not closed")
    foldcast.abort()


def shutdown_ends_pending_calls(rank, size):
    import foldcast

    foldcast.barrier()
    if rank == 0:
        handle = foldcast.allreduce_async([1])
        foldcast.shutdown()
        try:
            handle.wait()
        except foldcast.ClosedError:
            return
        raise AssertionError("the others never called")


def test_implicit_init(ranks):
    ranks(3, implicit_init)


def test_init_refuses(ranks):
    ranks(2, init_refuses)


def test_after_shutdown(ranks):
    ranks(2, after_shutdown)


def test_shutdown_ends_pending_calls(ranks):
    ranks(2, shutdown_ends_pending_calls)


def ends(rank, size, how):
    import foldcast

    foldcast.allreduce(np.ones(1000))
    if how == "pending":
        foldcast.barrier()
        for number in range(3):
            foldcast.allreduce_async(np.ones(100_000), name=f"{rank} {number}")
    elif how == "staggered":
        time.sleep(0.3 * rank)
    elif how.startswith("daemon"):
        if rank:
            time.sleep(1)  # so that the thread of rank 0 waits until its own interpreter ends
        elif how == "daemon thread":
            threading.Thread(target=lambda: foldcast.allreduce([1], name="alone"), daemon=True).start()
        else:
            handle = foldcast.allreduce_async([1], name="alone")
            threading.Thread(target=handle.wait, daemon=True).start()
        time.sleep(0.2)
    elif how == "atexit":
        import atexit

        # Handlers run in the reverse of the order of registration, so this one still finds everything open.
        atexit.register(lambda: foldcast.allreduce([1]))


def test_exit_is_quiet_and_clean(ranks):
    for how in ["plain", "pending", "staggered", "daemon thread", "daemon handle", "atexit"]:
        job = ranks(3, ends, how)
        assert job.stderr == "", (how, job.stderr)
        assert job.stdout == "", (how, job.stdout)


def exits_with(rank, size, how):
    import foldcast

    foldcast.barrier()
    if rank == 1:
        if how == "raise":
            raise RuntimeError("on purpose")
        sys.exit(int(how))


def test_exit_codes(ranks):
    assert "on purpose" in ranks(2, exits_with, "raise", expect=1).stderr
    ranks(2, exits_with, "7", expect=7)


def forks(rank, size):
    import foldcast

    array = np.ones(3)
    foldcast.allreduce(array)
    group = foldcast.new_group(range(size))
    handle = foldcast.allreduce_async(array)
    handle.wait()
    for leave in (os._exit, sys.exit):
        child = os.fork()
        if child == 0:
            for call in (
                lambda: foldcast.allreduce(array),
                lambda: foldcast.allreduce_async(array),
                lambda: group.barrier(timeout=5),
                lambda: foldcast.init(),
                lambda: foldcast.rank(),
                lambda: foldcast.size(),
                lambda: handle.wait(timeout=5),
                lambda: handle.done(),
            ):
                try:
                    call()
                except foldcast.ForkedProcessError as error:
                    if str(os.getpid()) in str(error) and str(os.getppid()) in str(error):
                        continue
                    print(error, file=sys.stderr)
                os._exit(3)
            if foldcast.is_initialized():
                os._exit(4)
            leave(0)
        assert os.waitpid(child, 0)[1] == 0
        # The child's end means nothing to the others.
        assert foldcast.allreduce(array).tolist() == [size] * 3


def test_horovod_1102_fork(ranks):
    job = ranks(3, forks)
    assert job.stderr == "", job.stderr


def worked(number):
    """What a worker that loads data does: arrays, and no call."""
    return float(np.full(1000, number).sum())


def pools(rank, size):
    import multiprocessing

    import foldcast

    array = np.ones(50_000, np.float32)
    foldcast.allreduce(array)
    for way in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(way).Pool(2) as pool:
            pending = pool.map_async(worked, range(20))
            # Calls while workers start, work and end, until they are done on all ranks.
            while foldcast.allreduce([int(pending.ready())])[0] < size:
                assert foldcast.allreduce(array)[-1] == size
                assert foldcast.allreduce_async(array, name="x").wait()[-1] == size
            assert pending.get() == [1000.0 * number for number in range(20)]
        foldcast.barrier()


def test_pytorch_13787_pools_of_workers_that_do_not_call(ranks):
    job = ranks(2, pools)
    assert job.stderr == "", job.stderr


ALONE = """
import foldcast, numpy as np
assert (foldcast.rank(), foldcast.size()) == (0, 1)
a = np.arange(5.)
b = foldcast.allreduce(a)
assert b is not a and (a == b).all()
assert foldcast.allreduce_async(a, out=a).wait() is a
foldcast.barrier()
"""


def alone(code, **env):
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("RANK", "WORLD", "LOCAL_"))}
    variables.update(env)
    return subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, timeout=120)


def test_a_world_of_one_needs_no_launcher():
    run = alone(ALONE)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_an_exit_without_any_use_is_quiet():
    run = alone("import foldcast; print(foldcast.is_initialized())")
    assert (run.returncode, run.stdout, run.stderr) == (0, "False\n", "")


def test_the_log_level_is_checked():
    run = alone("import foldcast; foldcast.init()", FOLDCAST_LOG="loud")
    assert run.returncode == 1 and "FOLDCAST_LOG" in run.stderr and "off, error, warn" in run.stderr, run.stderr
    assert alone(ALONE, FOLDCAST_LOG="debug").returncode == 0


def places():
    """Where something could be left: names in file systems."""
    found = set()
    for directory in ("/dev/shm", "/dev/mqueue", "/tmp", "/var/tmp", "/run"):
        if os.path.isdir(directory):
            found.update(str(path) for path in pathlib.Path(directory).iterdir())
    return {path for path in found if "foldcast" in path.lower() or path.startswith(("/dev/shm", "/dev/mqueue"))}


def dies(rank, size):
    import foldcast

    foldcast.allreduce(np.ones(1 << 18))
    foldcast.barrier()
    if rank == 1:
        os.abort()
    foldcast.barrier()


def test_ompi_7220_kill_leaves_nothing(ranks):
    """`make leaks` does so hundreds of times, at random moments."""
    before = places()
    ranks(3, implicit_init)
    ranks(3, dies, expect=None)
    left = {path for path in places() - before if "foldcast-test-" not in path}
    assert not left, left
