"""The allreduce of a list of tensors at once."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

import tensorflow as tf

import foldcast
from foldcast.tensorflow import _ops
from foldcast.tensorflow._in_turn import after_the_last
from foldcast.tensorflow._library import LIBRARY

FUSED_TYPE = "HcomAllReduceFused"


def allreduce_fused(
    tensors: Any, reduction: str = "sum", group: str = "hccl_world_group", name: Optional[str] = None
) -> List[tf.Tensor]:
    """Reduces each of `tensors` over the ranks of `group`, in one call for each dtype; every rank gets the same results.

    It is `allreduce` of each tensor, with the same bits, for callers who hold a list: eagerly, in functions and in graphs.

    Parameters
    ----------
    tensors
        A list of what `allreduce` takes; IndexedSlices are densified. All ranks of the group give as many, of the same
        shapes and dtypes in the same order. The list may be empty.
    reduction, group
        As for `allreduce`.
    name
        The name of the op in its graph; with several dtypes, of the first one.

    Returns
    -------
    list of tf.Tensor
        Of the same shapes and dtypes as `tensors`, in their order.

    Raises
    ------
    foldcast.InvalidArgumentError
        As for `allreduce`; `tensors` is no list, or an entry is None.

    Notes
    -----
    An op starts when all its tensors are there. A sum has a gradient, which is fused in the same way.
    """
    check = _ops._Check(name, FUSED_TYPE)
    check.reduction(reduction)
    group = check.group(group)
    if not isinstance(tensors, (list, tuple)):
        raise check._refuse("tensors", "a list of tensors", f"{type(tensors).__name__}")
    converted: List[tf.Tensor] = []
    for at, tensor in enumerate(tensors):
        field = f"tensors[{at}]"
        if tensor is None:
            expected = (
                "a tensor (a variable that the loss does not depend on has no gradient: leave it out on all ranks)"
            )
            raise check._refuse(field, expected, "None")
        converted.append(tf.convert_to_tensor(tensor))
        check.tensor(converted[-1], field)
        check.product(tensor, converted[-1], reduction, field)
    if not converted:
        return []
    foldcast.init()
    places: Dict[Any, List[int]] = {}
    for at, tensor in enumerate(converted):
        places.setdefault(tensor.dtype.base_dtype, []).append(at)
    results: List[Any] = list(converted)
    for of_dtype in places.values():
        members = [converted[at] for at in of_dtype]
        for at, result in zip(of_dtype, _make(members, reduction, group, _ops._tag(members[0], group), name)):
            results[at] = result
    return results


def _make(
    tensors: List[tf.Tensor], reduction: str, group: str, tag: str, name: Optional[str] = None
) -> List[tf.Tensor]:
    with after_the_last(_ops._SYNCHRONOUS) as made:
        results = LIBRARY.ops.hcom_all_reduce_fused(
            tensors=tensors,
            reduction=reduction,
            fusion=0,
            fusion_id=-1,
            group=group,
            tag=tag,
            turn=_ops._turn(),
            name=name,
        )
        made(results[0])
    if not tf.executing_eagerly():
        for tensor, result in zip(tensors, results):
            # Old releases infer no shape of several outputs.
            result.set_shape(tensor.shape)
    return list(results)


def _gradient(op: Any, *gradients: Any) -> List[tf.Tensor]:
    """What flows back through a sum of a list, summed over the same group as a list."""
    group, tag = _ops._group_and_tag_of_gradient(op, FUSED_TYPE)
    # Nothing flows back through a result that nobody uses, which may be so on one rank only.
    filled = [
        tf.zeros_like(output) if gradient is None else tf.convert_to_tensor(gradient)
        for output, gradient in zip(op.outputs, gradients)
    ]
    return _make(filled, "sum", group, _ops._tag(filled[0], group) if tag is None else tag)


def register() -> None:
    """Gives the op its gradient."""
    try:
        tf.RegisterGradient(FUSED_TYPE)(_gradient)
    except KeyError:
        pass  # As in `_ops`: the first registration stays.


register()
