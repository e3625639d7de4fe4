"""What two ranks do for the figures of small calls from Python: `foldcast run -n 2 -- python rank_calls.py [WAY...]`.

Allreduces of 8 bytes with `out`, back to back: blocking ones, submitted ones that are waited for at once, and submitted ones with 16 in
flight, a batch of each in turn. Rank 0 prints the time of a call in us, for each batch that of its slowest rank.
"""

import collections
import itertools
import json
import sys
import time

import foldcast
import numpy as np

BATCHES, CALLS, IN_FLIGHT = 31, 2000, 16


def batch(call):
    """The mean time of a call in us; what the loop itself takes is in it."""
    foldcast.barrier()
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    taken = (time.perf_counter() - start) / CALLS
    return float(foldcast.allreduce([taken], "max")[0]) * 1e6


def main():
    x, y = np.array([1, 2], np.float32), np.empty(2, np.float32)
    allreduce, allreduce_async = foldcast.allreduce, foldcast.allreduce_async
    flying, outs = collections.deque(), itertools.cycle([np.empty_like(y) for _ in range(IN_FLIGHT + 1)])

    def in_flight():
        if len(flying) == IN_FLIGHT:
            flying.popleft().wait()
        flying.append(allreduce_async(x, out=next(outs)))

    ways = {
        "blocking": lambda: allreduce(x, out=y),
        "async": lambda: allreduce_async(x, out=y).wait(),
        "in flight": in_flight,
        "loop": lambda: None,
    }
    if sys.argv[1:]:
        ways = {way: ways[way] for way in sys.argv[1:]}
    times = {way: [] for way in ways}
    for number in range(-1, BATCHES):
        for way, call in ways.items():
            if way == "async":
                batch(call)  # the progress thread has slept meanwhile
            taken = batch(call)
            if number >= 0:
                times[way].append(taken)
    assert (y == x * foldcast.size()).all(), y
    if foldcast.rank() == 0:
        print(json.dumps(times), flush=True)


main()
