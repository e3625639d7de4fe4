"""Ctrl-C, and other signals, in waits."""

import signal
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
