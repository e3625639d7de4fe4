"""Optimizers that average gradients over the ranks, and the averaging by itself.

All ranks compute the same: the gradients of every rank are summed in one order, so that variables which are equal before
a step are equal after it, to the last bit.
"""

import foldcast
import foldcast.tensorflow
import tensorflow as tf
from hccl.manage.api import get_rank_size

from npu_bridge.estimator.npu._wrapping import WrappingOptimizer
from npu_bridge.estimator.npu.npu_loss_scale_optimizer import NPULossScaleOptimizer
from npu_bridge.hccl import hccl_ops

__all__ = [
    "KerasDistributeOptimizer",
    "NPUDistributedOptimizer",
    "NPUOptimizer",
    "allreduce",
    "npu_allreduce",
    "npu_distributed_optimizer_wrapper",
    "npu_keras_optimizer",
    "npu_tf_optimizer",
]

_WORLD_GROUP = "hccl_world_group"
_REDUCTIONS = ("mean", "sum", "max", "min", "prod")


def allreduce(tensor, average=True):
    """The sum of `tensor` over all ranks, divided by their number if `average`.

    IndexedSlices stay sparse: every rank gets the slices of all ranks, by two allgathers; the ranks may have different
    numbers of slices. Averages of integers are rounded down.
    """
    return _reduced(tensor, "mean" if average else "sum", 1, -1, _WORLD_GROUP)


def npu_allreduce(values, reduction="mean", fusion=1, fusion_id=-1, group=_WORLD_GROUP):
    """Reduces `values`, a value or a list, tuple, dict or nest of values, over the ranks of `group`.

    Args:
        values: what TensorFlow converts to tensors; None stays None. IndexedSlices stay sparse and can be summed and
            averaged only.
        reduction: "mean", "sum", "max", "min" or "prod". Means of integers are rounded down.
        fusion, fusion_id, group: as for `hccl_ops.allreduce`. The group exists already if `reduction` is "mean".

    Returns:
        The results, in the structure of `values`.
    """
    if reduction not in _REDUCTIONS:
        raise ValueError(f"npu_allreduce: reduction: expected one of {', '.join(_REDUCTIONS)}, got {reduction!r}")

    def reduced(value):
        return None if value is None else _reduced(value, reduction, fusion, fusion_id, group)

    return tf.nest.map_structure(reduced, values)


def _reduced(value, reduction, fusion, fusion_id, group):
    average = reduction == "mean"
    if isinstance(value, tf.IndexedSlices):
        if reduction not in ("mean", "sum"):
            raise ValueError(
                f"npu_allreduce: reduction: expected mean or sum for IndexedSlices, got {reduction!r}; "
                "tf.convert_to_tensor makes a dense tensor of them"
            )
        return foldcast.tensorflow.allreduce_sparse(value, group=group, average=average)
    operation = "sum" if average else reduction
    result = hccl_ops.allreduce(value, operation, fusion=fusion, fusion_id=fusion_id, group=group)
    if not average:
        return result
    size = group.size if isinstance(group, foldcast.Group) else get_rank_size(group)
    ranks = tf.cast(size, result.dtype)
    return result // ranks if result.dtype.is_integer else result / ranks


def _average(gradients):
    """The gradients' averages over all ranks; None stays None. In a world of one they are returned as they are."""
    gradients = list(gradients)
    if foldcast.size() == 1:
        return gradients
    with tf.name_scope("npu_average"):
        return [None if gradient is None else allreduce(gradient) for gradient in gradients]


def _averages(optimizer):
    """Whether this optimizer, or one that it wraps, averages its gradients over the ranks already."""
    while optimizer is not None:
        if getattr(optimizer, "_npu_averages", False):
            return True
        optimizer = getattr(optimizer, "_opt", None)
    return False


class NPUDistributedOptimizer(WrappingOptimizer):
    """`optimizer`, of TensorFlow 1.x, with gradients that are averaged over all ranks.

    `compute_gradients` averages; what is None stays None, and in a world of one nothing is added. Everything else is
    the given optimizer's. `is_weight_update_sharding` says on a device how updates are laid out; here it does nothing.
    """

    def __init__(self, optimizer, is_weight_update_sharding=False, name=None):
        super().__init__(optimizer, name)
        self._average_here = not _averages(optimizer)
        self._npu_averages = True

    def compute_gradients(self, *args, **kwargs):
        """The gradients, averaged over all ranks. Arguments as in `tf.train.Optimizer`."""
        gradients = self._opt.compute_gradients(*args, **kwargs)
        return _averaged_pairs(gradients) if self._average_here else gradients


