"""The Python face of the op."""

from __future__ import annotations

import operator
import warnings
from typing import Any, Optional, Set, Tuple

import tensorflow as tf

import foldcast
from foldcast import _foldcast
from foldcast.tensorflow import _fusion, _threads
from foldcast.tensorflow._control_dependencies import let_run_together
from foldcast.tensorflow._in_turn import after_the_last, turn
from foldcast.tensorflow._library import LACKS_ASYNCHRONY, LACKS_ITERATIONS, LIBRARY
from foldcast.tensorflow._scopes import scope
from foldcast.tensorflow._variables import feeding_variable

OP_TYPE = "HcomAllReduce"
BROADCAST = "HcomBroadcast"
ALLGATHER = "HcomAllGather"

_WORLD_GROUP = "hccl_world_group"
_REDUCTIONS = ("sum", "max", "min", "prod")
_DTYPES = (
    tf.int8,
    tf.int16,
    tf.int32,
    tf.int64,
    tf.uint8,
    tf.uint16,
    tf.uint32,
    tf.uint64,
    tf.float16,
    tf.bfloat16,
    tf.float32,
    tf.float64,
)
# Comparing numbers is fast; comparing DType objects is not.
_DTYPE_NUMBERS = frozenset(dtype.as_datatype_enum for dtype in _DTYPES)
_MAX_GROUP_BYTES = 127
_MAX_INPUT_BYTES = 8 << 30

# The attribute `tag` of an op that has no name to meet by; and of one that meets nobody, so that its calls need no order.
_UNNAMED = "#"
_UNNAMED_ALONE = "#alone"

_LACKS = LIBRARY.lacks()
_SYNCHRONOUS = bool(_LACKS & LACKS_ASYNCHRONY)

# Pairs of fusion and fusion_id that were warned of; bounded, because a script may count its ids up.
_warned: Set[Tuple[int, int]] = set()
_MAX_WARNED = 1000


class GradientError(foldcast.InvalidArgumentError, LookupError):
    """A gradient was asked for that does not exist: of a reduction other than ``"sum"``, or of a broadcast."""


def allreduce(
    tensor: Any,
    reduction: str = "sum",
    fusion: int = 1,
    fusion_id: int = -1,
    group: str = _WORLD_GROUP,
    name: Optional[str] = None,
) -> tf.Tensor:
    """Reduces `tensor` element by element over the ranks of `group`; every rank gets the same result.

    Parameters
    ----------
    tensor
        A tensor, or what ``tf.convert_to_tensor`` makes one of; IndexedSlices are densified, lists packed. Every rank
        of the group gives one, of the same shape and dtype: an integer of 8 to 64 bits, signed or not, float16,
        bfloat16, float32 or float64. At most 8 GiB. A variable is read, and never written to.
    reduction
        ``"sum"``, ``"max"``, ``"min"`` or ``"prod"``. Integers wrap; NaN propagates through max and min.
    fusion
        How TensorFlow may fuse this op with others when it compiles the graph: 0, not at all; 1, by the group's
        gradient split strategy; 2, with the ops of the same `fusion_id`. It never changes the result's bits.
    fusion_id
        With ``fusion=2`` an integer of 0 or more; otherwise ignored.
    group
        The name of the group, or a `foldcast.Group`. This rank must be a member when the op runs.
    name
        The name of the op in its graph. Eager calls have none.

    Returns
    -------
    tf.Tensor
        Of the same shape and dtype as `tensor`.

    Raises
    ------
    foldcast.InvalidArgumentError
        An argument is none of the above, or the product (`foldcast.set_product`) does not take it: the dtype, the
        reduction, or a variable that feeds the op with no other op between them. It is a ValueError.

    Notes
    -----
    What shows only when the op runs is an error of ``tf.errors``: ``InvalidArgumentError`` if the ranks disagree or this
    rank is not in the group, ``AbortedError`` if a rank died, ``FailedPreconditionError`` if the group is over, after
    `foldcast.shutdown` or in a forked process, ``DeadlineExceededError``, and ``ResourceExhaustedError``.

    A sum has a gradient: the sum, over the same group, of what flows back. The other reductions have none.

    Making the first op joins the job, as `foldcast.init` does.
    """
    check = _Check(name)
    fusion, fusion_id = check.fusion(fusion, fusion_id)
    check.reduction(reduction)
    group = check.group(group)
    argument, tensor = tensor, tf.convert_to_tensor(tensor)
    check.tensor(tensor)
    check.product(argument, tensor, reduction)
    foldcast.init()
    return _make(tensor, reduction, fusion, fusion_id, group, _tag(tensor, group), name)


