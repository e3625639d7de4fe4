"""Finds the op library, has TensorFlow load it, and joins it to the engine."""

from __future__ import annotations

import ctypes
import json
import os
from typing import Any, Dict, List

try:
    import tensorflow as tf
except ImportError as _error:
    if _error.name not in (None, "tensorflow"):
        raise
    raise ImportError(
        "foldcast.tensorflow needs TensorFlow 1.15, or 2.6 or newer: pip install tensorflow", name="tensorflow"
    ) from None

import foldcast
from foldcast import _foldcast
from foldcast._build import TENSORFLOW_LIBRARY as _FILE

_VARIABLE = "FOLDCAST_TENSORFLOW_LIBRARY"

# A call keeps one of TensorFlow's threads until it ends.
LACKS_ASYNCHRONY = 1
# Iterations of a loop that run at the same time cannot be told apart.
LACKS_ITERATIONS = 2

# What `Library.enable_fusion` answers: TensorFlow calls the optimiser for every graph, or for those of sessions whose
# configuration names it. Anything else: it cannot.
FUSION_IS_THERE = 0
FUSION_BY_NAME = 3

# What the library's function `foldcast_tensorflow_attach` answers.
_REFUSALS = {1: "there is no table", 2: "its version is another one", 3: "its size is another one"}


class _Counters(ctypes.Structure):
    _fields_ = [
        ("kernels_created", ctypes.c_uint64),
        ("kernels_deleted", ctypes.c_uint64),
        ("calls_submitted", ctypes.c_uint64),
        ("calls_finished", ctypes.c_uint64),
        ("outputs_forwarded", ctypes.c_uint64),
    ]


def library_path() -> str:
    """The path of the op library: beside the package, or what the variable ``FOLDCAST_TENSORFLOW_LIBRARY`` says.

    For programs that load it themselves, by ``tf.load_op_library``, to run a graph that contains the op. The ops need
    the engine when they run, so such a program imports `foldcast.tensorflow` in the end; it may do so afterwards.
    """
    chosen = os.environ.get(_VARIABLE)
    if chosen is not None:
        if not os.path.isfile(chosen):
            raise ImportError(f"{_VARIABLE}: expected the path of {_FILE}, got {chosen!r}, which is no file")
        return os.path.abspath(chosen)
    path = os.path.join(os.path.dirname(os.path.abspath(foldcast.__file__)), _FILE)
    if not os.path.isfile(path):
        raise ImportError(f"{path} is missing: install foldcast with its op library, or set {_VARIABLE} to its path")
    return path


def packages_path() -> str:
    """The directory that TensorFlow is installed in."""
    return os.path.dirname(os.path.dirname(os.path.abspath(tf.__file__)))


class Library:
    """The loaded op library."""

    def __init__(self) -> None:
        path = library_path()
        # TensorFlow must be the first to open it: it collects the ops that register themselves while it opens a library.
        self.ops = tf.load_op_library(path)
        self._functions = ctypes.CDLL(path)
        problem = self._problem()
        if problem is not None:
            raise ImportError(f"{path} cannot work with TensorFlow {tf.__version__}: {problem}")
        if not hasattr(self.ops, "hcom_all_reduce"):
            raise ImportError(
                f"{path} was open before TensorFlow loaded it, so that TensorFlow found no ops in it: let nothing open "
                "it but tf.load_op_library"
            )
        self.attach(_foldcast.table_address())
        self._path = path

    def _problem(self) -> Any:
        problem = self._functions.foldcast_tensorflow_problem
        problem.restype = ctypes.c_char_p
        text = problem()
        return None if text is None else text.decode()

    def lacks(self) -> int:
        """What this TensorFlow cannot do, as bits: see `LACKS_ASYNCHRONY` and `LACKS_ITERATIONS`."""
        lacks = self._functions.foldcast_tensorflow_lacks
        lacks.restype = ctypes.c_uint32
        return int(lacks())

    def attach(self, table: int) -> None:
        """Hands over the engine's table of functions, which lies at this address."""
        attach = self._functions.foldcast_tensorflow_attach
        attach.argtypes = [ctypes.c_void_p]
        attach.restype = ctypes.c_uint32
        refusal = attach(table)
        if refusal:
            why = _REFUSALS.get(refusal, f"it answered {refusal}")
            raise ImportError(
                f"the op library refuses the table of the module foldcast._foldcast: {why}. The two are of different "
                "versions of foldcast: install them together"
            )

    def enable_fusion(self) -> int:
        """Registers the plugin of TensorFlow's graph optimiser, once in a process; see `FUSION_IS_THERE`."""
        enable = self._functions.foldcast_tensorflow_enable_fusion
        enable.argtypes = [ctypes.c_char_p]
        return int(enable(os.fsencode(self._path)))

    def set_fusion(self, on: bool) -> None:
        """Whether allreduces are fused in graphs that TensorFlow compiles from now on, if the plugin is there."""
        self._functions.foldcast_tensorflow_set_fusion(ctypes.c_uint32(on))

    def set_threads(self, threads: int) -> None:
        """How many threads run ops, for the check of synchronous kernels; 0 if that is not known."""
        self._functions.foldcast_tensorflow_set_threads(ctypes.c_size_t(threads))

    def fusion_report(self, clear: bool) -> List[Dict[str, Any]]:
        """What was fused in the graphs compiled so far."""
        report = self._functions.foldcast_tensorflow_fusion_report
        report.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint32]
        report.restype = ctypes.c_size_t
        room = 1 << 16
        while True:
            buffer = ctypes.create_string_buffer(room)
            length = report(buffer, room, clear)
            if length <= room:
                launches = json.loads(buffer.raw[:length].decode())
                # The library knows the names that graphs use: "float" for float32.
                return [dict(launch, dtype=tf.as_dtype(launch["dtype"]).name) for launch in launches]
            room = 2 * length

    def counters(self) -> Dict[str, int]:
        """What the library has done so far: kernels made and ended, calls submitted and finished, outputs that took
        over their input's memory."""
        counters = _Counters()
        self._functions.foldcast_tensorflow_counters(ctypes.byref(counters))
        return {name: int(getattr(counters, name)) for name, *_ in _Counters._fields_}


LIBRARY = Library()
