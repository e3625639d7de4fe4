"""The table of C functions that the TensorFlow op library gets, called from C's side."""

import ctypes

import numpy as np

DONE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.POINTER(ctypes.c_char), ctypes.c_size_t)
OK, INVALID_ARGUMENT, NOT_IN_GROUP, MISMATCH, CLOSED = 0, 1, 2, 3, 8
INT32, FLOAT32, SUM, MAX = 3, 11, 1, 2


class Call(ctypes.Structure):
    _fields_ = (
        ("dtype", ctypes.c_uint32),
        ("reduction", ctypes.c_uint32),
        ("group", ctypes.c_char_p),
        ("group_len", ctypes.c_size_t),
        ("tag", ctypes.c_char_p),
        ("tag_len", ctypes.c_size_t),
        ("input", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
        ("user", ctypes.c_void_p),
        ("done", DONE),
    )


class Table(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("submit", ctypes.CFUNCTYPE(None, ctypes.POINTER(Call))),
        ("split", ctypes.c_void_p),  # null: the library's default
        ("moves", ctypes.c_void_p),
    )


class Submitted:
    """One call through the table."""

    def __init__(self, array, tag=b"", group=b"hccl_world_group", dtype=FLOAT32, reduction=SUM, in_place=False):
        import threading

        from foldcast import _foldcast

        table = Table.from_address(_foldcast.table_address())
        assert (table.version, table.size) == (_foldcast.table_version, ctypes.sizeof(Table))
        self.ended = threading.Event()
        self.times = 0
        self.array = array
        self.out = array if in_place else np.zeros_like(array)
        self.done = DONE(self.on_done)
        where, to = array.ctypes.data, self.out.ctypes.data
        name = (group, len(group), tag, len(tag))
        self.call = Call(dtype, reduction, *name, where, to, array.nbytes, 1234, self.done)
        table.submit(ctypes.byref(self.call))

    def on_done(self, user, code, message, length):
        assert user == 1234
        self.times += 1
        self.code, self.message = code, ctypes.string_at(message, length).decode() if length else ""
        self.ended.set()

    def wait(self):
        assert self.ended.wait(60)
        return self.code


def through_the_table(rank, size):
    import foldcast

    early = Submitted(np.ones(3, np.float32))
    assert early.wait() == CLOSED and "foldcast.init()" in early.message, early.message

    foldcast.init()
    order = range(20) if rank % 2 else range(19, -1, -1)
    calls = {n: Submitted(np.full(1 + 3000 * n, n + rank, np.float32), b"t%d" % n, in_place=n % 3 == 0) for n in order}
    for number, call in calls.items():
        assert call.wait() == OK, call.message
        assert (call.out == size * number + sum(range(size))).all()
    unnamed = [Submitted(np.array([n], np.int32), dtype=INT32, reduction=MAX) for n in range(5)]
    assert [(call.wait(), call.out[0]) for call in unnamed] == [(OK, n) for n in range(5)]
    empty = Submitted(np.zeros(0, np.float32))
    assert empty.wait() == OK
    assert foldcast.allreduce([1]).tolist() == [size]

    foldcast.new_group(range(size), "own")
    assert Submitted(np.ones(2, np.float32), b"x", b"own").wait() == OK
    unknown = Submitted(np.ones(2, np.float32), b"x", b"unknown")
    assert unknown.wait() == NOT_IN_GROUP and f"rank {rank}" in unknown.message and "'unknown'" in unknown.message
    for wrong in (
        {"dtype": 0},
        {"dtype": 300},
        {"reduction": 9},
        {"group": b""},
        {"group": b"g" * 128},
        {"tag": b"\xff"},
    ):
        bad = Submitted(np.ones(2, np.float32), **{"tag": b"bad", **wrong})
        assert bad.wait() == INVALID_ARGUMENT and bad.message, wrong
    odd = Submitted(np.ones(2 + rank, np.float32), b"odd")
    assert odd.wait() == MISMATCH and "count" in odd.message and "rank 1" in odd.message
    last = Submitted(np.ones(2, np.float32), b"odd")
    assert last.wait() == OK
    foldcast.barrier()
    foldcast.shutdown()
    assert Submitted(np.ones(2, np.float32), b"late").wait() == CLOSED
    assert {call.times for call in [early, *calls.values(), *unnamed, empty, unknown, odd, last]} == {1}


def test_through_the_table(ranks):
    ranks(2, through_the_table)
