"""A process in which TensorFlow is imported already, and which forks itself into the ranks of a job: see conftest.py.

It reads requests from its standard input, each a line of JSON, and answers each with two lines: the ranks' process ids,
and, when all of them have ended, what the launcher's exit code would be.
"""

import faulthandler
import json
import os
import signal
import sys
import time
import warnings

import _ranks

# How long ranks may take to end by themselves after one of them has failed.
GRACE = 5


def load():
    """Import what bodies of TensorFlow need, and what TensorFlow itself would only import when it is used."""
    import numpy  # noqa: F401
    import pytest  # noqa: F401
    import tensorflow as tf

    try:
        tf.keras.layers.Dense  # noqa: B018
        tf.compat.v1.train.MonitoredTrainingSession  # noqa: B018
    except (AttributeError, ImportError):
        pass  # the test that needs it says so


def become_rank(request, rank):
    """In the forked child: everything that a process started by the launcher would find."""
    die_with_parent()
    directory = request["directory"]
    for descriptor, name in ((0, os.devnull), (1, "stdout"), (2, "stderr")):
        flags = os.O_RDONLY if descriptor == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND
        opened = os.open(os.path.join(directory, name), flags, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w", 1), open(2, "w", 1)
    faulthandler.enable()
    for name, value in request["env"].items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    number, size = str(rank), str(request["size"])
    os.environ.update(RANK=number, WORLD_SIZE=size, LOCAL_RANK=number, LOCAL_WORLD_SIZE=size)
    os.environ["FOLDCAST_JOB"] = request["job"]
    bind(rank, request["size"])
    sys.argv = ["_ranks.py", *request["program"]]


def bind(rank, size):
    """To its share of the cores, as the launcher does."""
    cores = sorted(os.sched_getaffinity(0))
    first, end = rank * len(cores) // size, (rank + 1) * len(cores) // size
    os.sched_setaffinity(0, cores[first:end] or [cores[rank % len(cores)]])


def die_with_parent():
    import ctypes

    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def fork_all(request):
    """Fork the ranks; in each of them never returns."""
    pids = []
    for rank in range(request["size"]):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the threads that TensorFlow has by now only wait
            pid = os.fork()
        if pid == 0:
            become_rank(request, rank)
            _ranks.main()
            sys.exit()  # in order, with all that is to be done then
        pids.append(pid)
    return pids


def wait_for_all(pids, keep_going):
    """How the rank ended that failed first, as a shell says it, or 0. The others are ended then, unless they are to go on.

    None is reaped before all have ended: until then the others can see how it ended.
    """
    first, end = 0, float("inf")
    left = list(pids)
    while left:
        for pid in list(left):
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            if ended is None:
                continue
            left.remove(pid)
            code = ended.si_status + (0 if ended.si_code == os.CLD_EXITED else 128)
            if code and not first:
                first = code
                end = end if keep_going else time.monotonic() + GRACE
        if time.monotonic() > end:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    for pid in pids:
        os.waitpid(pid, 0)
    return first


def main():
    die_with_parent()
    load()
    for line in sys.stdin:
        request = json.loads(line)
        pids = fork_all(request)
        print(json.dumps(pids), flush=True)
        print(json.dumps(wait_for_all(pids, request["keep_going"])), flush=True)


if __name__ == "__main__":
    main()
