"""Ops that start and end the system that collective calls run on, and dropout."""

import numbers

import foldcast
import tensorflow

__all__ = ["dropout", "initialize_system", "shutdown_system"]


def initialize_system(name=None):
    """An op that joins the job when it runs: it waits until the ranks have met. Running it again does nothing.

    Scripts run it in a Session before they ask for their rank. It is not needed: the first call that needs the other
    ranks joins too.
    """
    return tensorflow.numpy_function(foldcast.init, [], [], name=name or "InitializeSystem")


def shutdown_system(name=None):
    """An op that marks the end of the script's collective work. It returns at once and ends nothing.

    A host has no device system to release, and the process stays a member of the job until it ends or calls
    `foldcast.shutdown`. So `get_rank_id` answers afterwards, `initialize_system` may be run again, as scripts do
    between training and evaluation, and ranks that still compute are not cut off.
    """
    return tensorflow.no_op(name=name or "ShutdownSystem")


def dropout(x, keep_prob, noise_shape=None, seed=None, name=None):
    """`x` with each element kept with probability `keep_prob` and divided by it, or set to 0.

    It is TensorFlow's dropout, in the words of 1.x. `keep_prob` is a number above 0 and up to 1, or a scalar tensor;
    elements along a dimension of 1 in `noise_shape` are kept or dropped together.
    """
    if isinstance(keep_prob, numbers.Real) and not 0 < keep_prob <= 1:
        raise ValueError(f"dropout: keep_prob: expected a number above 0 and up to 1, got {keep_prob!r}")
    dropped = tensorflow.compat.v1.nn.dropout
    return dropped(x, noise_shape=noise_shape, seed=seed, name=name, rate=1 - keep_prob)
