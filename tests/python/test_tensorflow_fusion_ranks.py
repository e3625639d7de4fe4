"""Fusion between real ranks: the split strategies, and ranks whose graphs differ."""

import pytest


def gradients_by_strategy(rank, size):
    """Gradients, by default and by each kind of strategy: how many launches, and the right sums."""
    import numpy as np
    import tensorflow as tf
    from foldcast.tensorflow import allreduce, fusion_report
    from hccl.split.api import set_split_strategy_by_idx, set_split_strategy_by_size

    def step(count):
        inputs = [tf.fill([1 + at % 7], float(at + rank)) for at in range(count)]
        results = tf.function(lambda tensors: [allreduce(tensor) for tensor in tensors])(inputs)
        for at, result in enumerate(results):
            assert np.all(result.numpy() == size * at + sum(range(size))) and result.shape == (1 + at % 7,)
        return [len(launch["members"]) for launch in fusion_report(clear=True)]

    found = [step(160)]
    set_split_strategy_by_idx([20, 100, 159])
    found.append(step(160))
    # For another number of gradients: none of them is fused, and one warning says both numbers.
    set_split_strategy_by_idx([3, 20])
    found.append(step(30))
    found.append(step(30))
    set_split_strategy_by_size([60, 20, 20])
    found.append(step(30))
    # Before it is made, and after a group of that name is gone.
    set_split_strategy_by_size([100], "later")
    found.append(step(30))
    return found


def test_r15_the_split_strategies(warm_ranks):
    job = warm_ranks(2, gradients_by_strategy, timeout=600)
    assert job.results[0] == job.results[1]
    default, by_index, unfit, again, by_size, other = job.results[0]
    assert len(default) == 2 and sum(default) == 160
    assert by_index == [21, 80, 59]
    assert unfit == again == []
    assert len(by_size) == 3 and sum(by_size) == 30 and other == by_size
    said = [line for line in job.stderr.splitlines() if "does not fit the 30 allreduces" in line]
    assert len(said) == 2 and all("[3, 20]" in line for line in said), job.stderr


def graphs_that_differ(rank, size, odd, missing):
    """The odd rank lacks a gradient, or has another shape: all ranks get an error that names it, and go on."""
    import tensorflow as tf
    from foldcast.tensorflow import allreduce, fusion_report

    def step(leave_out=None, longer=None, names=range(8)):
        @tf.function
        def step():
            made = []
            for at in names:
                if rank == odd and at == leave_out:
                    continue
                length = 3 + at + (rank == odd and at == longer)
                made.append(allreduce(tf.fill([length], 1.0), "sum", 2, 5, name=f"grad_{at}"))
            return made

        return [float(value[0]) for value in step()]

    assert step() == [size] * 8
    for lost in missing:
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            step(leave_out=lost)
        lacks = f"missing on rank {odd}: 'grad_{lost}'"
        words = [
            f"only rank {1 - odd} has 'grad_{lost}'" if size == 2 else lacks,
            "HcomAllReduceFused node",
            "fusion_id",
        ]
        assert all(word in str(caught.value) for word in words), caught.value
        assert step() == [size] * 8
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        step(longer=5)
    first, other = (8, 9) if odd else (9, 8)
    said = f"'grad_5' has {first} elements on rank 0 and {other} on rank {odd or 1}"
    assert said in str(caught.value), caught.value
    assert step() == [size] * 8
    assert {len(launch["members"]) for launch in fusion_report()} == ({7, 8} if rank == odd else {8})


def test_graphs_that_differ_are_errors_that_name_the_nodes(warm_ranks):
    warm_ranks(2, graphs_that_differ, 1, [0, 4, 7], timeout=600)
    # The names come from several ranks now; which one is lost makes no other difference.
    warm_ranks(3, graphs_that_differ, 2, [4], timeout=600)


def lists_at_once(rank, size):
    """allreduce_fused: bits as of single calls, in each mode; lists that differ."""
    import numpy as np
    import tensorflow as tf
    from foldcast.tensorflow import allreduce, allreduce_fused

    random = np.random.default_rng(rank)
    inputs = [tf.constant(random.standard_normal([3 * at * at, 5]).astype(np.float32)) for at in range(9)]
    inputs += [tf.constant(random.integers(-99, 99, [at, 7])) for at in range(4)]
    single = [allreduce(tensor).numpy().tobytes() for tensor in inputs]
    assert [value.numpy().tobytes() for value in allreduce_fused(inputs)] == single
    assert [value.numpy().tobytes() for value in tf.function(allreduce_fused)(inputs)] == single
    arrays = [tensor.numpy() for tensor in inputs]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        found = session.run(allreduce_fused(arrays))
    assert [value.tobytes() for value in found] == single
    if size > 1:
        with pytest.raises(tf.errors.InvalidArgumentError, match="only rank 0 has 'number 8'"):
            allreduce_fused(inputs[: 9 - (rank > 0)])
        assert [value.numpy().tobytes() for value in allreduce_fused(inputs)] == single


