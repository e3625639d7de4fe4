"""Collective operations on TensorFlow tensors, under the names that training scripts use."""

import foldcast.tensorflow

__all__ = ["allreduce"]


def allreduce(tensor, reduction, fusion=1, fusion_id=-1, group="hccl_world_group"):
    """Reduces `tensor` element by element over the ranks of `group`; every rank gets the same result.

    Args:
        tensor: a tensor, or what TensorFlow converts to one. Every rank of the group gives one of the same shape and
            dtype, and the result has these too.
        reduction: "sum", "max", "min" or "prod".
        fusion: 0, never fused with other allreduces; 1, fused by the group's gradient split strategy; 2, fused with
            those of the same `fusion_id`. Only sums are fused, and the result has the same bits either way.
        fusion_id: read with ``fusion=2`` only, where it must be 0 or more.
        group: "hccl_world_group" or the name of a group made by `hccl.manage.api.create_group`. The caller is a member.

    The op's type is ``HcomAllReduce``: that is the key for `tf.Graph.gradient_override_map`. Sums have a gradient: the
    sum, over the same group, of what flows back.

    Raises:
        ValueError: an argument is none of the above. What only shows when the op runs is an error of `tf.errors`.
    """
    return foldcast.tensorflow.allreduce(tensor, reduction, fusion=fusion, fusion_id=fusion_id, group=group)
