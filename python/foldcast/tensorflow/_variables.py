"""Finds the variable that feeds an op: a product may not take one there.

Only reads are looked through: `ReadVariableOp` of a resource variable, the `Identity` that a variable of v1 has for its
reads, and the placeholders by which a function or a branch takes in what is outside of it. Any other op in between, such
as one made by `tf.identity`, makes the value an op's result.
"""

from __future__ import annotations

from typing import Any, Optional

import tensorflow as tf

_REFERENCE_VARIABLES = frozenset({"Variable", "VariableV2", "TemporaryVariable"})
# What hands a variable's handle on, in loops and branches of v1 graphs and when devices are chosen.
_HANDING_ON = frozenset({"Enter", "RefEnter", "Switch", "RefSwitch", "Identity"})


def feeding_variable(argument: Any, tensor: Any) -> Optional[str]:
    """The name of the variable that is read for `tensor`, which was made of `argument`; None if it is an op's result."""
    op = _op(tensor)
    if op is None:
        return _name(argument)
    while op.type == "Placeholder":
        outside = _outside(op)
        op = None if outside is None else _op(outside)
        if op is None:
            return None
    if op.type in _REFERENCE_VARIABLES:
        return op.name
    if op.type == "ReadVariableOp":
        return _variable_of(op.inputs[0])
    if op.type == "Identity":
        source = op.inputs[0].op
        if source.type in _REFERENCE_VARIABLES and op.name == f"{source.name}/read":
            return source.name
    return None


def _op(tensor: Any) -> Any:
    """The op whose result this is; None for a tensor that is there already."""
    return None if hasattr(tensor, "numpy") else tensor.op


def _name(argument: Any) -> Optional[str]:
    """The name of a variable given to an eager call."""
    # A variable of Keras 3 holds one of TensorFlow.
    for found in (argument, getattr(argument, "_value", None)):
        if isinstance(found, tf.Variable):
            return _bare(found.name)
    return None


def _bare(name: str) -> str:
    return name[:-2] if name.endswith(":0") else name


def _variable_of(handle: Any) -> str:
    """The name of the variable behind the handle."""
    op = handle.op
    while True:
        if op.type in _HANDING_ON:
            op = op.inputs[0].op
            continue
        outside = _outside(op) if op.type == "Placeholder" else None
        if outside is None:
            return op.name
        if _op(outside) is None:
            return _watched(op.graph, outside) or op.name
        op = outside.op


def _watched(graph: Any, handle: Any) -> Optional[str]:
    """The name of the variable with this handle, among those that the function has read so far."""
    # The graph's own list, `variables`, is there only when the function has been traced.
    for variable in getattr(graph, "_watched_variables", ()):
        if variable.handle is handle:
            return _bare(variable.name)
    return None


def _outside(placeholder: Any) -> Any:
    """What a function takes in by this placeholder; None if it is an argument, or fed."""
    for outside, inside in getattr(placeholder.graph, "captures", ()):
        if inside.op is placeholder:
            return outside
    return None