class NPUOptimizer(WrappingOptimizer):
    """`opt` with averaged gradients if `is_distributed`, with loss scaling if `is_loss_scale`.

    It is `NPUDistributedOptimizer` and `NPULossScaleOptimizer` in one; `is_tailing_optimization` tunes a device and
    does nothing.
    """

    def __init__(
        self,
        opt,
        loss_scale_manager=None,
        is_distributed=False,
        is_loss_scale=False,
        is_tailing_optimization=False,
        name=None,
    ):
        if is_distributed:
            opt = NPUDistributedOptimizer(opt)
        if is_loss_scale:
            if loss_scale_manager is None:
                raise ValueError("NPUOptimizer: loss_scale_manager: expected one with is_loss_scale=True, got None")
            opt = NPULossScaleOptimizer(opt, loss_scale_manager, is_distributed=is_distributed)
        super().__init__(opt, name)


def npu_tf_optimizer(opt):
    """`NPUDistributedOptimizer` of `opt`."""
    return NPUDistributedOptimizer(opt)


def npu_distributed_optimizer_wrapper(optimizer):
    """Changes `optimizer` so that it averages its gradients over all ranks, and returns it.

    It may be one of TensorFlow 1.x, whose `compute_gradients` then averages, one of Keras, which averages what it
    applies, or the name of one of Keras. Saved, it is what it was before: loaded, it has to be wrapped again.
    """
    if isinstance(optimizer, str):
        optimizer = tf.keras.optimizers.get(optimizer)
    if _averages(optimizer):
        return optimizer
    _refuse_under_a_loss_scale(optimizer)
    method, wrap = _place_to_average(optimizer)
    kind = type(optimizer)
    members = {"_npu_averages": True, method: wrap(getattr(kind, method))}
    # With its name and module it is saved, and shown, as what it was.
    members.update(__module__=kind.__module__, __qualname__=kind.__qualname__, __doc__=kind.__doc__)
    optimizer.__class__ = type(kind)(kind.__name__, (kind,), members)
    return optimizer


def _refuse_under_a_loss_scale(optimizer):
    """Refuses what Keras, with the policy mixed_float16, would put under a loss scale of each rank's own.

    That skips the optimizer, and with it the ranks' meeting, where a rank's own gradients are not finite: ranks that
    decide otherwise would wait for it, or add gradients of another step. Around the loss scale all is well: what is not
    finite on one rank is not finite in the average, on all of them.
    """
    try:
        policy, scaled = tf.keras.mixed_precision.global_policy().name, tf.keras.mixed_precision.LossScaleOptimizer
    except AttributeError:
        return  # Keras has no such policies yet.
    is_keras = not isinstance(optimizer, tf.compat.v1.train.Optimizer)
    if policy == "mixed_float16" and is_keras and not isinstance(optimizer, scaled) and foldcast.size() > 1:
        raise ValueError(
            "npu_distributed_optimizer_wrapper: optimizer: expected a LossScaleOptimizer with the policy mixed_float16, got "
            f"{optimizer!r}: Keras would scale the loss around it, and each rank skip steps by itself. Wrap "
            "tf.keras.mixed_precision.LossScaleOptimizer(optimizer) instead"
        )


def npu_keras_optimizer(opt):
    """`npu_distributed_optimizer_wrapper` of an optimizer of Keras."""
    return npu_distributed_optimizer_wrapper(opt)


# Named as a class is, because scripts construct one; what they get is the optimizer that they gave.
def KerasDistributeOptimizer(optimizer, name="NpuKerasOptimizer"):
    """`npu_distributed_optimizer_wrapper` of an optimizer of Keras, which keeps its own name."""
    return npu_distributed_optimizer_wrapper(optimizer)


def _place_to_average(optimizer):
    """The method through which all gradients of this optimizer go once, and what to put around it."""
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return "compute_gradients", _around_computing
    # In Keras 3 `apply_gradients` calls `apply`; in Keras 2 all ways lead to `apply_gradients`, which comes before Keras
    # clips, skips and scales; before that there is `get_gradients` only.
    for method, wrap in (
        ("apply", _around_keras_3),
        ("apply_gradients", _around_applying),
        ("get_gradients", _around_getting),
    ):
        if callable(getattr(optimizer, method, None)):
            return method, wrap
    raise TypeError(
        "npu_distributed_optimizer_wrapper: optimizer: expected an optimizer of TensorFlow or Keras, or the name of one "
        f"of Keras, got {optimizer!r}"
    )


def _averaged_pairs(grads_and_vars):
    pairs = list(grads_and_vars)
    gradients = _average(gradient for gradient, *_ in pairs)
    return [(gradient, variable) for gradient, (_, variable) in zip(gradients, pairs)]


def _around_computing(compute_gradients):
    def averaging(self, *args, **kwargs):
        return _averaged_pairs(compute_gradients(self, *args, **kwargs))

    return averaging


def _around_keras_3(apply):
    def averaging(self, grads, *args, **kwargs):
        return apply(self, _average(grads), *args, **kwargs)

    return averaging


def _around_applying(apply_gradients):
    def averaging(self, grads_and_vars, *args, **kwargs):
        return apply_gradients(self, _averaged_pairs(grads_and_vars), *args, **kwargs)

    return averaging


def _around_getting(get_gradients):
    def averaging(self, loss, params):
        return _average(get_gradients(self, loss, params))

    return averaging
