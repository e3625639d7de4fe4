"""What two ranks do for the figures of TensorFlow: `foldcast run -n 2 -- python rank_session.py`.

Tensors of 8 bytes. In a session of TensorFlow 1 (`tf.compat.v1.Session`) graphs of 1 and of `CHAIN` + 1 allreduces, each of which takes
the one before, and graphs of as many `tf.abs` in their place; then both eagerly. Rank 0 prints us for each op, for each batch that
of its slowest rank, in lists over the batches:

* `chain` of an op: what each further one in the graph takes;
* `run`: `session.run` of the graph with one op;
* `eager`: a call of the op.
"""

import json
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import foldcast
import foldcast.tensorflow as fold
import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import rewriter_config_pb2

BATCHES, RUNS, CHAIN, EAGER_CALLS = 15, 20, 200, 300
OPS = {"allreduce": fold.allreduce, "abs": tf.abs}


def batch(call, times):
    """The mean time of a call in us, of the slowest rank."""
    foldcast.barrier()
    start = time.perf_counter()
    for _ in range(times):
        call()
    taken = (time.perf_counter() - start) / times
    return float(foldcast.allreduce([taken], "max")[0]) * 1e6


def session_of(op, length):
    """A function that runs the graph once."""
    with tf.Graph().as_default():
        x = tensor = tf.compat.v1.placeholder(tf.float32, [2])
        for _ in range(length):
            tensor = op(tensor)
        config = tf.compat.v1.ConfigProto()
        # It would make one op of a chain of cheap ones.
        config.graph_options.rewrite_options.arithmetic_optimization = rewriter_config_pb2.RewriterConfig.OFF
        session = tf.compat.v1.Session(config=config)
        run = session.make_callable(tensor, [x])
    value = np.zeros(2, np.float32)
    return lambda: run(value)


def main():
    foldcast.init()
    graphs = {(name, length): session_of(op, length) for name, op in OPS.items() for length in (1, CHAIN + 1)}
    value = tf.zeros([2])
    found = {f"{what} {name}": [] for what in ("chain", "run", "eager") for name in OPS}
    for number in range(-1, BATCHES):
        times = {key: batch(run, RUNS) for key, run in graphs.items()}
        for name, op in OPS.items():
            eager = batch(lambda op=op: op(value), EAGER_CALLS)
            if number >= 0:
                found[f"run {name}"].append(times[name, 1])
                found[f"chain {name}"].append((times[name, CHAIN + 1] - times[name, 1]) / CHAIN)
                found[f"eager {name}"].append(eager)
    if foldcast.rank() == 0:
        print(json.dumps(found), flush=True)


main()
