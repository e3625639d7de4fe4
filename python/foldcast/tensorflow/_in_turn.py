"""Lets the allreduces of one v1 graph run one after the other, where each would keep a thread of TensorFlow's.

With synchronous kernels, ranks that start their allreduces in different orders can fill all their threads with calls
that wait for calls of other ranks that find no thread any more. One order on all ranks excludes that, whatever the number
of threads. In functions TensorFlow itself keeps the order of stateful ops.

Loops and branches of v1 have an order each, which no edge can join to that around them. The op library counts the orders
of a graph by what `turn` says, and refuses a graph with more of them than there are threads.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import Any, Callable, Dict, Iterator

import tensorflow as tf
from tensorflow.python.framework import func_graph as _func_graph

# By graph and control flow context, the name of the last allreduce: an op itself would keep its graph alive.
_last: "weakref.WeakKeyDictionary[Any, Dict[str, str]]" = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def after_the_last(needed: bool) -> Iterator[Callable[[Any], None]]:
    """What is made in the block runs after the last allreduce made before; the block says what it has made."""
    graph = None if not needed or tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    if graph is None or isinstance(graph, _func_graph.FuncGraph):
        yield lambda made: None
        return
    context = graph._get_control_flow_context()
    place = "" if context is None else context.name
    names = _last.setdefault(graph, {})
    before = [graph.get_operation_by_name(names[place])] if place in names else []

    def made(result: Any) -> None:
        names[place] = result.op.name

    with graph.control_dependencies(before):
        yield made


def turn() -> str:
    """For an op that is made now: how many iterations may run it at the same time, a colon, and the name of its order."""
    if tf.executing_eagerly():
        return ""
    graph, outermost = tf.compat.v1.get_default_graph(), ""
    while isinstance(graph, _func_graph.FuncGraph):
        graph, outermost = graph.outer_graph, graph.name
    if outermost:
        return f"1:{outermost}"
    context = graph._get_control_flow_context()
    name = "" if context is None else context.name
    overlapping = 1
    while context is not None:
        overlapping *= int(getattr(context, "parallel_iterations", 1))
        context = context.outer_context
    return f"{overlapping}:{name}"
