"""foldcast.broadcast and foldcast.allgather: bits, shapes, ways of calling, and what is refused."""

import signal

import pytest


def every_dtype(rank, size):
    """Bits are moved: NaNs keep their payloads. Returns a digest of what all ranks must have alike."""
    import zlib

    import _oracle
    import foldcast
    import numpy as np

    digest = 0
    # On many ranks one of each size in bytes.
    for name in _oracle.DTYPES if size < 8 else ["uint8", "bfloat16", "float32", "int64"]:
        for shape in [(0,), (3, 0, 2), (1,), (5, 3), (1027,), (40, 1000)]:
            count = int(np.prod(shape))
            kind = _oracle.dtype(name)
            # Random bytes: among floats these are NaNs with payloads too.
            inputs = [
                np.frombuffer(np.random.default_rng([r, count]).bytes(count * kind.itemsize), kind).reshape(shape)
                for r in range(size)
            ]
            mine, root = inputs[rank], count % size
            joined = np.concatenate(inputs)
            out, both = np.empty(shape, kind), mine.copy()
            found = [
                foldcast.broadcast(mine, root),
                foldcast.broadcast(mine, root, out=out),
                foldcast.broadcast(both, root, out=both),
                foldcast.broadcast(mine, root=root, name="x"),
                foldcast.broadcast_async(mine, root).wait(),
                foldcast.broadcast_async(mine, root, name="x").wait(),
            ]
            assert found[1] is out and found[2] is both
            for result in found:
                assert same(result, inputs[root]), (name, shape)
            long, place = np.empty(joined.shape, kind), np.empty(joined.shape, kind)
            own = place[rank * shape[0] : (rank + 1) * shape[0]]
            own[...] = mine
            found = [
                foldcast.allgather(mine),
                foldcast.allgather(mine, out=long),
                foldcast.allgather(own, out=place),
                foldcast.allgather(mine, name="x"),
                foldcast.allgather_async(mine).wait(),
                foldcast.allgather_async(own, out=place, name="x").wait(),
                foldcast.allgather(mine, equal=False),
                foldcast.allgather(mine, equal=False, name="x"),
            ]
            assert found[1] is long and found[2] is place
            for result in found:
                assert same(result, joined), (name, shape)
            digest = zlib.crc32(joined.tobytes(), zlib.crc32(inputs[root].tobytes(), digest))
    return digest


def same(result, expected):
    import _oracle

    fits = result.dtype == expected.dtype and result.shape == expected.shape and result.flags.c_contiguous
    return fits and (_oracle.bits(result) == _oracle.bits(expected)).all()


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_every_dtype(ranks, size):
    assert len(set(ranks(size, every_dtype).results)) == 1


def shapes_and_inputs(rank, size):
    import foldcast
    import numpy as np

    # First dimensions that differ, 0 among them.
    for width in [(), (3,), (2, 0), (4, 1000)]:
        lengths = [(r * 7) % 5 for r in range(size)]
        pieces = [np.full((length, *width), r, np.int16) for r, length in enumerate(lengths)]
        found = foldcast.allgather(pieces[rank], equal=False)
        assert found.shape == (sum(lengths), *width) and np.array_equal(found, np.concatenate(pieces))

    # Whatever the strides, and what is no array.
    strided = np.arange(24.0).reshape(4, 6)[::2, ::-3] + rank
    for given in (strided, strided.T, np.broadcast_to(np.float32(rank), (3, 2))):
        every = [given - rank + r for r in range(size)]
        assert np.array_equal(foldcast.allgather(given), np.concatenate(every))
        assert np.array_equal(foldcast.allgather(given, equal=False), np.concatenate(every))
        assert np.array_equal(foldcast.broadcast(given, size - 1), every[-1])
    assert foldcast.allgather([rank, -rank]).tolist() == [x for r in range(size) for x in (r, -r)]
    assert foldcast.broadcast(rank + 5, size - 1) == size + 4

    # A number is broadcast, and has nothing to stand behind one another.
    number = foldcast.broadcast(np.float32(rank + 1))
    assert number.shape == () and number == 1
    for bad in (3.0, np.array(3)):
        with_error(foldcast.InvalidArgumentError, ["array", "at least one dimension"], foldcast.allgather, bad)

    # Many calls in flight, named and not; big and small.
    handles = [foldcast.broadcast_async(np.full(5, rank + i), i % size) for i in range(300)]
    handles += [foldcast.allgather_async(np.full(1 + i % 3, rank + i)) for i in range(300)]
    for i, handle in enumerate(handles[:300]):
        assert handle.wait().tolist() == [i % size + i] * 5
    for i, handle in enumerate(handles[300:]):
        assert handle.wait().tolist() == [r + i for r in range(size) for _ in range(1 + i % 3)]
    for i in range(2000):
        assert foldcast.broadcast(np.full(3, rank * i), i % size)[0] == i % size * i
    order = range(50) if rank % 2 else reversed(range(50))
    handles = {i: foldcast.allgather_async([rank * i], name=f"n{i}") for i in order}
    assert all(handle.wait().tolist() == [r * i for r in range(size)] for i, handle in handles.items())
    big = np.arange(4 << 20, dtype=np.float32)  # 16 MiB
    assert np.array_equal(foldcast.broadcast(big * (rank + 1), size - 1), big * size)
    found = foldcast.allgather(big * (rank + 1))
    assert all(np.array_equal(found[r * len(big) : (r + 1) * len(big)], big * (r + 1)) for r in range(size))


