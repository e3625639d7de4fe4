"""One rank of ci/smoke-test.sh."""

import importlib.util
import os
import sys

import foldcast
import numpy as np

assert foldcast.__file__.startswith(sys.prefix + os.sep), f"another foldcast than the wheel's: {foldcast.__file__}"
built = foldcast.build_info()
assert built["profile"] == "release" and built["tensorflow_library"] is not None, built
foldcast.init()
rank, size = foldcast.rank(), foldcast.size()
total = foldcast.allreduce(np.full(1000, rank + 1, np.float32))
assert size == 2 and np.all(total == 3), total
done = "numpy"
if importlib.util.find_spec("tensorflow") is not None:
    import tensorflow as tf
    from foldcast.tensorflow import allreduce

    @tf.function
    def step(x):
        return allreduce(x), allreduce(x * 2.0)

    once, twice = step(tf.fill([1000], float(rank + 1)))
    assert np.all(once.numpy() == 3) and np.all(twice.numpy() == 6), (once, twice)
    done += f" and TensorFlow {tf.__version__}"
print(f"smoke: rank {rank} of {size}: {done}: the sums are right")
