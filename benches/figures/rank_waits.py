"""What two ranks do for the figures of waiting: `foldcast run -n 2 -- python rank_waits.py`.

Rank 1 is late and rank 0 waits for it; then both are in no call. Rank 0 prints what share of a core its process used meanwhile, all
its threads together: lists over the rounds.
"""

import json
import time

import foldcast
import numpy as np

ROUNDS = 3
# How late in s, and how often in a round.
LATE = ((0.001, 300), (0.01, 50), (0.1, 8), (2.0, 1))
IDLE_S = 2.0


def share(work):
    """The share of a core that this process uses while it does the work."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return (time.process_time() - cpu) / (time.perf_counter() - wall)


def compute(seconds):
    """Keeps a core busy, as a rank does that is late because it computes."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def late(seconds, times):
    """Rank 1 enters each call so much later; the share of rank 0."""
    x, y = np.array([1, 2], np.float32), np.empty(2, np.float32)

    def calls():
        for _ in range(times):
            if foldcast.rank() == 1:
                compute(seconds)
            foldcast.allreduce(x, out=y)

    foldcast.barrier()
    return share(calls)


def idle():
    """The share of a process that sleeps, so of the library's threads."""
    foldcast.barrier()
    used = share(lambda: time.sleep(IDLE_S))
    return float(foldcast.allreduce([used], "max")[0])


def main():
    x, y = np.array([1, 2], np.float32), np.empty(2, np.float32)
    foldcast.allreduce(x, out=y)
    shares = {f"late {seconds}": [] for seconds, _ in LATE}
    shares["no call"] = [idle() for _ in range(ROUNDS)]
    for _ in range(ROUNDS):
        for seconds, times in LATE:
            shares[f"late {seconds}"].append(late(seconds, times))
    # From here on there is a progress thread.
    foldcast.allreduce_async(x, out=y).wait()
    shares["progress thread"] = [idle() for _ in range(ROUNDS)]
    if foldcast.rank() == 0:
        print(json.dumps(shares), flush=True)


main()
