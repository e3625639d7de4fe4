"""Several steps of training by one `Session.run`, as a device makes them by itself."""

import functools

import tensorflow as tf
from hccl._checks import integer, refusal

__all__ = ["IterationPerLoop", "set_iteration_per_loop"]


def set_iteration_per_loop(sess, train_op, iterations_per_loop=1):
    """An op for `train_op` that `sess` runs `iterations_per_loop` times in each `run` that fetches it.

    A host makes the steps one by one. What is fetched together with the op is of the last one, and values that are fed
    are the same in all.
    """
    iteration = IterationPerLoop()
    op = iteration.create_iteration_per_loop_var(train_op)
    iteration.load_iteration_per_loop_var(sess, iterations_per_loop)
    return op


class IterationPerLoop:
    """`set_iteration_per_loop` in two steps: before the graph is finished, and when there is a session."""

    def __init__(self):
        self._op = None

    def create_iteration_per_loop_var(self, train_op):
        """The op for `train_op` that is to be run."""
        with train_op.graph.as_default():
            self._op = tf.group(train_op, name="IterationOp")
        return self._op

    def load_iteration_per_loop_var(self, sess, iterations_per_loop=1):
        """How many times `sess` runs the op in each `run` that fetches it, until this is called again."""
        call = "load_iteration_per_loop_var"
        if self._op is None:
            raise ValueError(f"{call}: expected create_iteration_per_loop_var to have been called before")
        times = integer(call, "iterations_per_loop", iterations_per_loop)
        if times < 1:
            raise refusal(call, "iterations_per_loop", "1 or more", times)
        _repetitions(sess)[self._op] = times


def _repetitions(sess):
    """By op, how often the session repeats it: a dict that its `run` looks into."""
    run = sess.run
    if hasattr(run, "npu_repetitions"):
        return run.npu_repetitions
    repetitions = {}

    @functools.wraps(run)
    def repeating(fetches, *args, **kwargs):
        for op in tf.nest.flatten(fetches):
            if isinstance(op, tf.Operation) and op in repetitions:
                for _ in range(repetitions[op] - 1):
                    run(op, *args, **kwargs)
        return run(fetches, *args, **kwargs)

    repeating.npu_repetitions = repetitions
    sess.run = repeating
    return repetitions
