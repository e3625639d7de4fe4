"""Ranks that are forked from this process, in which the imports are done already: hundreds of jobs a minute."""

import atexit
import ctypes
import json
import os
import random
import select
import signal
import threading
import time

import foldcast
import numpy as np
from cases import Told

STATUS = 7
WATCHDOG = 60
# From this version on the kernel tells how a process ended after somebody has reaped it.
TELLS_AFTER_REAPING = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2]) >= (6, 15)


class Raised(Exception):
    """What the victim does not catch."""


class Numpy:
    """Calls as scripts make them on arrays."""

    name = "numpy"
    ways = ("blocking", "submitted", "idle")
    errors = (foldcast.FoldcastError,)

    def __init__(self, case, size):
        self.size = size
        self.way = case.way
        self.array = np.ones(case.bytes // 4, np.float32)
        self.out = np.empty_like(self.array)

    def call(self, number):
        if self.way == "submitted":
            # Every other round has names.
            names = (f"{number} a", f"{number} b") if number % 2 else (None, None)
            handles = [foldcast.allreduce_async(self.array, name=name) for name in names]
            result = [handle.wait() for handle in handles][0]
        else:
            result = foldcast.allreduce(self.array, out=self.out)
        assert result[0] == result[-1] == self.size

    @staticmethod
    def kind(error):
        return type(error).__name__


class TensorFlow:
    """Eager calls of the op."""

    name = "tensorflow"
    ways = ("blocking", "idle")
    errors = ()

    def __init__(self, case, size):
        import tensorflow as tf

        self.size = size
        self.tensor = tf.ones([case.bytes // 4], tf.float32)

    def call(self, number):
        import foldcast.tensorflow

        result = foldcast.tensorflow.allreduce(self.tensor, "sum")
        assert float(result[0]) == float(result[-1]) == self.size

    @classmethod
    def load(cls):
        import foldcast.tensorflow
        import tensorflow as tf

        assert foldcast.tensorflow.library_path()
        cls.errors = (tf.errors.AbortedError, tf.errors.FailedPreconditionError)

    @staticmethod
    def kind(error):
        # A class of TensorFlow may stand for either.
        return "GroupAbortedError" if "the group's epoch is over" in str(error) else "RankDiedError"


def rank_body(case, rank, face, report, job):
    """One rank, from the fork to its end."""
    os.environ.update(FOLDCAST_RANK=str(rank), FOLDCAST_WORLD_SIZE=str(case.ranks), FOLDCAST_JOB=job)
    dying = rank == case.victim
    foldcast.init(timeout=WATCHDOG)
    caller = face(case, case.ranks)
    caller.call(0)
    os.write(report, b"ready\n")
    die_at = time.monotonic() + case.delay
    if dying and case.how == "segv":
        threading.Timer(case.delay, ctypes.string_at, [8]).start()
    elif dying and case.how == "exit":
        threading.Timer(case.delay, os._exit, [STATUS]).start()
    rests = random.Random(f"{job} {rank}")
    number = 0
    while True:
        if case.way == "idle":
            time.sleep(rests.uniform(0, 0.06))
        if dying and case.how == "exception" and time.monotonic() >= die_at:
            os.write(report, f"raised {time.monotonic_ns()}\n".encode())
            raise Raised
        number += 1
        called = time.monotonic_ns()
        try:
            caller.call(number)
        except face.errors as error:
            at = time.monotonic_ns()
            return [at, called, face.kind(error), str(error), next_error(caller, face, number)]


def next_error(caller, face, number):
    try:
        caller.call(number + 1)
    except face.errors as error:
        return face.kind(error)
    return "no error"


def rank_process(case, rank, face, report, job):
    """The forked child's whole life; never returns."""
    status = 3
    try:
        said = rank_body(case, rank, face, report, job)
        os.write(report, (json.dumps(said) + "\n").encode())
        status = 0
        # Half of them leave in order, half at once.
        if rank % 2:
            foldcast.shutdown()
    except Raised:
        # As the interpreter ends after an exception that nobody caught.
        status = 1
        atexit._run_exitfuncs()
    except BaseException as error:
        os.write(report, f"failed {type(error).__name__}: {error}\n".replace("\n", " ").encode() + b"\n")
    finally:
        os._exit(status)


class Rank:
    """The driver's end of a rank."""

    def __init__(self, case, rank, face, job, others):
        self.rank = rank
        self.lines, self.partial = [], b""
        self.pipe, report = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            for other in others:
                other.close()
            os.close(self.pipe)
            rank_process(case, rank, face, report, job)
        os.close(report)
        self.life = os.pidfd_open(self.pid)
        self.reaped = False

    def read(self):
        """Take what has come; False at the end."""
        data = os.read(self.pipe, 65536)
        *whole, self.partial = (self.partial + data).split(b"\n")
        self.lines.extend(line.decode() for line in whole)
        return bool(data)

    def reap(self):
        if not self.reaped:
            os.waitpid(self.pid, 0)
            self.reaped = True

    def close(self):
        os.close(self.pipe)
        os.close(self.life)


def run(case, face, job):
    """Play a case. When the victim died (ns), and what the survivors said; or what went wrong, as a string."""
    ranks = []
    for rank in range(case.ranks):
        ranks.append(Rank(case, rank, face, job, ranks))
    try:
        return watch(case, ranks, random.Random(job))
    finally:
        for rank in ranks:
            if not rank.reaped:
                signal.pidfd_send_signal(rank.life, signal.SIGKILL)
                rank.reap()
            rank.close()


def watch(case, ranks, chosen):
    victim = ranks[case.victim]
    reap_at_once = TELLS_AFTER_REAPING and chosen.random() < 0.5
    poll = select.poll()
    for rank in ranks:
        poll.register(rank.pipe, select.POLLIN)
    poll.register(victim.life, select.POLLIN)
    by_pipe = {rank.pipe: rank for rank in ranks}
    died = kill_at = None
    deadline = time.monotonic() + WATCHDOG
    while by_pipe or died is None:
        now = time.monotonic()
        if now > deadline:
            return f"nothing more came: {[rank.lines for rank in ranks]}"
        if kill_at is None and all(rank.lines for rank in ranks):
            kill_at = now + case.delay if case.how == "kill" else float("inf")
        if kill_at is not None and kill_at <= now:
            kill_at = float("inf")
            os.kill(victim.pid, signal.SIGKILL)
        wait = min(deadline, kill_at or deadline) - now
        for fd, _ in poll.poll(max(wait, 0) * 1000 + 1 if wait > 0.002 else 0):
            if fd == victim.life:
                died = time.monotonic_ns()
                poll.unregister(fd)
                if reap_at_once:
                    victim.reap()
            elif not by_pipe[fd].read():
                poll.unregister(fd)
                del by_pipe[fd]
    return outcome(case, ranks, died)


def outcome(case, ranks, died):
    told = []
    for rank in ranks:
        for line in rank.lines:
            if line.startswith("failed"):
                return f"rank {rank.rank} {line}"
            if line.startswith("raised"):
                # From here on it can be known, before the process is gone.
                died = int(line.split()[1])
            elif line.startswith("["):
                told.append(Told(rank.rank, *json.loads(line)))
    return died, told