def test_allreduce_fused_on_real_ranks(warm_ranks):
    for size in (1, 2):
        warm_ranks(size, lists_at_once, timeout=600)


def alone_or_fused(rank, size):
    """What one rank fuses another one leaves alone: all ranks get an error that names it, soon, and go on."""
    import numpy as np
    import tensorflow as tf
    from foldcast.tensorflow import allreduce

    everyone = ("a", "b", "c")

    def step(names, unfused=()):
        @tf.function
        def step():
            return [allreduce(tf.fill([4], 1.0), "sum", int(name not in unfused), name=name) for name in names]

        return [float(value[0]) for value in step()]

    def differ(mine, words):
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            step(*mine)
        said = str(caught.value)
        assert "disagree in fused set" in said and all(word in said for word in words), said
        # In the same step again: all together, then each by itself.
        assert step(everyone) == [size] * 3
        assert step(everyone, everyone) == [size] * 3

    assert step(everyone) == [size] * 3
    for odd in range(size):
        is_odd = rank == odd
        # One rank has nothing that one could be fused with; one rank has.
        differ((("a",) if is_odd else everyone,), ["/a' alone", f"rank {odd}: ", "fused"])
        differ((everyone if is_odd else ("a",),), ["/a' alone", f"rank {odd}: ", "fused"])
        # One rank has them all, and fuses none; one rank alone fuses them.
        differ((everyone, everyone if is_odd else ()), ["' alone", "fused"])
        differ((everyone, () if is_odd else everyone), ["' alone", "fused"])

        # One rank fuses all but one.
        with pytest.raises(tf.errors.InvalidArgumentError):
            step(everyone, ("a",) if is_odd else ())
        assert step(everyone) == [size] * 3
        assert step(everyone, everyone) == [size] * 3

    # One graph, of which a rank runs a part.
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        values = [allreduce(np.full(5, 1.0 + at), name=f"v{at}") for at in range(4)]
        for part in (values[:1], values):
            for odd in range(size):
                mine = part if rank == odd else values if part is not values else values[:1]
                with pytest.raises(tf.errors.InvalidArgumentError, match="v0' alone"):
                    session.run(mine)
                assert [float(value[0]) for value in session.run(values)] == [size * at for at in (1, 2, 3, 4)]
                assert float(session.run(values[0])[0]) == size


@pytest.mark.parametrize("size", [2, 3])
def test_what_is_fused_on_some_ranks_only_is_an_error_on_all(warm_ranks, size):
    # Nobody waits until the deadline: that would end the group.
    warm_ranks(size, alone_or_fused, timeout=900, env={"FOLDCAST_TIMEOUT": "600"})


def in_a_loop(rank, size):
    """The same in a loop, where each iteration's calls have tags of their own."""
    import tensorflow as tf
    from foldcast.tensorflow import allreduce

    def step(count, fusion):
        @tf.function
        def step():
            total = tf.zeros([3])
            for _ in tf.range(count):
                for name in ("a", "b"):
                    total += allreduce(tf.ones([3]), "sum", fusion, name=name)
            return total

        return float(step()[0])

    assert step(3, 1) == step(3, 0) == 6 * size
    with pytest.raises(tf.errors.InvalidArgumentError, match="disagree in fused set"):
        step(3, int(rank == 0))
    assert step(3, 1) == step(3, 0) == 6 * size


def test_what_is_fused_on_some_ranks_only_in_a_loop(warm_ranks):
    warm_ranks(2, in_a_loop, timeout=600, env={"FOLDCAST_TIMEOUT": "300"})


def who_is_late(rank, size):
    """Each rank comes late, to fused calls and to others: nothing is wrong with that."""
    import time

    import tensorflow as tf
    from foldcast.tensorflow import allreduce

    def step(fusion):
        @tf.function
        def step():
            return [allreduce(tf.ones([3]), "sum", fusion, name=name) for name in ("a", "b", "c")]

        return [float(value[0]) for value in step()]

    for late in range(size):
        for fusion in (1, 0):
            if rank == late:
                # Longer than one waits before one looks for a difference.
                time.sleep(1.7)
            assert step(fusion) == [size] * 3


def test_to_come_late_is_no_difference(warm_ranks):
    warm_ranks(3, who_is_late, timeout=600, env={"FOLDCAST_TIMEOUT": "300"})
