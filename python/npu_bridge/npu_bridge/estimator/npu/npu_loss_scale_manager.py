"""Loss scales: a fixed one, and one that follows the gradients. They are those of ``tf.contrib.mixed_precision``."""

import math
import numbers

import tensorflow as tf

__all__ = ["ExponentialUpdateLossScaleManager", "FixedLossScaleManager"]

_v1 = tf.compat.v1


class FixedLossScaleManager:
    """A loss scale that stays as it is.

    With ``enable_overflow_check=False`` the optimizer applies gradients unchecked.
    """

    def __init__(self, loss_scale, enable_overflow_check=True):
        self._loss_scale = _scale("FixedLossScaleManager: loss_scale", loss_scale)
        self.enable_overflow_check = bool(enable_overflow_check)

    def get_loss_scale(self):
        """The loss scale, a float32 tensor."""
        return tf.constant(self._loss_scale, tf.float32)

    def update_loss_scale(self, finite_grads):
        """An op that does nothing."""
        return tf.no_op()


class ExponentialUpdateLossScaleManager:
    """A loss scale that grows while gradients are finite and shrinks when they are not.

    Args:
        init_loss_scale: the first one, at least 1.
        incr_every_n_steps: it is multiplied by `incr_ratio` after so many steps with finite gradients in a row.
        decr_every_n_nan_or_inf: it is multiplied by `decr_ratio` after so many steps with others, in a row or not.
        incr_ratio, decr_ratio: at least 1; above 0 and at most 1.

    Both counts begin anew when either is full. A scale below 1 or beyond float32 is not taken; the old one stays. The
    scale and the counts are global variables of the graph in which this is made, so that checkpoints hold them.
    """

    def __init__(self, init_loss_scale, incr_every_n_steps, decr_every_n_nan_or_inf=2, incr_ratio=2, decr_ratio=0.8):
        who = "ExponentialUpdateLossScaleManager"
        init_loss_scale = _scale(f"{who}: init_loss_scale", init_loss_scale)
        self.enable_overflow_check = True
        self._incr_every_n_steps = _count(f"{who}: incr_every_n_steps", incr_every_n_steps)
        self._decr_every_n_nan_or_inf = _count(f"{who}: decr_every_n_nan_or_inf", decr_every_n_nan_or_inf)
        self._incr_ratio = _number(f"{who}: incr_ratio", incr_ratio, 1, math.inf)
        self._decr_ratio = _number(f"{who}: decr_ratio", decr_ratio, 0, 1)
        with tf.name_scope("loss_scale_manager"):
            self._loss_scale = _variable("loss_scale", init_loss_scale, tf.float32)
            self._good_steps = _variable("good_steps", 0, tf.int64)
            self._bad_steps = _variable("bad_steps", 0, tf.int64)

    def get_loss_scale(self):
        """The loss scale, a float32 tensor."""
        return tf.identity(self._loss_scale)

    def update_loss_scale(self, finite_grads):
        """An op that takes note of a step; `finite_grads` is a boolean tensor: whether all its gradients were finite."""
        scale, good, bad = (tf.identity(held) for held in (self._loss_scale, self._good_steps, self._bad_steps))
        good = _v1.where(finite_grads, good + 1, tf.zeros_like(good))
        bad = _v1.where(finite_grads, bad, bad + 1)
        grows = good >= self._incr_every_n_steps
        shrinks = bad >= self._decr_every_n_nan_or_inf
        wanted = _v1.where(shrinks, scale * self._decr_ratio, scale)
        wanted = _v1.where(grows, scale * self._incr_ratio, wanted)
        taken = tf.logical_and(tf.math.is_finite(wanted), wanted >= 1.0)
        begins_anew = tf.logical_or(grows, shrinks)
        return tf.group(
            _v1.assign(self._loss_scale, _v1.where(taken, wanted, scale)),
            _v1.assign(self._good_steps, _v1.where(begins_anew, tf.zeros_like(good), good)),
            _v1.assign(self._bad_steps, _v1.where(begins_anew, tf.zeros_like(bad), bad)),
        )


def _variable(name, value, dtype):
    return _v1.Variable(value, trainable=False, name=name, dtype=dtype, use_resource=True)


def _number(argument, value, low, high):
    """`value` as a float from `low`, or above it if that is 0, to `high`. NaN is refused by the comparison."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not low <= value <= high or value == 0:
        above = "above 0" if low == 0 else f"of {low} or more"
        up_to = "" if math.isinf(high) else f" and at most {high}"
        raise ValueError(f"{argument}: expected a number {above}{up_to}, got {value!r}")
    return float(value)


def _scale(argument, value):
    largest = float(tf.float32.max)
    return _number(argument, value, 1, largest)


def _count(argument, value):
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise ValueError(f"{argument}: expected a number of steps, 1 or more, got {value!r}")
    return int(value)
