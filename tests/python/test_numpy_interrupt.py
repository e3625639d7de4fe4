"""Ctrl-C, and other signals, in waits."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import numpy as np


def in_a_blocking_call(rank, size):
    import foldcast
    from _ranks import ready, report

    foldcast.barrier()
    if rank == 1:
        time.sleep(0.2)
        ready("up")
        while True:
            try:
                foldcast.allreduce(np.ones(3), timeout=60)
            except foldcast.GroupAbortedError as error:
                return [error.rank, str(error)]
    ready("up")
    try:
        foldcast.new_group([0, 1], "interrupted").allreduce([1.0])
    except KeyboardInterrupt as interrupt:
        report([type(interrupt.__cause__).__name__, str(interrupt.__cause__)])
    foldcast.abort()
    return None


def test_in_a_blocking_call(ranks):
    with ranks.start(2, in_a_blocking_call) as job:
        job.wait_ready(0, "up")
        job.wait_ready(1, "up")
        time.sleep(0.3)
        job.kill(0, signal.SIGINT)
        job.finish()
        kind, text = job.results[0]
        assert kind == "GroupAbortedError" and "rank 0 was interrupted" in text, text
        assert job.results[1][0] == 0, job.results[1]


def peers_of_the_interrupted(rank, size):
    import foldcast
    from _ranks import ready

    foldcast.barrier()
    if rank == 2:
        time.sleep(1000)
    ready("calls")
    try:
        foldcast.allreduce(np.ones(100_000))
    except KeyboardInterrupt:
        return "KeyboardInterrupt"
    except foldcast.GroupAbortedError as error:
        return str(error)


def test_peers_of_the_interrupted(ranks):
    with ranks.start(3, peers_of_the_interrupted, launcher=["--keep-going"]) as job:
        job.wait_ready(0, "calls")
        job.wait_ready(1, "calls")
        time.sleep(0.3)
        job.kill(0, signal.SIGINT)
        job.wait_ready(1, "calls")
        time.sleep(0.5)
        job.kill(2)
        job.finish(expect=None)
        assert job.results[0] == "KeyboardInterrupt"
        assert "a wait of rank 0 was interrupted" in job.results[1], job.results[1]


def in_a_wait_for_a_handle(rank, size):
    import foldcast
    from _ranks import ready

    foldcast.barrier()
    if rank == 1:
        while True:  # until the test says that the other one was interrupted
            time.sleep(0.01)
            import os

            if os.path.exists(os.path.join(os.environ["FOLDCAST_TEST_DIRECTORY"], "0.interrupted.ready")):
                return foldcast.allreduce([rank]).tolist()
    handle = foldcast.allreduce_async([rank])
    ready("waits")
    try:
        handle.wait()
    except KeyboardInterrupt:
        ready("interrupted")
    return handle.wait().tolist()


def test_in_a_wait_for_a_handle(ranks):
    with ranks.start(2, in_a_wait_for_a_handle) as job:
        job.wait_ready(0, "waits")
        time.sleep(0.3)
        job.kill(0, signal.SIGINT)
        job.finish()
        assert job.results == [[1], [1]]


def in_init(rank, size):
    import foldcast
    from _ranks import ready

    if rank == 1:
        time.sleep(1000)
    ready("meets")
    try:
        foldcast.init()
    except KeyboardInterrupt:
        return "KeyboardInterrupt"


def test_in_init(ranks):
    with ranks.start(2, in_init, launcher=["--keep-going"]) as job:
        job.wait_ready(0, "meets")
        time.sleep(0.5)
        job.kill(0, signal.SIGINT)
        time.sleep(0.5)
        job.kill(1)
        job.finish(expect=None)
        assert job.results[0] == "KeyboardInterrupt"


def a_handler_that_raises_nothing(rank, size):
    import foldcast

    fired = []
    signal.signal(signal.SIGALRM, lambda *_: fired.append(time.monotonic()))
    foldcast.barrier()
    if rank == 0:
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
        foldcast.allreduce(np.ones(3))
        ended = time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert sum(at < ended for at in fired) >= 3, "the handler runs while the call waits"
    else:
        time.sleep(1)
        foldcast.allreduce(np.ones(3))


def test_a_handler_that_raises_nothing(ranks):
    ranks(2, a_handler_that_raises_nothing)


SPAWNS = """
import multiprocessing, os, pathlib, sys, time

def rank(number, directory):
    os.environ.update(RANK=str(number), WORLD_SIZE="4")
    import foldcast
    foldcast.barrier()
    (pathlib.Path(directory) / str(os.getpid())).touch()
    if number == 3:
        time.sleep(1000)
    foldcast.allreduce([1.0])

if __name__ == "__main__":
    directory, way = sys.argv[1:]
    spawn = multiprocessing.get_context("spawn")
    ranks = [spawn.Process(target=rank, args=(each, directory), daemon=way == "daemons") for each in range(4)]
    for each in ranks:
        each.start()
    try:
        for each in ranks:
            each.join()
    except KeyboardInterrupt:
        if way == "one":
            ranks[3].terminate()
            for each in ranks:
                each.join()
        raise
"""


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_pytorch_36136_sigint_to_the_parent_of_spawned_ranks(tmp_path):
    """No launcher, and only the parent is told. ``daemons``: it ends all of them by SIGTERM, as ``multiprocessing`` does; nothing of
    ours keeps that off, also inside of a call. ``one``: it ends the one that they wait for, and the others end by the error.
    """
    program = tmp_path / "spawns.py"
    program.write_text(SPAWNS)
    for way in ("daemons", "one"):
        directory = tmp_path / way
        directory.mkdir()
        env = {**os.environ, "FOLDCAST_JOB": f"{os.getpid()}-{way}"}
        command = [sys.executable, str(program), str(directory), way]
        parent = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True, start_new_session=True)
        try:
            deadline = time.monotonic() + 60
            while len(list(pathlib.Path(directory).iterdir())) < 4:
                assert parent.poll() is None and time.monotonic() < deadline, "the ranks do not meet"
                time.sleep(0.01)
            time.sleep(0.3)
            parent.send_signal(signal.SIGINT)
            _, text = parent.communicate(timeout=60)
        finally:
            if parent.poll() is None:
                os.killpg(parent.pid, signal.SIGKILL)
        assert parent.returncode == -signal.SIGINT and "KeyboardInterrupt" in text, text
        told = re.findall(r"Error: rank (\d): allreduce .*rank 3 (?:died|was killed by signal 15)", text)
        assert sorted(set(told)) == (["0", "1", "2"] if way == "one" else []), text
        assert not any(alive(int(file.name)) for file in directory.iterdir())
