"""An engine of one process for the TensorFlow op library: the table of C functions, in Python.

It stands in for the other ranks: each call ends with twice its input, at once or when a test says so. What the op library
asked for is recorded.
"""

import collections
import contextlib
import ctypes
import queue
import threading

import numpy as np
from foldcast import _foldcast

_DTYPE_NAMES = "int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64".split()

_DONE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_char_p, ctypes.c_size_t)

CODES = {
    "InvalidArgument": 1,
    "NotInGroup": 2,
    "Mismatch": 3,
    "RankDied": 4,
    "Deadline": 5,
    "GroupAborted": 6,
    "ForkedProcess": 7,
    "Closed": 8,
    "Resource": 9,
}


# What every call begins with.
_COMMON = (
    ("group", ctypes.c_void_p),
    ("group_len", ctypes.c_size_t),
    ("tag", ctypes.c_void_p),
    ("tag_len", ctypes.c_size_t),
    ("user", ctypes.c_void_p),
    ("done", ctypes.c_void_p),
)


class _Call(ctypes.Structure):
    _fields_ = [
        *_COMMON,
        ("dtype", ctypes.c_uint32),
        ("reduction", ctypes.c_uint32),
        ("input", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
    ]


class _Member(ctypes.Structure):
    _fields_ = [("input", ctypes.c_void_p), ("output", ctypes.c_void_p), ("bytes", ctypes.c_uint64)]


class _ListCall(ctypes.Structure):
    _fields_ = [
        *_COMMON,
        ("dtype", ctypes.c_uint32),
        ("reduction", ctypes.c_uint32),
        ("names", ctypes.c_void_p),
        ("names_len", ctypes.c_size_t),
        ("alone", ctypes.c_void_p),
        ("alone_len", ctypes.c_size_t),
        ("suffix", ctypes.c_void_p),
        ("suffix_len", ctypes.c_size_t),
        ("members", ctypes.POINTER(_Member)),
        ("count", ctypes.c_size_t),
    ]


_SUBMIT = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Call))
_SUBMIT_LIST = ctypes.CFUNCTYPE(None, ctypes.POINTER(_ListCall))


class _Table(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("submit", _SUBMIT),
        ("split", ctypes.c_void_p),
        ("submit_list", _SUBMIT_LIST),
        ("moves", ctypes.c_void_p),
    ]


# `names` are those of a list call's members, None for a single call; `bytes` is of all members, `in_place` says whether all are.
Submission = collections.namedtuple("Submission", "tag group dtype reduction bytes in_place thread names")


def _dtype(code):
    name = _DTYPE_NAMES[code - 1]
    if name == "bfloat16":
        import tensorflow as tf

        return np.dtype(tf.bfloat16.as_numpy_dtype)  # of the package ml_dtypes, or of TensorFlow's own in old releases
    return np.dtype(name)


def _array(address, size, dtype):
    if size == 0:
        return np.empty(0, dtype)
    buffer = (ctypes.c_uint8 * size).from_address(address)
    return np.frombuffer(buffer, np.uint8).view(dtype)


class FakeEngine:
    """Ends calls on a thread of its own, or inside `submit` if `inline`; holds them back until `hold` are there.

    TensorFlow fuses nothing in the graphs that it compiles meanwhile, unless `fuse`. `fail` may give a code and a message for a submission. Calls that are held back for a minute fail.
    """

    def __init__(self, hold=1, inline=False, fail=None, fuse=False):
        self.submissions = []
        self.hold = hold
        self.inline = inline
        self.fuse = fuse
        self.fail = fail or (lambda submission: None)
        self._held = []
        self._lock = threading.Lock()
        self._queue = queue.SimpleQueue()
        self._submit = _SUBMIT(self._submitted)  # Kept: the table only has its address.
        self._submit_list = _SUBMIT_LIST(self._submitted_list)
        # Gradients are split as the real engine does it, and what is moved goes there.
        real = _Table.from_address(_foldcast.table_address())
        own = (self._submit, real.split, self._submit_list, real.moves)
        self.table = _Table(_foldcast.table_version, ctypes.sizeof(_Table), *own)
        self._thread = threading.Thread(target=self._work, name="fake engine", daemon=True)
        self._thread.start()

    @property
    def tags(self):
        return [submission.tag for submission in self.submissions]

    def release(self):
        """Ends all calls that are held back, the last one first."""
        with self._lock:
            self.hold = 1
            held, self._held = self._held, []
        for work in reversed(held):
            self._queue.put(work)

    @contextlib.contextmanager
    def attached(self):
        """The op library uses this engine inside the block, and the real one afterwards."""
        from foldcast.tensorflow._library import LIBRARY

        LIBRARY.attach(ctypes.addressof(self.table))
        LIBRARY.set_fusion(self.fuse)
        try:
            yield self
        finally:
            LIBRARY.attach(_foldcast.table_address())
            LIBRARY.set_fusion(True)
            self._queue.put(None)
            self._thread.join()

    def _submitted(self, pointer):
        call = pointer.contents
        self._take(call, [(call.input, call.output, call.bytes)], None)

    def _submitted_list(self, pointer):
        call = pointer.contents
        members = [(member.input, member.output, member.bytes) for member in call.members[: call.count]]
        self._take(call, members, ctypes.string_at(call.names, call.names_len).decode().splitlines())

    def _take(self, call, members, names):
        submission = Submission(
            tag=ctypes.string_at(call.tag, call.tag_len).decode(),
            group=ctypes.string_at(call.group, call.group_len).decode(),
            dtype=_dtype(call.dtype).name,
            reduction={1: "sum", 2: "max", 3: "min", 4: "prod"}[call.reduction],
            bytes=sum(size for _, _, size in members),
            in_place=all(source == target for source, target, _ in members),
            thread=threading.get_ident(),
            names=names,
        )
        # The struct is the caller's and gone after this function: take everything now.
        work = (submission, _dtype(call.dtype), members, call.user, _DONE(call.done))
        if self.inline:
            self.submissions.append(submission)
            self._end(work)
            return
        with self._lock:
            self.submissions.append(submission)
            self._held.append(work)
            if len(self._held) < self.hold:
                return
            held, self._held = self._held, []
        for work in held:
            self._queue.put(work)

    def _work(self):
        while True:
            try:
                work = self._queue.get(timeout=60)
            except queue.Empty:
                if self._held:
                    self.fail = lambda _: ("Deadline", f"only {len(self.submissions)} calls came, {self.tags}")
                    self.release()
                continue
            if work is None:
                return
            self._end(work)

    def _end(self, work):
        submission, dtype, members, user, done = work
        failure = self.fail(submission)
        if failure is not None:
            code, message = failure
            message = message.encode()
            done(user, CODES[code], message, len(message))
            return
        for source, target, size in members:
            result = _array(target, size, dtype)
            with np.errstate(all="ignore"):
                result[:] = _array(source, size, dtype) * np.asarray(2, dtype)
        done(user, 0, None, 0)
