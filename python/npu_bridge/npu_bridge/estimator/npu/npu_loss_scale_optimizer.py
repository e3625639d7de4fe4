"""An optimizer that scales the loss, so that small gradients of float16 do not vanish."""

import foldcast
import tensorflow as tf

from npu_bridge.estimator.npu._wrapping import WrappingOptimizer
from npu_bridge.hccl import hccl_ops

__all__ = ["NPULossScaleOptimizer"]

_v1 = tf.compat.v1


class NPULossScaleOptimizer(WrappingOptimizer):
    """`opt`, of TensorFlow 1.x, which sees the loss times the scale of `loss_scale_manager`.

    `compute_gradients` divides the gradients by the scale again, in float32. `apply_gradients` applies them if all are
    finite, and else leaves everything as it is, the global step too; then it lets the manager update its scale. With
    `is_distributed` a gradient that is not finite on any rank counts for all ranks, so that all decide alike.
    """

    def __init__(self, opt, loss_scale_manager, is_distributed=False):
        for method in ("get_loss_scale", "update_loss_scale"):
            if not callable(getattr(loss_scale_manager, method, None)):
                raise TypeError(
                    "NPULossScaleOptimizer: loss_scale_manager: expected a FixedLossScaleManager or an "
                    f"ExponentialUpdateLossScaleManager, got {loss_scale_manager!r}"
                )
        super().__init__(opt, None)
        self._manager = loss_scale_manager
        self._is_distributed = bool(is_distributed)

    def compute_gradients(self, loss, *args, **kwargs):
        """The gradients of `loss`. Arguments as in `tf.train.Optimizer`."""
        scale = self._manager.get_loss_scale()

        def scaled(value):
            return value * tf.cast(scale, value.dtype)

        scaled_loss = (lambda: scaled(loss())) if callable(loss) else scaled(loss)
        gradients = self._opt.compute_gradients(scaled_loss, *args, **kwargs)
        return [(_unscaled(gradient, scale), variable) for gradient, variable in gradients]

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        """Applies the gradients if all are finite, and updates the scale. Returns an op."""
        pairs = list(grads_and_vars)
        if not getattr(self._manager, "enable_overflow_check", True):
            return self._opt.apply_gradients(pairs, global_step=global_step, name=name)
        finite = self._all_finite([gradient for gradient, _ in pairs if gradient is not None])

        def apply():
            done = self._opt.apply_gradients(pairs, global_step=global_step, name=name)
            return _after(done, True)

        applied = _v1.cond(finite, apply, lambda: tf.constant(False))
        # The update reads and writes what this step's gradients were scaled by.
        with tf.control_dependencies([applied]):
            return tf.group(applied, *_ops(self._manager.update_loss_scale(finite)))

    def _all_finite(self, gradients):
        values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients]
        checks = [tf.reduce_all(tf.math.is_finite(value)) for value in values]
        finite = tf.reduce_all(tf.stack(checks)) if checks else tf.constant(True)
        if not self._is_distributed or foldcast.size() == 1:
            return finite
        trouble = tf.cast(tf.logical_not(finite), tf.float32)
        # Not fused: fused calls wait for each other, and this one waits for all gradients.
        return tf.equal(hccl_ops.allreduce(trouble, "sum", fusion=0), 0.0)


def _unscaled(gradient, scale):
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        values = _unscaled(gradient.values, scale)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    # float16 holds neither large scales nor their inverses.
    wide = tf.float64 if gradient.dtype == tf.float64 else tf.float32
    return tf.cast(tf.cast(gradient, wide) / tf.cast(scale, wide), gradient.dtype)


def _after(op, value):
    with tf.control_dependencies(_ops(op)):
        return tf.constant(value)


def _ops(op):
    """A list of `op`, which eager mode does not have."""
    return [] if op is None else [op]
