"""Broadcast and allgather: the Python face of their ops."""

from __future__ import annotations

from typing import Any, List, Optional, Tuple, Union

import tensorflow as tf

import foldcast
from foldcast.tensorflow import _ops
from foldcast.tensorflow._in_turn import after_the_last
from foldcast.tensorflow._library import LIBRARY
from foldcast.tensorflow._ops import ALLGATHER, BROADCAST, GradientError


class _Check(_ops._Check):
    """Checks arguments of moves; the messages name the op that is not there yet."""

    def fusion(self, fusion: Any, fusion_id: Any) -> Tuple[int, int]:
        """Moves are not fused, so any `fusion_id` will do."""
        fusion = self._integer("fusion", "0, 1 or 2", fusion)
        if fusion not in (0, 1, 2):
            raise self._refuse("fusion", "0, 1 or 2", str(fusion))
        return fusion, self._integer("fusion_id", "an integer", fusion_id)

    def root(self, root_rank: Any, group: str) -> int:
        root_rank = self._integer("root_rank", "an integer", root_rank)
        size = _size(group)
        if root_rank < 0 or (size is not None and root_rank >= size):
            last = "0 or more" if size is None else f"0 to {size - 1}"
            raise self._refuse("root_rank", f"{last}, a rank in group '{group}'", str(root_rank))
        return root_rank

    def rank_size(self, rank_size: Any, group: str) -> int:
        """The number of ranks; 0 if it will be known only when the op runs."""
        size = _size(group)
        if rank_size is None:
            return size or 0
        rank_size = self._integer("rank_size", "an integer", rank_size)
        if rank_size < 1 or (size is not None and rank_size != size):
            expected = "1 or more" if size is None else f"{size}, the number of ranks of group '{group}'"
            raise self._refuse("rank_size", expected, str(rank_size))
        return rank_size

    def gathered(self, tensor: tf.Tensor) -> None:
        self.tensor(tensor)
        if tensor.shape.ndims == 0:
            raise self._refuse("tensor", "at least one dimension (tf.expand_dims(tensor, 0) gives it one)", "a scalar")


def _size(group: str) -> Optional[int]:
    """The number of ranks; None of a group that does not exist yet."""
    try:
        return foldcast.group(group).size
    except foldcast.NotInGroupError:
        return None


def broadcast(
    tensors: Any,
    root_rank: int = 0,
    group: Any = _ops._WORLD_GROUP,
    fusion: int = 2,
    fusion_id: int = 0,
    name: Optional[str] = None,
) -> Union[tf.Tensor, List[tf.Tensor]]:
    """Gives every rank of `group` what one of them has.

    Parameters
    ----------
    tensors
        A tensor, or a list of tensors, whose dtypes may differ, or what ``tf.convert_to_tensor`` makes them of: dtypes and
        sizes as for `allreduce`. Every rank of the group gives a list of the same shapes and dtypes in the same order; only
        the root's values are used. A variable is read, and never written to: assign the result.
    root_rank
        The rank in the group that gives. Messages name it by its rank among all.
    group
        The name of the group, or a `foldcast.Group`. This rank must be a member when the op runs.
    fusion, fusion_id
        Accepted for the sake of scripts that give them. A list is one op and one call, in which small tensors travel
        together; several broadcasts are not fused.
    name
        The name of the op in its graph. Eager calls have none.

    Returns
    -------
    tf.Tensor or list of tf.Tensor
        As `tensors` is; of the same shapes and dtypes, with the root's bits.

    Raises
    ------
    foldcast.InvalidArgumentError
        An argument is none of the above. It is a ValueError.

    Notes
    -----
    What shows only when the op runs is an error of ``tf.errors``, as for `allreduce`. A broadcast has no gradient.
    """
    check = _Check(name, BROADCAST, "broadcast")
    fusion, fusion_id = check.fusion(fusion, fusion_id)
    group = check.group(group)
    is_list = isinstance(tensors, (list, tuple))
    if is_list and not tensors:
        raise check._refuse("tensors", "at least one tensor", "an empty list")
    given = [tf.convert_to_tensor(tensor) for tensor in (tensors if is_list else [tensors])]
    for tensor in given:
        check.tensor(tensor)
    foldcast.init()
    root_rank = check.root(root_rank, group)
    with after_the_last(_ops._SYNCHRONOUS) as made:
        results = LIBRARY.ops.hcom_broadcast(
            tensors=given,
            root_rank=root_rank,
            fusion=fusion,
            fusion_id=fusion_id,
            group=group,
            tag=_ops._tag(given[0], group),
            turn=_ops._turn(),
            name=name,
        )
        made(results[0])
    if not tf.executing_eagerly():
        for tensor, result in zip(given, results):
            # Old releases infer the first one's shape only.
            result.set_shape(tensor.shape)
    return list(results) if is_list else results[0]