def with_error(kind, words, call, *arguments, **keywords):
    try:
        call(*arguments, **keywords)
    except kind as error:
        assert all(word in str(error) for word in words), str(error)
        return error
    raise AssertionError(f"no {kind.__name__}")


@pytest.mark.parametrize("size", [1, 2, 4])
def test_shapes_inputs_and_sizes(ranks, size):
    ranks(size, shapes_and_inputs)


def disagreements(rank, size):
    import foldcast
    import numpy as np

    odd = rank == size - 1
    mine = np.zeros(6, np.float32)
    other = size - 1 if odd else 0

    def wrong():
        yield "root", lambda **names: foldcast.broadcast(mine, other, **names), "rank"
        yield "count", lambda **names: foldcast.broadcast(mine[: 6 - odd], 0, **names), "elements"
        yield "dtype", lambda **names: foldcast.broadcast(mine.astype([np.float32, np.int32][odd]), **names), "int32"
        yield "kind", lambda **names: (foldcast.allgather if odd else foldcast.broadcast)(mine, **names), "allgather"
        yield "count", lambda **names: foldcast.allgather(mine[: 6 - odd], **names), "elements"
        yield "dtype", lambda **names: foldcast.allgather(mine.astype([np.float32, np.int32][odd]), **names), "int32"
        # Rows of one number, but not of one size.
        rows = np.zeros((2, 3 + odd), np.float32)
        yield None, lambda **names: foldcast.allgather(rows, equal=False, **names), "parts"

    for number, (field, call, word) in enumerate(wrong()):
        for names in ({}, {"name": f"n{number}"}):
            error = with_error(foldcast.MismatchError, ["disagree", "rank 0", f"rank {size - 1}"], call, **names)
            assert field is None or error.field == field, str(error)
            assert error.op in ("broadcast", "allgather") and (word in str(error) or field is None), str(error)
            assert foldcast.allgather([rank], **names).tolist() == list(range(size))
    return number


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_that_disagree_are_told_and_go_on(ranks, size):
    assert ranks(size, disagreements).results == [6] * size


