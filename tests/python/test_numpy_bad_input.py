"""Bad arguments: the right class, a message that says what is wrong, and the next correct call works."""

import mmap
import resource

import numpy as np

TWELVE = "int8, int16, int32, int64, uint8, uint16, uint32, uint64, float16, bfloat16, float32, float64"


def read_only():
    array = np.zeros(4, np.float32)
    array.flags.writeable = False
    return array


def argument_cases(foldcast):
    """(arguments, keywords, field of the error, words that its text must have)"""
    a = np.zeros(4, np.float32)
    big = np.zeros(10, np.float32)
    return [
        ([np.ones(3, bool)], {}, "dtype", ["bool", TWELVE]),
        ([np.ones(3, complex)], {}, "dtype", ["complex128", TWELVE]),
        ([np.array(["a"])], {}, "dtype", ["<U1", TWELVE]),
        ([np.ones(3, np.longdouble)], {}, "dtype", ["float128", TWELVE]),
        ([np.array([1, None])], {}, "dtype", ["object", TWELVE]),
        ([np.zeros(3, "M8[s]")], {}, "dtype", ["datetime64[s]", TWELVE]),
        ([np.zeros(3, [("x", "i4")])], {}, "dtype", ["x", TWELVE]),
        ([a.astype(">f4")], {}, "dtype", [">f4", "byte order"]),
        ([[a, a]], {}, "array", ["one array", "list"]),
        ([(a,)], {}, "array", ["one array", "tuple"]),
        ([[[1, 2], [a]]], {}, "array", ["one array", "numpy.ndarray"]),
        ([[np.array(1)]], {}, "array", ["one array"]),
        ([None], {}, "array", ["NoneType"]),
        ([object()], {}, "array", ["object"]),
        ([{1: 2}], {}, "array", ["dict"]),
        ([[[1], [2, 3]]], {}, "array", ["list"]),
        (["text"], {}, "dtype", ["<U4"]),
        ([np.ma.array([1, 2])], {}, "array", ["mask"]),
        ([a, "avg"], {}, "reduction", ["'avg'", "sum, max, min, prod"]),
        ([a, "SUM"], {}, "reduction", ["'SUM'", "sum, max, min, prod"]),
        ([a, 1], {}, "reduction", ["1", "sum, max, min, prod"]),
        ([a], {"out": [0, 0, 0, 0]}, "out", ["numpy.ndarray", "[0, 0, 0, 0]"]),
        ([a], {"out": np.zeros(4)}, "out", ["float32", "float64"]),
        ([a], {"out": a.astype(">f4")}, "out", ["float32", ">f4"]),
        ([a], {"out": np.zeros(5, np.float32)}, "out", ["(4,)", "(5,)"]),
        ([a], {"out": np.zeros((4, 1), np.float32)}, "out", ["(4,)", "(4, 1)"]),
        ([a], {"out": read_only()}, "out", ["writeable"]),
        ([a], {"out": np.zeros(8, np.float32)[::2]}, "out", ["C-contiguous"]),
        ([big[:5]], {"out": big[2:7]}, "out", ["overlap"]),
        ([big[2:7]], {"out": big[:5]}, "out", ["overlap"]),
        ([big[::2]], {"out": big[:5]}, "out", ["overlap"]),
        ([a], {"group": 7}, "group", ["7"]),
        ([a], {"group": ""}, "group", ["1 to 127 bytes"]),
        ([a], {"group": "g" * 128}, "group", ["1 to 127 bytes", "128 bytes"]),
        ([a], {"name": ""}, "name", ["''"]),
        ([a], {"name": 3}, "name", ["3"]),
        ([a], {"timeout": 0}, "timeout", ["0"]),
        ([a], {"timeout": -1.5}, "timeout", ["-1.5"]),
        ([a], {"timeout": float("nan")}, "timeout", ["nan"]),
        ([a], {"timeout": "soon"}, "timeout", ["'soon'"]),
    ]


def bad_arguments(rank, size):
    import foldcast

    for arguments, keywords, field, words in argument_cases(foldcast):
        for call in (foldcast.allreduce, foldcast.allreduce_async):
            try:
                call(*arguments, **keywords)
            except foldcast.InvalidArgumentError as error:
                text = str(error)
                assert isinstance(error, ValueError) and isinstance(error, foldcast.FoldcastError)
                assert error.field == field, (text, error.field)
                assert (error.rank, error.op, error.elapsed) == (rank, "allreduce", None), text
                assert error.expected in text and error.got in text, text
                assert text.startswith(f"rank {rank}: allreduce"), text
                for word in words:
                    assert word.lower() in text.lower(), f"{word!r} is not in: {text}"
            else:
                raise AssertionError(f"not refused: {arguments} {keywords}")
        assert foldcast.allreduce([1.0, rank]).tolist() == [size, sum(range(size))]


def more_than_8_gib(rank, size):
    import foldcast

    limit = 8 << 30
    memory = mmap.mmap(-1, limit + 4)  # no page of it exists before it is touched
    array = np.frombuffer(memory, np.float32)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    views = [array, np.frombuffer(memory, np.uint8)[: limit + 1], np.broadcast_to(array[:1], (1 << 50, 1 << 9))]
    for view in [*views, array[::-1]]:
        for keywords in [{}, {"out": view}]:
            try:
                foldcast.allreduce(view, **keywords)
            except foldcast.InvalidArgumentError as error:
                assert error.field == "array"
                assert "8 GiB" in str(error) and f"{view.dtype.itemsize * view.size} bytes" in str(error), str(error)
            else:
                raise AssertionError("not refused")
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 1 << 18, f"{grown_kib} KiB were touched"
    assert foldcast.allreduce(np.ones(2)).tolist() == [size, size]


def test_bad_arguments(ranks):
    ranks(2, bad_arguments)


def test_more_than_8_gib(ranks):
    ranks(2, more_than_8_gib)