def _make(
    tensor: tf.Tensor, reduction: str, fusion: int, fusion_id: int, group: str, tag: str, name: Optional[str] = None
) -> tf.Tensor:
    with after_the_last(_SYNCHRONOUS) as made:
        result = LIBRARY.ops.hcom_all_reduce(
            tensor=tensor,
            reduction=reduction,
            fusion=fusion,
            fusion_id=fusion_id,
            group=group,
            tag=tag,
            bytes=_static_bytes(tensor),
            turn=_turn(),
            name=name,
        )
        made(result)
    return result


def _turn() -> str:
    return turn() if _SYNCHRONOUS else ""


def _static_bytes(tensor: tf.Tensor) -> int:
    """For the split of gradients by their size; -1 if the shape is not known."""
    if tf.executing_eagerly():
        return -1
    elements = tensor.shape.num_elements()
    return -1 if elements is None else int(elements) * tensor.dtype.size


def _tag(tensor: tf.Tensor, group: str) -> str:
    if tf.executing_eagerly():
        return _UNNAMED_ALONE if foldcast.size() == 1 else _UNNAMED
    graph = tf.compat.v1.get_default_graph()
    # As TensorFlow does it: a function takes in tensors of other graphs, a v1 op goes where its input is.
    return scope(graph if graph.building_function else tensor.graph, group)


class _Check:
    """Checks arguments; the messages name the op that is not there yet."""

    def __init__(self, name: Optional[str], op_type: str = OP_TYPE, op: str = "allreduce") -> None:
        self._name = name
        self._op_type = op_type
        self._op = op

    def _refuse(self, field: str, expected: str, got: str) -> foldcast.InvalidArgumentError:
        node = self._name or self._op_type
        if not tf.executing_eagerly():
            node = tf.compat.v1.get_default_graph().unique_name(node, mark_as_used=False)
        return foldcast.InvalidArgumentError.about(
            f"{self._op_type} node '{node}': {field}: expected {expected}, got {got}",
            op=self._op,
            field=field,
            expected=expected,
            got=got,
        )

    def _integer(self, field: str, expected: str, value: Any) -> int:
        try:
            if isinstance(value, bool):
                raise TypeError
            return operator.index(value)
        except TypeError:
            raise self._refuse(field, expected, repr(value)) from None

    def fusion(self, fusion: Any, fusion_id: Any) -> Tuple[int, int]:
        fusion = self._integer("fusion", "0, 1 or 2", fusion)
        if fusion not in (0, 1, 2):
            raise self._refuse("fusion", "0, 1 or 2", str(fusion))
        fusion_id = self._integer("fusion_id", "an integer", fusion_id)
        if fusion == 2:
            if not 0 <= fusion_id < 1 << 63:
                raise self._refuse("fusion_id", "0 or more with fusion=2", str(fusion_id))
            return fusion, fusion_id
        if fusion_id != -1:
            _warn_once(fusion, fusion_id)
        return fusion, -1

    def reduction(self, reduction: Any) -> None:
        if not isinstance(reduction, str) or reduction not in _REDUCTIONS:
            raise self._refuse("reduction", "one of " + ", ".join(_REDUCTIONS), repr(reduction))

    def group(self, group: Any) -> str:
        name = group.name if isinstance(group, foldcast.Group) else group
        expected = f"a name of 1 to {_MAX_GROUP_BYTES} bytes of UTF-8 without a zero byte"
        if not isinstance(name, str):
            raise self._refuse("group", expected, repr(name))
        try:
            length = len(name.encode())
        except UnicodeEncodeError:
            raise self._refuse("group", expected, repr(name)) from None
        if not 1 <= length <= _MAX_GROUP_BYTES or "\0" in name:
            raise self._refuse("group", expected, f"{length} bytes: {name!r}")
        return name

    def tensor(self, tensor: tf.Tensor, field: str = "tensor") -> None:
        dtype = tensor.dtype.base_dtype
        if dtype.as_datatype_enum not in _DTYPE_NUMBERS:
            raise self._refuse(field, "one of the dtypes " + ", ".join(known.name for known in _DTYPES), dtype.name)
        elements = tensor.shape.num_elements()
        if elements is not None and elements * dtype.size > _MAX_INPUT_BYTES:
            got = f"shape {tuple(tensor.shape)} of {dtype.name}, {elements * dtype.size} bytes"
            raise self._refuse(field, f"at most {_MAX_INPUT_BYTES >> 30} GiB ({_MAX_INPUT_BYTES} bytes)", got)

    def product(self, argument: Any, tensor: tf.Tensor, reduction: str, field: str = "tensor") -> None:
        product = foldcast.product()
        if product == "host":
            return
        refused = _foldcast._check_product(tensor.dtype.base_dtype.name, reduction)
        if refused is not None:
            raise self._refuse(*refused)
        variable = feeding_variable(argument, tensor)
        if variable is not None:
            expected = (
                f"the result of an op (product {product} takes no variable as the node that feeds an allreduce: put "
                "tf.identity between them)"
            )
            raise self._refuse(field, expected, f"variable '{variable}'")


