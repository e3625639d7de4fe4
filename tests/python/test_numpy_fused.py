"""foldcast.allreduce_fused: lists of arrays, bit for bit as single calls."""

import numpy as np
import pytest


def lists():
    """Lists of lengths: empty, small, large, and around the sizes at which something changes."""
    return [[], [0], [1], [0, 0], [1] * 160, [5, 0, 7], [511, 512, 513], [8191, 8192, 70_001, 3]]


def arrays(rank, lengths, dtype, salt=0):
    random = np.random.default_rng(1000 * rank + salt)
    return [(random.standard_normal(length) * 1000).astype(dtype) for length in lengths]


def as_single_calls(rank, size):
    import foldcast

    for salt, lengths in enumerate(lists()):
        for dtype in ("float32", "float16", "int8", "float64"):
            for reduction in ("sum", "max"):
                given = arrays(rank, lengths, dtype, salt)
                wanted = [foldcast.allreduce(array, reduction).tobytes() for array in given]
                results = foldcast.allreduce_fused(given, reduction)
                assert [result.tobytes() for result in results] == wanted
                assert [result.dtype.name for result in results] == [dtype] * len(lengths)
                out = [np.empty_like(array) for array in given]
                returned = foldcast.allreduce_fused(tuple(given), reduction, out=out, name="named")
                assert all(one is other for one, other in zip(returned, out)) and isinstance(returned, list)
                assert [result.tobytes() for result in out] == wanted
                handle = foldcast.allreduce_fused_async(given, reduction, out=given)
                assert [result.tobytes() for result in handle.wait()] == wanted
                assert [array.tobytes() for array in given] == wanted, "in place"
    group = foldcast.new_group(range(size), "own")
    assert [int(result[0]) for result in group.allreduce_fused([np.array([rank]), [1]])] == [sum(range(size)), size]
    handles = [
        group.allreduce_fused_async([np.array([n, rank])], name=f"h{n}")
        for n in (range(6) if rank else range(5, -1, -1))
    ]
    order = range(6) if rank else range(5, -1, -1)
    assert all(handle.wait()[0].tolist() == [n * size, sum(range(size))] for n, handle in zip(order, handles))


def test_bits_are_those_of_single_calls(ranks):
    for size in (1, 2, 4):
        ranks(size, as_single_calls, timeout=300)


def several_dtypes(rank, size):
    import foldcast

    given = [
        array
        for length in (3, 700)
        for dtype in ("int32", "float32", "uint8")
        for array in arrays(rank, [length], dtype)
    ]
    given.append(np.asfortranarray(np.arange(12.0).reshape(3, 4)))
    wanted = [foldcast.allreduce(array) for array in given]
    results = foldcast.allreduce_fused(given)
    assert [(r.dtype, r.shape, r.tobytes()) for r in results] == [(w.dtype, w.shape, w.tobytes()) for w in wanted]
    handle = foldcast.allreduce_fused_async(given, name="all")
    assert [r.tobytes() for r in handle.wait()] == [w.tobytes() for w in wanted] and handle.done()
    assert [r.tobytes() for r in handle.wait()] == [w.tobytes() for w in wanted]
    # One rank waits where another submits: they are the same call, named or not.
    for name in ("mixed", None, "mixed"):
        if rank % 2:
            results = foldcast.allreduce_fused(given, name=name)
        else:
            results = foldcast.allreduce_fused_async(given, name=name).wait()
        assert [r.tobytes() for r in results] == [w.tobytes() for w in wanted]
    assert foldcast.allreduce([1]).tolist() == [size]


def outputs_over_scattered_inputs(rank, size):
    import foldcast

    memory = np.arange(40, dtype=np.float32)
    given = [np.arange(20, dtype=np.float32)[::2] + rank, memory[20:][::2]]
    wanted = [
        array * size if at else np.arange(20, dtype=np.float32)[::2] * size + sum(range(size))
        for at, array in enumerate(given)
    ]
    out = [memory[20:30], np.zeros(10, np.float32)]
    given[0] = np.repeat(given[0], 2)[::2]
    assert not given[0].flags.c_contiguous and not given[1].flags.c_contiguous
    results = foldcast.allreduce_fused(given, out=out)
    assert [result.tolist() for result in results] == [array.tolist() for array in wanted]


def test_outputs_over_scattered_inputs(ranks):
    ranks(2, outputs_over_scattered_inputs)


def test_several_dtypes(ranks):
    for size in (1, 2):
        ranks(size, several_dtypes)


def lists_that_differ(rank, size):
    import foldcast

    one, two = np.ones(4, np.float32), np.ones(4, np.int32)
    odd = rank == 1
    cases = [
        ([one] * 3, [one] * 2),
        ([one, np.ones(5, np.float32)], [np.ones(5, np.float32), one]),
        ([one], []),
        ([one, two], [one]),  # Found before the call of the first dtype has run.
        ([one, two, one], [one, one, two]),
        ([one, two], [two, one]),
    ]
    for call in (foldcast.allreduce_fused, lambda lists: foldcast.allreduce_fused_async(lists).wait()):
        for lists in cases:
            with pytest.raises(foldcast.MismatchError, match="stays usable"):
                call(lists[odd])
            assert [result.tolist() for result in call([one, one])] == [[size] * 4] * 2
    foldcast.barrier()


def bad_lists(rank, size):
    import foldcast

    base = np.zeros(8, np.float32)
    good = [np.ones(3, np.float32), np.ones(2, np.float32)]
    cases = [
        ((np.ones((2, 2)),), {}, ["arrays: expected a list of arrays"]),
        (("text",), {}, ["arrays: expected a list of arrays"]),
        (({"a": good[0]},), {}, ["arrays: expected a list of arrays"]),
        ((5,), {}, ["arrays: expected a list of arrays", "5"]),
        (([good[0], None],), {}, ["array 1 of the list"]),
        (([good[0], np.array(["x"])],), {}, ["dtype 1 of the list"]),
        ((good, "mean"), {}, ["reduction", "'mean'"]),
        ((good,), {"out": good[:1]}, ["out: expected 2 arrays", "1 arrays"]),
        ((good,), {"out": [good[0], np.ones(2, np.int32)]}, ["out 1 of the list", "float32"]),
        (([good[1], good[1]],), {"out": [base[:2], base[1:3]]}, ["out 1 of the list", "overlaps with out 0"]),
        (
            ([base[:2], base[4:6]],),
            {"out": [base[4:6], np.empty(2, np.float32)]},
            ["out 0 of the list", "overlaps with array 1"],
        ),
        ((good,), {"name": ""}, ["name"]),
    ]
    for arguments, options, words in cases:
        for call in (foldcast.allreduce_fused, foldcast.allreduce_fused_async):
            with pytest.raises(foldcast.InvalidArgumentError) as caught:
                call(*arguments, **options)
            assert all(word in str(caught.value) for word in words), caught.value
    # Buffers next to each other do not overlap, and inputs may.
    out = [base[:2], base[2:4]]
    assert [r.tolist() for r in foldcast.allreduce_fused([good[1], good[1]], out=out)] == [[size, size]] * 2
    assert base.tolist() == [size] * 4 + [0] * 4


def test_bad_lists(ranks):
    for size in (1, 2):
        ranks(size, bad_lists)


def test_lists_that_differ(ranks):
    ranks(2, lists_that_differ)
