"""Sums an array over all ranks: ``foldcast run -n 4 -- python examples/numpy_allreduce.py``."""

import foldcast
import numpy as np

rank, size = foldcast.rank(), foldcast.size()

# Every rank has another contribution ...
mine = np.arange(4, dtype=np.float32) + 10 * rank
total = foldcast.allreduce(mine)

# ... and knows here what the sum must be.
expected = size * np.arange(4, dtype=np.float32) + 10 * sum(range(size))
assert np.array_equal(total, expected), f"rank {rank}: expected {expected}, got {total}"

# In place, another reduction, and without waiting at once.
largest = np.array([rank], np.int64)
handle = foldcast.allreduce_async(largest, "max", out=largest)
handle.wait()
assert largest[0] == size - 1

print(f"rank {rank} of {size}: {mine} -> {total}, ok")
