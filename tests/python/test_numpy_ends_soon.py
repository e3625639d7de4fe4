"""abort(), shutdown(), dropping a group and the interpreter's exit return soon, whatever the other ranks do.

What is promised is a second. The times are printed; what is asserted is that nothing hangs.
"""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np

WATCHDOG = 20
PEERS = ["stopped", "dead", "spinning", "in a call", "idle"]


def become(peer):
    """Rank 1 and up: never returns."""
    import foldcast
    from _ranks import ready

    ready("there")
    if peer == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif peer == "dead":
        os.kill(os.getpid(), signal.SIGKILL)
    elif peer == "spinning":
        while True:
            pass
    elif peer == "in a call":
        try:
            foldcast.allreduce(np.ones(1 << 18), name="never")
        except foldcast.FoldcastError:
            pass
    time.sleep(1000)


def waits(call):
    """A call in a thread that ends by an error, and that thread once it is in it."""
    import foldcast

    entered = threading.Event()

    def run():
        entered.set()
        try:
            call()
        except foldcast.FoldcastError:
            pass

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    entered.wait()
    return thread


def ends(rank, size, what, peer):
    import foldcast
    from _ranks import ready, report

    array = np.ones(1 << 18)
    foldcast.allreduce(array)
    group = foldcast.new_group(range(size), name="g")
    group.allreduce([1])
    unmet = foldcast.new_group(range(size), name="unmet")
    foldcast.barrier()
    if rank:
        become(peer)
    threads, pending = [], []
    if peer != "dead":
        # Calls that no other rank makes: blocking, submitted, large, on groups that have met and on one that has not.
        threads = [waits(lambda: foldcast.allreduce(array)), waits(lambda: group.allreduce(array, name="a"))]
        pending = [
            foldcast.allreduce_async(array, name="b"),
            group.allreduce_async([1.0]),
            unmet.allreduce_async([1.0]),
        ]
    time.sleep(0.3)
    ready("begins")
    start = time.monotonic()
    if what == "abort":
        foldcast.abort()
    elif what == "group.abort":
        group.abort()
        unmet.abort()
    elif what == "shutdown":
        foldcast.shutdown()
    elif what == "del":
        del group, unmet, pending
    took = time.monotonic() - start
    if what in ("abort", "shutdown"):
        for thread in threads:
            thread.join(WATCHDOG)
            assert not thread.is_alive(), "the call goes on"
    report([took, time.monotonic() - start, time.monotonic()])


def gone(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def measure(ranks, what, peer, size=4):
    """Seconds that rank 0's call took, that its other threads' calls took to end, and that its exit took."""
    with ranks.start(size, ends, what, peer, launcher=["--keep-going"], timeout=60) as job:
        for rank in range(1, size):
            job.wait_ready(rank, "there")
        job.wait_ready(0, "begins")
        file = job._await("0.json")
        pid = job.pid(0)
        end = time.monotonic() + WATCHDOG
        while not gone(pid):
            assert time.monotonic() < end, f"{what}, others {peer}: the exit hangs"
            time.sleep(0.001)
        exited = time.monotonic()
        for rank in range(1, size):
            if not gone(job.pid(rank)):
                job.kill(rank)
        job.finish(expect=None)
        assert file.exists() and "Traceback" not in job.stderr, job.stderr
    took, threads, reported = job.results[0]
    assert took < WATCHDOG and threads < WATCHDOG, (what, peer, took, threads)
    return took, threads, exited - reported


def with_all_peers(ranks, what):
    worst = [0.0, 0.0, 0.0]
    for peer in PEERS:
        found = measure(ranks, what, peer)
        print(
            f"{what}, others {peer}: {found[0]:.4f} s, calls of other threads {found[1]:.4f} s, exit {found[2]:.3f} s"
        )
        worst = [max(pair) for pair in zip(worst, found)]
    print(f"{what}: at most {worst[0]:.4f} s, {worst[1]:.4f} s, {worst[2]:.3f} s")


def test_nccl_992_abort_while_others_are_in_a_call(ranks):
    with_all_peers(ranks, "abort")


def test_abort_of_a_group(ranks):
    with_all_peers(ranks, "group.abort")


def test_shutdown(ranks):
    with_all_peers(ranks, "shutdown")


def test_nccl_863_dropping_a_group_after_a_death(ranks):
    with_all_peers(ranks, "del")


def test_exit_with_calls_pending(ranks):
    with_all_peers(ranks, "exit")


def in_init(rank, size, what):
    """The others never come: a thread is in init() meanwhile."""
    import foldcast
    from _ranks import ready, report

    ready("there")
    if rank:
        os.kill(os.getpid(), signal.SIGSTOP)
    threading.Thread(target=lambda: foldcast.init(), daemon=True).start()
    time.sleep(0.3)
    ready("begins")
    start = time.monotonic()
    if what != "exit":
        getattr(foldcast, what)()
    report([time.monotonic() - start, 0, time.monotonic()])


def test_while_init_waits(ranks):
    for what in ("abort", "shutdown", "exit"):
        with ranks.start(2, in_init, what, launcher=["--keep-going"], timeout=60) as job:
            job.wait_ready(0, "begins")
            job._await("0.json")
            pid, end = job.pid(0), time.monotonic() + WATCHDOG
            while not gone(pid):
                assert time.monotonic() < end, f"{what} in init: the exit hangs"
                time.sleep(0.001)
            exited = time.monotonic()
            job.kill(1)
            job.finish(expect=None)
        took, _, reported = job.results[0]
        print(f"{what} while init waits: {took:.4f} s, exit {exited - reported:.3f} s")
        assert took < WATCHDOG


def test_pytorch_179291_exit_without_shutdown_is_quiet():
    code = "import foldcast, numpy; foldcast.init(); foldcast.allreduce(numpy.ones(3)); raise SystemExit(0)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def quiet(rank, size):
    import foldcast

    foldcast.init()
    foldcast.allreduce(np.ones(3))
    sys.exit(0)


def test_pytorch_179291_exit_of_several_without_shutdown_is_quiet(ranks):
    job = ranks(4, quiet)
    assert (job.stdout, job.stderr) == ("", "")