def allgather(
    tensor: Any,
    group: Any = _ops._WORLD_GROUP,
    equal: bool = True,
    rank_size: Optional[int] = None,
    fusion: int = 0,
    fusion_id: int = -1,
    name: Optional[str] = None,
) -> tf.Tensor:
    """Gives every rank of `group` the tensors of all of them, one behind the other along the first dimension.

    Parameters
    ----------
    tensor
        A tensor of at least one dimension, or what ``tf.convert_to_tensor`` makes one of, of a dtype as for `allreduce` and
        the same on all ranks. All ranks' together have at most 8 GiB.
    group
        The name of the group, or a `foldcast.Group`. This rank must be a member when the op runs.
    equal
        Whether all ranks give the same shape: if one does not, the op fails on all of them. With False the lengths of the
        first dimension may differ, and be 0: the ranks exchange them first, without keeping a thread.
    rank_size
        The number of ranks, if it must be a certain one.
    fusion, fusion_id
        Accepted for the sake of scripts that give them; allgathers are not fused.
    name
        The name of the op in its graph. Eager calls have none.

    Returns
    -------
    tf.Tensor
        The shape of `tensor` with the sum of all first dimensions as the first; the ranks' bits in the order of the group.

    Raises
    ------
    foldcast.InvalidArgumentError
        An argument is none of the above. It is a ValueError.

    Notes
    -----
    What shows only when the op runs is an error of ``tf.errors``, as for `allreduce`. The gradient is this rank's part of
    the sum, over the same group, of what flows back.
    """
    check = _Check(name, ALLGATHER, "allgather")
    fusion, fusion_id = check.fusion(fusion, fusion_id)
    group = check.group(group)
    tensor = tf.convert_to_tensor(tensor)
    check.gathered(tensor)
    foldcast.init()
    ranks = check.rank_size(rank_size, group)
    return _gather(tensor, group, equal, ranks, fusion, fusion_id, _ops._tag(tensor, group), name)


def _gather(
    tensor: tf.Tensor,
    group: str,
    equal: bool,
    ranks: int,
    fusion: int,
    fusion_id: int,
    tag: str,
    name: Optional[str] = None,
) -> tf.Tensor:
    with after_the_last(_ops._SYNCHRONOUS) as made:
        result = LIBRARY.ops.hcom_all_gather(
            tensor=tensor,
            rank_size=ranks,
            unequal=int(not equal),
            fusion=fusion,
            fusion_id=fusion_id,
            group=group,
            tag=tag,
            turn=_ops._turn(),
            name=name,
        )
        made(result)
    if not tf.executing_eagerly() and tensor.shape.ndims is not None:
        rows, *inner = tensor.shape.as_list()
        known = equal and ranks and rows is not None
        result.set_shape([rows * ranks if known else None, *inner])
    return result


def allreduce_sparse(
    slices: tf.IndexedSlices, group: Any = _ops._WORLD_GROUP, average: bool = False
) -> tf.IndexedSlices:
    """Sums `slices` over the ranks of `group` without making them dense: each rank gets the slices of all of them.

    Parameters
    ----------
    slices
        Each rank gives as many as it has, also none.
    group
        The name of the group, or a `foldcast.Group`.
    average
        Divide the values, which are floating-point numbers then, by the number of ranks.

    Returns
    -------
    tf.IndexedSlices
        Values and indices of all ranks in the order of the group, from an allgather each; an index that several ranks have
        is there as often, which means the sum. The dense shape is that of `slices`.

    Raises
    ------
    foldcast.InvalidArgumentError
        An argument is none of the above.
    """
    check = _Check(None, ALLGATHER, "allreduce_sparse")
    if not isinstance(slices, tf.IndexedSlices):
        raise check._refuse("slices", "tf.IndexedSlices", type(slices).__name__)
    if average and not slices.values.dtype.is_floating:
        raise check._refuse("slices", "values of a floating-point dtype with average=True", slices.values.dtype.name)
    group = check.group(group)
    values = allgather(slices.values, group, equal=False)
    indices = allgather(slices.indices, group, equal=False)
    if average:
        values = values / tf.cast(foldcast.group(group).size, values.dtype)
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def _allgather_gradient(op: Any, gradient: Any) -> tf.Tensor:
    """This rank's part of the sum of what flows back."""
    group, tag = (_ops._text(op.get_attr(key)) for key in ("group", "tag"))
    index = foldcast.group(group).rank
    gradient = tf.convert_to_tensor(gradient)
    if tf.executing_eagerly() or tag in ("", _ops._UNNAMED, _ops._UNNAMED_ALONE):
        tag = _ops._tag(gradient, group)
    else:
        tag = f"grad({tag})"
    total = _ops._make(gradient, "sum", fusion=0, fusion_id=-1, group=group, tag=tag)
    tensor = op.inputs[0]
    rows = tf.shape(tensor, out_type=tf.int64)[0]
    if op.get_attr("unequal"):
        ranks = op.get_attr("rank_size")
        all_rows = _gather(tf.expand_dims(rows, 0), group, True, ranks, 0, -1, tag)
        first = tf.reduce_sum(all_rows[:index])
    else:
        first = rows * index
    part = total[first : first + rows]
    part.set_shape(tensor.shape)
    return part


def _broadcast_gradient(op: Any, *_: Any) -> Any:
    node = getattr(op, "name", "") or BROADCAST
    raise GradientError.about(
        f"{BROADCAST} node '{node}': a broadcast has no gradient: use tf.stop_gradient, or give one by tf.custom_gradient or "
        "gradient_override_map",
        op="broadcast",
        field="gradient",
        expected="none",
        got="one",
    )


def _register() -> None:
    for op_type, gradient in ((ALLGATHER, _allgather_gradient), (BROADCAST, _broadcast_gradient)):
        try:
            tf.RegisterGradient(op_type)(gradient)
        except KeyError:
            pass  # This module was imported before and is imported again; TensorFlow keeps the first registration.


_register()
