"""Lets the collective ops of one ``tf.function`` run at the same time.

While it traces a function, TensorFlow chains all stateful ops, one after the other in the order of the program. It makes
an exception for its own collectives, which would wait for each other without need, and so does this module for ours.
TensorFlow has no interface for that, and its list of exceptions is not read any more once it is imported, so the
predicate that reads it is wrapped. An op whose result nobody uses is then left out, as it is in a v1 graph.
"""

from __future__ import annotations

from typing import Any, FrozenSet

from tensorflow.python.framework import auto_control_deps

_MARK = "_foldcast_op_types"


def let_run_together(op_types: FrozenSet[str]) -> None:
    """Takes the ops of these types out of the chain, in functions traced from now on. A second call changes nothing."""
    chained = auto_control_deps.op_is_stateful
    if op_types <= getattr(chained, _MARK, frozenset()):
        return

    def op_is_stateful(op: Any) -> bool:
        return op.type not in op_types and chained(op)

    setattr(op_is_stateful, _MARK, op_types)
    auto_control_deps.op_is_stateful = op_is_stateful