def refusals(rank, size):
    import foldcast
    import numpy as np

    mine = np.zeros((2, 3), np.float32)
    invalid = foldcast.InvalidArgumentError
    for root in (size, -1, "0", 1.5, True, 1 << 70):
        error = with_error(
            invalid, ["root", f"0 to {size - 1}", repr(root), "broadcast"], foldcast.broadcast, mine, root
        )
        assert (error.field, error.op, error.rank) == ("root", "broadcast", rank)
    long = np.zeros((2 * size, 3), np.float32)
    read_only = long.copy()
    read_only.flags.writeable = False
    for out, words in [
        (mine.copy(), [f"({2 * size}, 3)", "(2, 3)"]),
        (long.astype(np.float64), ["float32", "float64"]),
        (read_only, ["writeable"]),
        (np.zeros((3, 2 * size), np.float32).T, ["C-contiguous"]),
        ("out", ["numpy.ndarray"]),
    ]:
        for call in (foldcast.allgather, foldcast.allgather_async):
            assert with_error(invalid, words, call, mine, out=out).field == "out"
    # Overlapping, and not where this rank's part stands.
    one = 1 if rank == 0 else 0
    with_error(invalid, ["out", "overlap"], foldcast.allgather, long[one : one + 2], out=long)
    with_error(invalid, ["out", "overlap"], foldcast.allgather, long[::size], out=long)
    with_error(invalid, ["out", "equal=False"], foldcast.allgather, mine, equal=False, out=long)
    for call in (foldcast.broadcast, foldcast.allgather):
        with_error(invalid, ["array", "list"], call, [mine, mine])
        with_error(invalid, ["dtype", "bool"], call, mine > 0)
        with_error(invalid, ["name"], call, mine, name="")
        with_error(invalid, ["timeout"], call, mine, timeout=0)
        with_error(foldcast.NotInGroupError, ["'nobody'", f"rank {rank}"], call, mine, group="nobody")
    # Nothing was lost; groups; roots are ranks in the group.
    group = foldcast.new_group(range(1, size), "others")
    for call in (foldcast.broadcast, foldcast.allgather, foldcast.broadcast_async, foldcast.allgather_async):
        if rank == 0:
            with_error(foldcast.NotInGroupError, ["'others'", "rank 0"], call, mine, group=group)
    if rank == 0:
        with_error(foldcast.NotInGroupError, ["'others'"], foldcast.allgather, mine, equal=False, group=group)
    else:
        assert group.allgather([rank]).tolist() == list(range(1, size))
        assert group.allgather_async([rank]).wait().tolist() == list(range(1, size))
        assert group.allgather([rank] * rank, equal=False).tolist() == [r for r in range(1, size) for _ in range(r)]
        assert group.broadcast([rank]).tolist() == [1]
        assert group.broadcast_async([rank], size - 2).wait().tolist() == [size - 1]
    assert foldcast.broadcast([rank], size - 1).tolist() == [size - 1]
    # A product says what it takes of an allreduce, and nothing of moves.
    foldcast.set_product("atlas-a2")
    assert foldcast.broadcast(np.array([rank], np.uint16), 1).tolist() == [1]
    foldcast.shutdown()
    with_error(foldcast.ClosedError, ["closed"], foldcast.allgather, mine)


def test_bad_arguments_are_refused_and_lose_nothing(ranks):
    ranks(3, refusals)


def with_a_victim(rank, size):
    """Rank 1 dies while all others are in a broadcast of 16 MiB from it, again and again."""
    import foldcast
    import numpy as np
    from _ranks import ready, report

    array = np.zeros(4 << 20, np.float32)
    foldcast.broadcast(array, 1)
    ready("running")
    try:
        while True:
            foldcast.broadcast(array, 1, out=array)
    except foldcast.RankDiedError as error:
        report([error.op, error.rank, str(error)])
    with_error(foldcast.GroupAbortedError, ["rank 1"], foldcast.allgather, array[:1])


def test_a_killed_root_ends_the_broadcast_of_the_others(ranks):
    with ranks.start(3, with_a_victim, launcher=["--keep-going"]) as job:
        for rank in range(3):
            job.wait_ready(rank, "running")
        job.kill(1, signal.SIGKILL)
        job.finish(expect=None)
    assert "Traceback" not in job.stderr, job.stderr
    for rank in (0, 2):
        op, culprit, text = job.results[rank]
        assert (op, culprit) == ("broadcast", 1) and "SIGKILL" in text, text


def late(rank, size):
    import time

    import foldcast

    foldcast.allgather([rank])
    if rank == 1:
        time.sleep(3)
        return None
    error = with_error(foldcast.DeadlineError, ["rank 1", "allgather"], foldcast.allgather, [rank], timeout=0.5)
    return error.rank


def test_a_late_rank_is_named_at_the_deadline(ranks):
    assert ranks(2, late, expect=None).results[0] == 1
