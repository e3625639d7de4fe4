"""An optimizer of TensorFlow 1.x around another one."""

import tensorflow as tf

_v1 = tf.compat.v1


class WrappingOptimizer(_v1.train.Optimizer):
    """Hands everything to the optimizer inside; subclasses change what they are for."""

    def __init__(self, optimizer, name):
        self._opt = v1_optimizer(type(self).__name__, optimizer)
        super().__init__(use_locking=False, name=name or f"{type(self).__name__}{optimizer.get_name()}")

    def compute_gradients(self, *args, **kwargs):
        """The gradients, as the optimizer inside computes them. Arguments as in `tf.train.Optimizer`."""
        return self._opt.compute_gradients(*args, **kwargs)

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        """Applies the gradients by the optimizer inside."""
        return self._opt.apply_gradients(grads_and_vars, global_step=global_step, name=name)

    def get_slot(self, var, name):
        """The slot of the optimizer inside."""
        return self._opt.get_slot(var, name)

    def get_slot_names(self):
        """The slots' names of the optimizer inside."""
        return self._opt.get_slot_names()

    def variables(self):
        """The variables of the optimizer inside."""
        return self._opt.variables()


def v1_optimizer(caller, optimizer):
    """`optimizer`, which must be one of TensorFlow 1.x."""
    if isinstance(optimizer, _v1.train.Optimizer):
        return optimizer
    advice = ""
    if hasattr(optimizer, "apply_gradients"):
        advice = "; npu_distributed_optimizer_wrapper takes the optimizers of Keras"
    raise TypeError(f"{caller}: optimizer: expected a tf.compat.v1.train.Optimizer, got {optimizer!r}{advice}")
