"""Names the graph or function that an op is made in, the same on every rank.

TensorFlow's own names will not do: it numbers functions, loop bodies and branches by a counter that everything in the
process advances, so a rank that traces one function more than the others has other numbers from there on. Nor will a
count of traces: a rank whose last batch has another size traces its training step once more, and its gradients must
still meet those of the other ranks. So

* a function is named after the Python function that is traced, and numbered only if another Python function of the same
  name was there before it;
* a loop body or a branch is named after the function or graph around it and its own name there;
* what is made inside the backward pass of a function is named after that function;
* a v1 graph is numbered.

Only graphs and functions that contain allreduces of the same group count, in the order of their first one.
"""

from __future__ import annotations

import re
import sys
import threading
import types
import weakref
from typing import Any, Dict, Iterator, List, Optional, Tuple

from tensorflow.python.framework import func_graph as _func_graph
from tensorflow.python.util import tf_decorator as _tf_decorator

# The counter in the names of loop bodies and branches, `while_1_body_42`, and of their gradients, `..._42_grad_57`.
_COUNTERS = re.compile(r"_\d+(?=_grad|$)")
_CONTROL_FLOW_GRAPHS = ("WhileCondFuncGraph", "WhileBodyFuncGraph", "CondBranchFuncGraph")
_BACKWARD = re.compile(r"__backward_(.*)_\d+")


class _Numbers:
    """Tells things of one name apart, by identity: the first is number 1. Keeps no thing alive."""

    def __init__(self) -> None:
        self._seen: Dict[str, Tuple[int, List[Tuple[Any, int]]]] = {}

    def numbered(self, name: str, thing: Any) -> str:
        count, entries = self._seen.get(name, (0, []))
        entries = [entry for entry in entries if entry[0]() is not None]
        number = next((number for reference, number in entries if reference() is thing), None)
        if number is None:
            number = count = count + 1
            entries.append((weakref.ref(thing), number))
        self._seen[name] = (count, entries)
        return name if number == 1 else f"{name}#{number}"


class _Scopes:
    """The names for one group of ranks: its members must agree on them, and on nothing of other groups."""

    def __init__(self) -> None:
        self._names: "weakref.WeakKeyDictionary[Any, str]" = weakref.WeakKeyDictionary()
        self._outermost = _Numbers()
        self._inner: "weakref.WeakKeyDictionary[Any, _Numbers]" = weakref.WeakKeyDictionary()

    def name(self, graph: Any) -> str:
        name = self._names.get(graph)
        if name is None:
            name = self._names[graph] = self._make_name(graph)
        return name

    def _make_name(self, graph: Any) -> str:
        if not isinstance(graph, _func_graph.FuncGraph):
            return self._outermost.numbered("graph", graph)
        outer = graph.outer_graph
        if _is_control_flow(graph):
            inner = self._inner.setdefault(outer, _Numbers())
            return f"{self.name(outer)}/{inner.numbered(_COUNTERS.sub('', graph.name), graph)}"
        backward = _BACKWARD.fullmatch(graph.name)
        if backward is None:
            return self._outermost.numbered(graph.name, _traced_function(graph) or graph)
        forward = _forward_graph(graph)
        if forward is None or (forward not in self._names and _traced_function(forward) is None):
            # The function itself has no allreduces, and which one it is cannot be found any more.
            return f"grad({backward.group(1)})"
        return f"grad({self.name(forward)})"


_lock = threading.Lock()
_groups: Dict[str, _Scopes] = {}


def scope(graph: Any, group: str) -> str:
    """The name of the graph or function, for the ranks of the group."""
    with _lock:
        return _groups.setdefault(group, _Scopes()).name(graph)


def _is_control_flow(graph: Any) -> bool:
    """Whether it is the graph of a loop's body or condition, or of a branch."""
    if hasattr(graph, "is_control_flow_graph"):
        return bool(graph.is_control_flow_graph)
    # TensorFlow 1.15 has only the classes.
    return any(base.__name__ in _CONTROL_FLOW_GRAPHS for base in type(graph).__mro__)


def _traced_function(graph: Any) -> Any:
    """The Python function that is being traced into this graph, or the object that it is a method of: it stays the same
    when it is traced again. None if nothing is being traced into the graph."""
    for frame in _frames():
        if frame.f_code.co_name == "func_graph_from_py_func" and frame.f_locals.get("func_graph") is graph:
            _, function = _tf_decorator.unwrap(frame.f_locals.get("python_func"))
            # A bound method is a new object each time; what it is bound to is not, once TensorFlow's wrapper is off.
            found = getattr(function, "__self__", function)
            found = getattr(found, "target", found)
            return found if _can_be_referenced(found) else None
    return None


def _forward_graph(graph: Any) -> Any:
    """The graph of the function whose backward pass this graph is."""
    if isinstance(graph.outer_graph, _func_graph.FuncGraph):
        return graph.outer_graph
    for frame in _frames():
        if frame.f_locals.get("backwards_graph") is graph:
            return getattr(frame.f_locals.get("self"), "_func_graph", None)
    return None


def _frames() -> Iterator[types.FrameType]:
    frame: Optional[types.FrameType] = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _can_be_referenced(thing: Any) -> bool:
    try:
        weakref.ref(thing)
    except TypeError:
        return False
    return True
