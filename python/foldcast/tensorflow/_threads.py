"""Counts the threads on which TensorFlow runs ops, for the op library's check of synchronous kernels.

The library cannot see in which session a kernel runs, so it is told the number of the session with the fewest. Functions
that run eagerly keep one order, for which one thread will do.
"""

from __future__ import annotations

import functools
import os
import weakref
from typing import Any, Optional

from tensorflow.core.protobuf import config_pb2
from tensorflow.python.client import session as _session

from foldcast.tensorflow._library import LIBRARY

_sessions: "weakref.WeakKeyDictionary[Any, int]" = weakref.WeakKeyDictionary()
# Sessions without threads of their own share those of the first such session.
_shared: Optional[int] = None


def count() -> None:
    """Tells the library the threads of each session when it is made. A second call changes nothing."""
    if getattr(_session.BaseSession, "_foldcast_counts", False):
        return
    _session.BaseSession._foldcast_counts = True
    initialise = _session.BaseSession.__init__

    @functools.wraps(initialise)
    def initialise_counting(self: Any, *arguments: Any, **options: Any) -> None:
        initialise(self, *arguments, **options)
        _sessions[self] = _of_session(self._config)
        open_ = [threads for session, threads in list(_sessions.items()) if not session._closed]
        LIBRARY.set_threads(min(open_))

    _session.BaseSession.__init__ = initialise_counting


def _of_session(config: config_pb2.ConfigProto) -> int:
    global _shared
    if config.session_inter_op_thread_pool:
        return min(pool.num_threads or _cores() for pool in config.session_inter_op_thread_pool)
    asked = config.inter_op_parallelism_threads
    threads = 1 if asked < 0 else asked or _cores()  # a negative number: the thread that calls `run`
    if config.use_per_session_threads or asked < 0:
        return threads
    if _shared is None:
        _shared = threads
    return _shared


def _cores() -> int:
    return len(os.sched_getaffinity(0))
