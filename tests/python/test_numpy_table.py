"""The table of C functions that the TensorFlow op library gets, called from C's side."""

import ctypes

import numpy as np

DONE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.POINTER(ctypes.c_char), ctypes.c_size_t)
OK, INVALID_ARGUMENT, NOT_IN_GROUP, MISMATCH, CLOSED = 0, 1, 2, 3, 8
INT32, FLOAT32, SUM, MAX = 3, 11, 1, 2


# What every call begins with.
_COMMON = (
    ("group", ctypes.c_char_p),
    ("group_len", ctypes.c_size_t),
    ("tag", ctypes.c_char_p),
    ("tag_len", ctypes.c_size_t),
    ("user", ctypes.c_void_p),
    ("done", DONE),
)


class Call(ctypes.Structure):
    _fields_ = (
        *_COMMON,
        ("dtype", ctypes.c_uint32),
        ("reduction", ctypes.c_uint32),
        ("input", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
    )


class Member(ctypes.Structure):
    _fields_ = (("input", ctypes.c_void_p), ("output", ctypes.c_void_p), ("bytes", ctypes.c_uint64))


class ListCall(ctypes.Structure):
    _fields_ = (
        *_COMMON,
        ("dtype", ctypes.c_uint32),
        ("reduction", ctypes.c_uint32),
        ("names", ctypes.c_char_p),
        ("names_len", ctypes.c_size_t),
        ("alone", ctypes.c_char_p),
        ("alone_len", ctypes.c_size_t),
        ("suffix", ctypes.c_char_p),
        ("suffix_len", ctypes.c_size_t),
        ("members", ctypes.POINTER(Member)),
        ("count", ctypes.c_size_t),
    )


class Table(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("submit", ctypes.CFUNCTYPE(None, ctypes.POINTER(Call))),
        ("split", ctypes.c_void_p),
        ("submit_list", ctypes.CFUNCTYPE(None, ctypes.POINTER(ListCall))),
        ("moves", ctypes.c_void_p),
    )


def the_table():
    from foldcast import _foldcast

    table = Table.from_address(_foldcast.table_address())
    assert (table.version, table.size) == (_foldcast.table_version, ctypes.sizeof(Table))
    return table


class Ended:
    """A call through the table, until it has ended."""

    def __init__(self):
        import threading

        self.ended = threading.Event()
        self.times = 0
        self.done = DONE(self.on_done)

    def on_done(self, user, code, message, length):
        assert user == 1234
        self.times += 1
        self.code, self.message = code, ctypes.string_at(message, length).decode() if length else ""
        self.ended.set()

    def wait(self):
        assert self.ended.wait(60)
        return self.code


class Submitted(Ended):
    """One call through the table."""

    def __init__(self, array, tag=b"", group=b"hccl_world_group", dtype=FLOAT32, reduction=SUM, in_place=False):
        super().__init__()
        self.array = array
        self.out = array if in_place else np.zeros_like(array)
        where, to = array.ctypes.data, self.out.ctypes.data
        common = (group, len(group), tag, len(tag), 1234, self.done)
        self.call = Call(*common, dtype, reduction, where, to, array.nbytes)
        the_table().submit(ctypes.byref(self.call))


class SubmittedList(Ended):
    """One call of a list, through the table: names and lengths; every other one in place."""

    def __init__(self, named, tag=b"set", fill=1, group=b"hccl_world_group", alone=b""):
        super().__init__()
        self.arrays = [np.full(length, fill + at, np.float32) for at, length in enumerate(named.values())]
        self.outs = [array if at % 2 else np.zeros_like(array) for at, array in enumerate(self.arrays)]
        names = "\n".join(named).encode()
        pairs = [(array.ctypes.data, out.ctypes.data, array.nbytes) for array, out in zip(self.arrays, self.outs)]
        members = (Member * len(pairs))(*pairs)
        common = (group, len(group), tag, len(tag), 1234, self.done)
        call = ListCall(*common, FLOAT32, SUM, names, len(names), alone, len(alone), b"", 0, members, len(pairs))
        # Strings and members are read before this returns.
        the_table().submit_list(ctypes.byref(call))


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


LENGTHS = {f"grad_{at}": 1 + at * at * 37 for at in range(12)}


def agree(size, lengths=LENGTHS):
    call = SubmittedList(lengths)
    assert call.wait() == OK, call.message
    assert [out[-1] for out in call.outs if out.size] == [
        size * (1 + at) for at, out in enumerate(call.outs) if out.size
    ]


def lists_through_the_table(rank, size):
    import foldcast

    foldcast.init()
    agree(size)
    for lengths in ({}, {"empty": 0}, {"one": 1}, {"a": 0, "b": 5, "c": 0}, {f"n{at}": 3 for at in range(400)}):
        agree(size, lengths)
    several = [SubmittedList(LENGTHS, b"set %d" % n, n) for n in (range(8) if rank else range(7, -1, -1))]
    assert [call.wait() for call in several] == [OK] * 8
    odd = size - 1
    said = []
    for place in (0, 6, 11):
        lengths = {name: length for at, (name, length) in enumerate(LENGTHS.items()) if rank != odd or at != place}
        said.append(
            (lengths, f"only rank 0 has 'grad_{place}'" if size == 2 else f"missing on rank {odd}: 'grad_{place}'")
        )
    renamed = {name.replace("grad_3", "other") if rank == odd else name: length for name, length in LENGTHS.items()}
    said.append((renamed, f"only rank {odd} has 'other'"))
    longer = {name: length + (rank == odd and name == "grad_2") for name, length in LENGTHS.items()}
    said.append((longer, f"'grad_2' has 149 elements on rank 0 and 150 on rank {odd}"))
    many = {f"n{at}": 1 for at in range(3 + 9 * (rank == odd))}
    said.append((many, f"only rank {odd} has 'n3', 'n4', 'n5', 'n6', 'n7' and 4 more"))
    for tag in (b"set", b""):
        for lengths, words in said:
            call = SubmittedList(lengths, tag)
            assert call.wait() == MISMATCH
            assert words in call.message and "stays usable" in call.message, call.message
            agree(size)
    foldcast.barrier()


def test_lists_through_the_table(ranks):
    for size in (2, 3):
        ranks(size, lists_through_the_table)


def differs_from_a_list(rank):
    """Rank 0 has a list, the others a call by its tag that is none of the table's: so they have no names to tell."""
    import foldcast

    if rank == 0:
        call = SubmittedList({"a": 4})
        assert call.wait() == MISMATCH
        return call.message
    try:
        foldcast.allreduce(np.ones(4, np.float32), name="set")
    except foldcast.MismatchError as error:
        return str(error)
    raise AssertionError("no mismatch")


def names_that_never_come(rank, size):
    import foldcast

    foldcast.init()
    message = differs_from_a_list(rank)
    assert rank > 0 or "did not answer within 5 s" in message, message
    foldcast.barrier()
    assert foldcast.allreduce(np.ones(1, np.float32), name="later").tolist() == [size]


def test_names_that_never_come_do_not_end_the_group(ranks):
    ranks(2, names_that_never_come)


def names_of_the_dead(rank, size):
    import os

    import foldcast

    foldcast.init()
    message = differs_from_a_list(rank)
    if rank == 1:
        os._exit(0)
    assert "rank 1" in message and "could not be compared" in message, message


def alone_through_the_table(rank, size):
    """A list on rank 0, what stands for it alone on the others: at the same tag, and at one that the list claims."""
    import foldcast

    foldcast.init()
    for tag, claims in ((b"set", b""), (b"alone", b"alone\nother")):
        if rank == 0:
            call = SubmittedList({"a": 4}, alone=claims)
        else:
            call = Submitted(np.ones(4, np.float32), tag)
        assert call.wait() == MISMATCH, call.message
        assert "disagree in fused set" in call.message and f"'{tag.decode()}' alone" in call.message, call.message
        agree(size)
    foldcast.barrier()


def test_lists_and_what_stands_for_them_alone(ranks):
    for size in (2, 3):
        ranks(size, alone_through_the_table)


def test_a_rank_that_dies_instead_of_telling_its_names(ranks):
    ranks(2, names_of_the_dead, timeout=60)
