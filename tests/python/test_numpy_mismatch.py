"""Ranks that call with different things: all of them are told, and the next correct call works."""

import numpy as np

LARGE = 300_000


def disagreements(rank, size):
    import foldcast

    def usual(count, **keywords):
        return lambda: foldcast.allreduce(np.full(count, rank, np.float32), **keywords)

    def odd_calls(count):
        yield "count", usual(count + 1), (str(count), str(count + 1))
        yield "count", usual(0), (str(count), "0")
        yield "dtype", lambda: foldcast.allreduce(np.zeros(count, np.int32)), ("float32", "int32")
        yield "reduction", usual(count, reduction="max"), ("sum", "max")
        yield "kind", foldcast.barrier, ("allreduce", "barrier")

    seen = 0
    for count in (1, 500, LARGE):
        for odd in range(size):
            for field, odd_call, values in odd_calls(count):
                out = np.zeros(count, np.float32)
                where = f"rank {rank}: {field}, rank {odd} of {size} odd, {count} elements"
                try:
                    odd_call() if rank == odd else usual(count, out=out)()
                except foldcast.MismatchError as error:
                    check(error, rank, size, odd, field, values, where)
                    seen += 1
                else:
                    raise AssertionError(f"no mismatch: {where}")
                result = foldcast.allreduce(np.full(count, rank, np.float32))
                assert (result == sum(range(size))).all(), where
    return seen


def check(error, rank, size, odd, field, values, where):
    text = str(error)
    assert error.field == field, f"{where}: {text}"
    assert (error.op, error.group) == (
        "barrier" if field == "kind" and rank == odd else "allreduce",
        "hccl_world_group",
    )
    assert error.rank == (min(set(range(size)) - {odd}) if rank == odd else odd), f"{where}: {error.rank}, {text}"
    own, others = (values[1], values[0]) if rank == odd else values
    assert error.expected.startswith(own) and error.got.startswith(others), f"{where}: {text}"
    assert error.elapsed >= 0 and f"rank {rank}: " in text and field in text, f"{where}: {text}"
    for each in range(size):
        assert f"rank {each}" in text.split("disagree")[1], f"{where}: {text}"


def in_groups_and_named(rank, size):
    import foldcast

    group = foldcast.new_group(range(size), "g")
    for number in range(10):
        array = np.zeros(5 + (rank == number % size), np.float32)
        for call in (
            lambda: group.allreduce(array),  # noqa: B023
            lambda: foldcast.allreduce(array, name="named"),  # noqa: B023
            lambda: foldcast.allreduce_async(array).wait(),  # noqa: B023
        ):
            try:
                call()
            except foldcast.MismatchError as error:
                assert error.field == "count" and "5 elements" in str(error) and "6 elements" in str(error)
            else:
                raise AssertionError("no mismatch")
        assert group.allreduce([1]).tolist() == [size]
        assert foldcast.allreduce([1], name="named").tolist() == [size]


def test_2_ranks(ranks):
    assert ranks(2, disagreements).results == [30] * 2


def test_3_ranks(ranks):
    assert ranks(3, disagreements).results == [45] * 3


def test_5_ranks(ranks):
    assert ranks(5, disagreements).results == [75] * 5


def test_in_groups_and_named(ranks):
    ranks(3, in_groups_and_named)
