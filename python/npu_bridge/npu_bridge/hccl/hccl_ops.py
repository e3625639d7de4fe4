"""Collective operations on TensorFlow tensors, under the names that training scripts use."""

import foldcast.tensorflow

__all__ = ["allgather", "allreduce", "broadcast"]


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


def broadcast(tensor, root_rank, fusion=2, fusion_id=0, group="hccl_world_group"):
    """Gives every rank of `group` what the rank `root_rank` has.

    Args:
        tensor: a list of tensors, or of what TensorFlow converts to tensors; their dtypes may differ. Every rank of the
            group gives a list of the same shapes and dtypes; only the root's values are used. A variable is read, and
            never written to: assign the result.
        root_rank: the rank, in the group, that gives.
        fusion: 0, 1 or 2, and nothing depends on it: a list is one call, in which small tensors travel together.
        fusion_id: an integer; nothing depends on it.
        group: "hccl_world_group" or the name of a group made by `hccl.manage.api.create_group`. The caller is a member.

    Returns:
        A list of tensors of the same shapes and dtypes. (A tensor that is in no list gives a tensor.)

    The op's type is ``HcomBroadcast``. It has no gradient.

    Raises:
        ValueError: an argument is none of the above. What only shows when the op runs is an error of `tf.errors`.
    """
    return foldcast.tensorflow.broadcast(tensor, root_rank, group=group, fusion=fusion, fusion_id=fusion_id)


def allgather(tensor, rank_size, group="hccl_world_group", fusion=0, fusion_id=-1):
    """Gives every rank of `group` the tensors of all of them, one behind the other along the first dimension.

    Args:
        tensor: a tensor of at least one dimension, or what TensorFlow converts to one. Every rank of the group gives one of
            the same shape and dtype. The result's first dimension is `rank_size` times as long.
        rank_size: the number of ranks of the group.
        group: "hccl_world_group" or the name of a group made by `hccl.manage.api.create_group`. The caller is a member.
        fusion: 0, 1 or 2, and nothing depends on it.
        fusion_id: an integer; nothing depends on it.

    The op's type is ``HcomAllGather``. Its gradient is this rank's part of the sum, over the same group, of what flows back.

    Raises:
        ValueError: an argument is none of the above. What only shows when the op runs is an error of `tf.errors`.
    """
    return foldcast.tensorflow.allgather(tensor, group, rank_size=rank_size, fusion=fusion, fusion_id=fusion_id)
