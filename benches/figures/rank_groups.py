"""What two ranks do for the figures of groups: `foldcast run -n 2 -- python rank_groups.py`.

Makes groups of both ranks, calls on each, destroys them. Rank 0 prints, in lists over the rounds, times in us for each group and
memory in KiB for each group and rank. What several processes map counts for each of them with its share (`Pss`).
"""

import json
import time

import foldcast
import numpy as np

ROUNDS, GROUPS = 5, 20
LARGE = 4 << 20


def memory():
    """KiB of this process, shared ones by its share."""
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Pss:"))


def timed(work, items):
    """The time for each item in us, of the slowest rank, and what the work gave for each."""
    foldcast.barrier()
    start = time.perf_counter()
    made = [work(item) for item in items]
    taken = (time.perf_counter() - start) / GROUPS
    return float(foldcast.allreduce([taken], "max")[0]) * 1e6, made


def growth(since):
    """KiB for each group and rank that the ranks have together more than then."""
    foldcast.barrier()
    return float(foldcast.allreduce([float(memory() - since)])[0]) / foldcast.size() / GROUPS


def one_round(number, small, large):
    found = {}
    foldcast.barrier()
    before = memory()
    names = [f"{number} {at}" for at in range(GROUPS)]
    found["make"], groups = timed(lambda name: foldcast.new_group(range(foldcast.size()), name=name), names)
    for call in ("first call", "second call"):
        found[call], _ = timed(lambda group: group.allreduce(small[0], out=small[1]), groups)
    found["KiB small"] = growth(before)
    timed(lambda group: group.allreduce(large[0], out=large[1]), groups)
    found["KiB large"] = growth(before)
    found["destroy"], _ = timed(lambda group: group.destroy(), groups)
    del groups
    # The monitors hear of it.
    time.sleep(0.2)
    found["KiB left"] = growth(before)
    return found


def main():
    arrays = [[np.ones(size // 4, np.float32) for _ in range(2)] for size in (8, LARGE)]
    for both in arrays:
        foldcast.allreduce(both[0], out=both[1])
    one_round(-1, *arrays)
    rounds = [one_round(number, *arrays) for number in range(ROUNDS)]
    if foldcast.rank() == 0:
        print(json.dumps({what: [each[what] for each in rounds] for what in rounds[0]}), flush=True)


main()
