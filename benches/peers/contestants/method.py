"""The method of ``foldcast bench`` for libraries that are called from Python: the same steps, the same lines."""

import os
import statistics
import sys
import time

import numpy as np


def parse(text):
    """The cases of ``bytes:dtype:op:mode,...``."""
    for case in text.split(","):
        size, dtype, op, mode = case.split(":")
        yield int(size), dtype, op, mode


def pattern(count, rank):
    """What a rank puts in: small whole numbers."""
    return np.arange(count) % 7 + rank


def is_right(result, ranks, op):
    """Whether this is what the ranks' patterns become."""
    first = np.arange(len(result)) % 7
    expected = ranks * first + ranks * (ranks - 1) // 2 if op == "sum" else first + ranks - 1
    return bool((np.asarray(result).astype(np.int64) == expected).all())


def run_delay():
    """How long this process's threads have waited on a run queue, in seconds."""
    total = 0
    for task in os.listdir("/proc/self/task"):
        try:
            with open("/proc/self/task/" + task + "/schedstat") as file:
                total += int(file.read().split()[1])
        except (OSError, IndexError):
            pass  # a thread that has just ended
    return total / 1e9


class Contestant:
    """A library. What is made for a case has ``call()``, ``rewrite()`` (the input, anew) and ``result()`` (an array)."""

    rank = 0
    size = 1

    def make(self, size, dtype, op, mode):
        """What is called for this case; None if the library cannot."""
        raise NotImplementedError

    def barrier(self):
        raise NotImplementedError

    def largest(self, value):
        """The largest of the ranks' numbers."""
        raise NotImplementedError


def measure_all(contestant):
    """Measures the cases of the command line and prints a line for each."""
    for case in parse(sys.argv[1]):
        size, dtype, op, mode = case
        made = contestant.make(size, dtype, op, mode)
        text = measure(contestant, made, op) if made else None
        if contestant.rank == 0:
            if text:
                print(f"{size} {dtype} {contestant.size} {text[0]:.3f} {op} {mode} {text[1]}", flush=True)
            else:
                print(f"# n/a {size}:{dtype}:{op}:{mode}", flush=True)
    sys.stdout.flush()


def measure(contestant, made, op):
    """Time in us, and the rest of the line."""
    case_ms, samples = float(os.environ.get("BENCH_CASE_MS", 400)), int(os.environ.get("BENCH_SAMPLES", 15))
    budget, dirty = case_ms / 1e3, "BENCH_DIRTY" in os.environ
    made.rewrite()
    contestant.barrier()
    first = contestant.largest(_calls(made, 1))
    wrong = contestant.largest(0.0 if is_right(made.result(), contestant.size, op) else 1.0)
    made.prepare()
    estimate = max(1e-7, contestant.largest(_calls(made, 1 if first > 0.05 else 3)))
    calls = max(1, min(2000 if dirty else 20000, int(budget / samples / estimate)))
    if estimate * calls * samples > 3 * budget:
        samples = min(samples, max(3, int(3 * budget / (estimate * calls))))
    batches = []
    for _ in range(samples):
        before = run_delay()
        contestant.barrier()
        seconds = contestant.largest(_dirty_calls(contestant, made, calls) if dirty else _calls(made, calls))
        batches.append((contestant.largest(run_delay() - before), seconds * 1e6))
    batches.sort()
    quiet = sorted(us for _, us in batches[: (samples + 2) // 3])
    every = [us for _, us in batches]
    verdict = "WRONG" if wrong else "ok"
    rest = f"{verdict} med={statistics.median(every):.3f} min={min(every):.3f} it={calls} s={samples}"
    return quiet[len(quiet) // 2], rest


def _calls(made, count):
    call = made.call
    start = time.perf_counter()
    for _ in range(count):
        call()
    made.wait()
    return (time.perf_counter() - start) / count


def _dirty_calls(contestant, made, count):
    total = 0.0
    for _ in range(count):
        made.rewrite()
        contestant.barrier()
        start = time.perf_counter()
        made.call()
        made.wait()
        total += time.perf_counter() - start
    return total / count


class Made:
    """The parts that most cases have in common."""

    def wait(self):
        """Returns when all calls have ended: for libraries whose calls return before."""

    def prepare(self):
        """After the check: makes repeated calls in place keep their numbers small."""