def _warn_once(fusion: int, fusion_id: int) -> None:
    if (fusion, fusion_id) in _warned or len(_warned) >= _MAX_WARNED:
        return
    _warned.add((fusion, fusion_id))
    warnings.warn(
        f"allreduce: fusion_id={fusion_id} is ignored: it is read only with fusion=2, and fusion is {fusion}",
        stacklevel=4,
    )


def _gradient(op: Any, gradient: Any) -> tf.Tensor:
    """What flows back through a sum, summed over the same group, never fused.

    It is named after the forward op's graph, which is the same however often TensorFlow builds the backward pass.
    """
    group, tag = _group_and_tag_of_gradient(op, OP_TYPE)
    gradient = tf.convert_to_tensor(gradient)
    tag = _tag(gradient, group) if tag is None else tag
    return _make(gradient, "sum", fusion=0, fusion_id=-1, group=group, tag=tag)


def _group_and_tag_of_gradient(op: Any, op_type: str) -> Tuple[str, Optional[str]]:
    """Of the gradient of a sum: the group, and the tag unless the call has to get one of its own."""
    reduction, group, tag = (_text(op.get_attr(key)) for key in ("reduction", "group", "tag"))
    if reduction != "sum":
        node = getattr(op, "name", "") or op_type
        raise GradientError.about(
            f"{op_type} node '{node}': an allreduce has a gradient only for reduction='sum', not for '{reduction}': use "
            "tf.stop_gradient, or give one by tf.custom_gradient or gradient_override_map",
            op="allreduce",
            field="reduction",
            expected="sum",
            got=reduction,
        )
    if tf.executing_eagerly() or tag in ("", _UNNAMED, _UNNAMED_ALONE):
        return group, None
    return group, f"grad({tag})"


def _text(attribute: Any) -> str:
    return attribute.decode() if isinstance(attribute, bytes) else attribute


def _warn_of_lacks() -> None:
    if _SYNCHRONOUS:
        warnings.warn(
            f"foldcast: the kernels of {OP_TYPE} are synchronous in this TensorFlow ({tf.__version__}), so that each call "
            "keeps a thread. Lest the ranks wait for each other, the allreduces of a graph run one after the other, in "
            "the order in which they were made, and running one runs those before it. Nothing overlaps with them",
            stacklevel=2,
        )
    if _LACKS & LACKS_ITERATIONS:
        warnings.warn(
            f"foldcast: this TensorFlow ({tf.__version__}) does not tell the iterations of a loop apart: where a loop "
            "contains an allreduce that does not need the last iteration's, pass parallel_iterations=1",
            stacklevel=2,
        )


def _register() -> None:
    _warn_of_lacks()
    if _SYNCHRONOUS:
        _threads.count()
    else:
        # The fused op is made only after functions are traced, but a function may be imported with one.
        let_run_together(frozenset({OP_TYPE, OP_TYPE + "Fused", BROADCAST, ALLGATHER}))
        _fusion.enable()
    try:
        tf.RegisterGradient(OP_TYPE)(_gradient)
    except KeyError:
        pass  # This module was imported before and is imported again; TensorFlow keeps the first registration.


_register()
