"""What is taken as an array, and what comes back."""

import gc
import inspect
import pickle
import sys

import numpy as np
import pytest


def shapes_and_layouts(rank, size):
    import foldcast

    base = np.arange(24, dtype=np.float32)
    cases = [
        base.reshape(2, 3, 4),
        base.reshape(2, 3, 4).T,
        np.asfortranarray(base.reshape(4, 6)),
        base[::2],
        base[::-1],
        base.reshape(4, 6)[1:3, ::3],
        np.broadcast_to(base[:4], (5, 4)),
        base[:0].reshape(3, 0, 2),
        np.array(7, np.int16),
        base.view(type("Own", (np.ndarray,), {})).reshape(6, 4),
    ]
    for array in cases:
        result = foldcast.allreduce(array + array.dtype.type(rank))
        assert type(result) is np.ndarray and result.shape == array.shape and result.dtype == array.dtype
        assert result.flags.c_contiguous and result.flags.writeable
        assert np.array_equal(result, array * size + sum(range(size))), array
        frozen = array.copy("K")
        frozen.flags.writeable = False
        assert np.array_equal(foldcast.allreduce(frozen, "max"), array)

    # Ranks may differ in layout: elements meet by their index.
    matrix = np.arange(12, dtype=np.int64).reshape(3, 4)
    mine = np.asfortranarray(matrix) if rank % 2 else matrix
    assert np.array_equal(foldcast.allreduce(mine), matrix * size)

    # A column of a matrix into another part of it: near, but no overlap.
    table = np.ones((2, 4), np.float32)
    assert foldcast.allreduce(table[:, 0], out=table[0, 1:3]).tolist() == [size, size]
    assert table.tolist() == [[1, size, size, 1], [1, 1, 1, 1]]


def things_that_are_no_arrays(rank, size):
    import foldcast

    class Own:
        def __array__(self, dtype=None, copy=None):
            return np.full(3, 2, np.uint8)

    class Exchanged:
        def __dlpack__(self, **options):
            return np.full(3, 5, np.int32).__dlpack__(**options)

        def __dlpack_device__(self):
            return (1, 0)

    cases = [
        (3, "int64", ()),
        (2.5, "float64", ()),
        (np.float32(1.5), "float32", ()),
        ([1, 2, 3], "int64", (3,)),
        ([[1.0, 2.0], [3.0, 4.0]], "float64", (2, 2)),
        ((np.float16(1), np.float16(2)), "float16", (2,)),
        ([], "float64", (0,)),
        (range(4), "int64", (4,)),
        (memoryview(b"\1\2\3"), "uint8", (3,)),
        (Own(), "uint8", (3,)),
    ]
    if hasattr(np, "from_dlpack"):  # since numpy 1.22
        cases.append((Exchanged(), "int32", (3,)))
    for value, dtype, shape in cases:
        result = foldcast.allreduce(value)
        assert (type(result), result.dtype.name, result.shape) == (np.ndarray, dtype, shape), value
        wanted = np.from_dlpack(value) if isinstance(value, Exchanged) else np.asarray(value)
        assert np.array_equal(result, wanted * size), value


def keyword_and_positional(rank, size):
    import foldcast

    array = np.arange(3, dtype=np.int32) + rank
    assert foldcast.allreduce(array, "max").tolist() == [size - 1, size, size + 1]
    assert foldcast.allreduce(array=array, reduction="min", group=None, name=None, timeout=None).tolist() == [0, 1, 2]
    assert foldcast.allreduce(array, group="hccl_world_group", timeout=float("inf")).tolist() == [
        size * i + sum(range(size)) for i in range(3)
    ]
    # A name that is no literal of the program.
    assert foldcast.allreduce(array, **{"".join("red uction".split()): "max"})[0] == size - 1


def wrong_arguments(rank, size):
    """They are refused in Python's own words, and nothing is kept of them."""
    import foldcast

    array = np.arange(3, dtype=np.float32)
    out = np.empty_like(array)
    for function in (foldcast.allreduce, foldcast.allreduce_async):
        for by_position, by_name, said in [
            ((), {}, "missing 1 required positional argument: 'array'"),
            ((), {"out": out}, "missing 1 required positional argument: 'array'"),
            ((array, "sum", out), {}, "takes from 1 to 2 positional arguments but 3 were given"),
            ((array,), {"array": array}, "got multiple values for argument 'array'"),
            ((array, "sum"), {"reduction": "sum"}, "got multiple values for argument 'reduction'"),
            ((array,), {"outt": out}, "got an unexpected keyword argument 'outt'"),
            ((array,), {"out": out, "o u t": out}, "got an unexpected keyword argument 'o u t'"),
        ]:
            with pytest.raises(TypeError) as told:
                function(*by_position, **by_name)
            assert str(told.value) == f"{function.__name__}() {said}"
        before = [sys.getrefcount(each) for each in (array, out)]
        for _ in range(100):
            function(array, "sum", out=out, name="n", timeout=3.0)
            with pytest.raises(foldcast.InvalidArgumentError, match="reduction"):
                function(array, "mean", out=out)
        gc.collect()
        assert [sys.getrefcount(each) for each in (array, out)] == before
        assert inspect.signature(function).parameters["out"].kind is inspect.Parameter.KEYWORD_ONLY
        assert pickle.loads(pickle.dumps(function)) is function and function.__doc__.startswith(("Reduce", "Begin"))


def test_shapes_and_layouts(ranks):
    ranks(3, shapes_and_layouts)


def test_things_that_are_no_arrays(ranks):
    ranks(2, things_that_are_no_arrays)


def test_keyword_and_positional(ranks):
    ranks(2, keyword_and_positional)


def test_wrong_arguments(ranks):
    ranks(1, wrong_arguments)
