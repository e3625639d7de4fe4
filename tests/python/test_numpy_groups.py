"""Groups: their ranks, their life, their independence."""

import numpy as np


def refused(foldcast, error, call, *words):
    try:
        call()
    except error as found:
        text = str(found)
        for word in words:
            assert word in text, f"{word!r} is not in: {text}"
        return found
    raise AssertionError(f"no {error.__name__}")


def members_and_names(rank, size):
    import foldcast

    group = foldcast.new_group([3, 0, 2], "some")
    assert (group.name, group.ranks, group.size) == ("some", (0, 2, 3), 3)
    assert group.rank == {0: 0, 1: -1, 2: 1, 3: 2}[rank]
    assert "some" in repr(group) and "[0, 2, 3]" in repr(group)
    for value in (np.array([0, 1]), (1, 0), range(2), iter([0, 1]), {0, 1}):
        other = foldcast.new_group(value)
        assert other.ranks == (0, 1) and 1 <= len(other.name.encode()) <= 127
        if rank < 2:
            assert other.allreduce([1]).tolist() == [2]
        other.destroy()

    if group.rank >= 0:
        for way in (
            lambda array: group.allreduce(array, "sum"),
            lambda array: foldcast.allreduce(array, group=group),
            lambda array: foldcast.allreduce(array, group="some"),
            lambda array: foldcast.allreduce_async(array, group="some", name="n").wait(),
            lambda array: group.allreduce_async(array, out=np.empty(1, np.int64)).wait(),
        ):
            assert way(np.array([10**rank])).tolist() == [1101]
        group.barrier()
        foldcast.barrier(group)
        foldcast.barrier("some", timeout=30)
    else:
        for call in (
            lambda: group.allreduce([1]),
            lambda: foldcast.allreduce([1], group="some"),
            lambda: foldcast.allreduce_async([1], group=group),
            group.barrier,
        ):
            error = refused(foldcast, foldcast.NotInGroupError, call, "rank 1", "'some'", "rank 0, rank 2, rank 3")
            assert isinstance(error, ValueError) and (error.rank, error.group) == (1, "some")
    error = refused(
        foldcast,
        foldcast.NotInGroupError,
        lambda: foldcast.allreduce([1], group="unknown"),
        f"rank {rank}",
        "'unknown'",
        "hccl_world_group",
    )
    assert (error.op, error.group) == ("allreduce", "unknown")

    for ranks, name in [
        ([], None),
        ([0, 0], None),
        ([0, size], None),
        ([-1], None),
        ([True], None),
        (["0"], None),
        ([0.5], None),
        (7, None),
        ([0], ""),
        ([0], "g" * 128),
        ([0], 5),
        ([0], "hccl_world_group"),
        ([0, 2], "some"),
    ]:
        error = refused(foldcast, foldcast.InvalidArgumentError, lambda: foldcast.new_group(ranks, name))  # noqa: B023
        assert error.field and error.expected and error.got, (ranks, name, str(error))
    longest = foldcast.new_group(range(size), "g" * 127)
    assert longest.allreduce([rank], "max").tolist() == [size - 1]
    assert foldcast.allreduce([1]).tolist() == [size]


def life(rank, size):
    import foldcast

    # The same name for disjoint groups, and again after destroy.
    for _ in range(3):
        half = foldcast.new_group([0, 1] if rank < 2 else [2, 3], "half")
        assert half.allreduce([rank], "sum").tolist() == [1 if rank < 2 else 5]
        half.destroy()
        refused(foldcast, foldcast.ClosedError, lambda: half.allreduce([1]))  # noqa: B023
        refused(foldcast, foldcast.NotInGroupError, lambda: foldcast.allreduce([1], group="half"), "half")
    whole = foldcast.new_group(range(size), "half")
    assert whole.allreduce([rank]).tolist() == [6]

    # Making a group waits for nobody.
    if rank == 0:
        foldcast.new_group([0, 1], "only here")


def independent(rank, size):
    import foldcast

    # Three ranks, three groups of two, each rank in another order: nobody waits in a circle.
    pairs = {pair: foldcast.new_group(pair, str(pair)) for pair in [(0, 1), (1, 2), (0, 2)]}
    order = {0: [(0, 1), (0, 2)], 1: [(1, 2), (0, 1)], 2: [(0, 2), (1, 2)]}[rank]
    for number in range(50):
        handles = [(pair, pairs[pair].allreduce_async(np.full(1 + 100 * number, rank))) for pair in order]
        for pair, handle in handles:
            assert (handle.wait() == sum(pair)).all()

    # A group that waits holds up no other.
    slow, quick = foldcast.new_group([0, 1, 2], "slow"), foldcast.new_group([0, 1], "quick")
    if rank < 2:
        waiting = slow.allreduce_async([rank])
        for number in range(20):
            assert quick.allreduce([number]).tolist() == [2 * number]
            assert quick.allreduce_async([number], name="named").wait().tolist() == [2 * number]
        assert not waiting.done()
    foldcast.barrier()  # so rank 2 comes last
    result = waiting.wait() if rank < 2 else slow.allreduce([rank])
    assert result.tolist() == [3]


def aborted(rank, size):
    import foldcast

    group, other = foldcast.new_group([0, 1, 2], "ended"), foldcast.new_group([0, 1, 2], "other")
    group.barrier()
    if rank == 0:
        foldcast.barrier()
        group.abort()
    else:
        pending = group.allreduce_async([1.0])
        foldcast.barrier()
        error = refused(foldcast, foldcast.GroupAbortedError, pending.wait, "rank 0", "abort")
        assert error.rank == 0 and error.group == "ended"
    error = refused(foldcast, foldcast.GroupAbortedError, lambda: group.allreduce([1.0]), "rank 0", "'ended'")
    refused(foldcast, foldcast.GroupAbortedError, group.barrier, "rank 0")
    assert error.rank == 0
    assert other.allreduce([1]).tolist() == [3]

    # The name is free again for a new group of the same ranks.
    group.destroy()
    assert foldcast.new_group([0, 1, 2], "ended").allreduce([rank]).tolist() == [3]

    # And everything at once.
    foldcast.barrier()
    if rank == 1:
        foldcast.abort()
    error = refused(foldcast, foldcast.GroupAbortedError, lambda: foldcast.allreduce([1]), "rank 1")
    assert error.rank == 1


def deadline(rank, size):
    import foldcast

    group = foldcast.new_group([0, 1, 2], "late")
    if rank == 0:
        error = refused(
            foldcast,
            foldcast.DeadlineError,
            lambda: group.allreduce([1], timeout=0.3),
            "rank 0",
            "rank 1",
            "rank 2",
            "0.3",
        )
        assert isinstance(error, TimeoutError) and error.rank == 1 and error.elapsed >= 0.3
        assert (error.op, error.group, error.tag) == ("allreduce", "late", "#1")
    foldcast.barrier()
    error = refused(foldcast, foldcast.GroupAbortedError, lambda: group.allreduce([1]), "deadline", "rank 0")
    assert error.rank == 1
    assert foldcast.new_group([0, 1, 2]).allreduce([1]).tolist() == [3]


def test_members_and_names(ranks):
    ranks(4, members_and_names)


def test_life(ranks):
    ranks(4, life)


def test_independent(ranks):
    ranks(3, independent)


def test_aborted(ranks):
    ranks(3, aborted)


def test_deadline(ranks):
    ranks(3, deadline)
