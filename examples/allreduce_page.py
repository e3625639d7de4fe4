"""The example of the documentation page of `hccl_ops.allreduce`, as it stands there, run and checked on every rank.

    foldcast run -n 4 python examples/allreduce_page.py

Each rank makes a random tensor and gets the sum of all. To check it, every rank collects what the others gave. Prints
one line a rank; a wrong sum is an error.
"""
# ruff: noqa: E402, I001

import foldcast
import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_eager_execution()

# fmt: off
from npu_bridge.hccl import hccl_ops
tensor = tf.random_uniform((1, 3), minval=1, maxval=10, dtype=tf.float32)
result = hccl_ops.allreduce(tensor, "sum")
# fmt: on

with tf.Session() as session:
    given, received = session.run([tensor, result])

# Row r of `inputs` is what rank r gave: every other rank adds zeros to it.
inputs = np.zeros((foldcast.size(), 3), np.float32)
inputs[foldcast.rank()] = given
inputs = foldcast.allreduce(inputs, "sum")

expected = inputs.astype(np.float64).sum(axis=0, keepdims=True)
right = received.shape == given.shape and np.allclose(received, expected, rtol=1e-6, atol=0)
alike = np.array_equal(foldcast.allreduce(received, "max"), foldcast.allreduce(received, "min"))
verdict = "the sum over all ranks, the same on each" if right and alike else f"WRONG, the sum is {expected.tolist()}"
who = f"rank {foldcast.rank()} of {foldcast.size()}"
print(f"{who}: gave {given.tolist()}, received {received.tolist()}: {verdict}", flush=True)
if not (right and alike):
    raise SystemExit(1)
