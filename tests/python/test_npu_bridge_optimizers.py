"""Optimizers that average gradients, in v1 graphs and eagerly, on real ranks, against one process on the joint batch."""

ROWS = 8  # of a rank's share of a batch
STEPS = 6


def batches(size):
    """The joint data, the same on every rank: features, labels, and row numbers of an embedding."""
    import numpy as np

    random = np.random.RandomState(5)
    x = random.standard_normal((STEPS, size * ROWS, 3)).astype(np.float32)
    # Ranks have different rows, some common, some more than once.
    ids = random.randint(0, 12, (STEPS, size * ROWS))
    y = (x.sum(2, keepdims=True) + np.sin(ids)[..., None]).astype(np.float32)
    return x, ids, y


def model(v1, x, ids, y, seed):
    """A loss with dense gradients, sparse ones (an embedding), and a variable that it does not depend on."""
    initial = v1.random_normal_initializer(seed=seed)
    hidden = v1.get_variable("hidden", [4, 5], initializer=initial)
    table = v1.get_variable("table", [12, 1], initializer=initial)
    out = v1.get_variable("out", [5, 1], initializer=initial)
    v1.get_variable("unused", [2], initializer=initial)
    embedded = v1.nn.embedding_lookup(table, ids)
    predicted = v1.matmul(v1.tanh(v1.matmul(v1.concat([x, embedded], 1), hidden)), out)
    return v1.reduce_mean(v1.square(predicted - y))


def train(v1, make_optimizer, share, seed, hooks):
    """Trains on the rows `share` of each batch; returns the variables before and after."""
    x, ids, y = batches(2)
    with v1.Graph().as_default():
        placeholders = [v1.placeholder(v1.float32, [None, 3]), v1.placeholder(v1.int64, [None])]
        placeholders.append(v1.placeholder(v1.float32, [None, 1]))
        step = v1.train.get_or_create_global_step()
        loss = model(v1, *placeholders, seed=seed)
        optimizer = make_optimizer(v1)
        pairs = optimizer.compute_gradients(loss)
        kinds = {variable.op.name: type(gradient).__name__ for gradient, variable in pairs}
        assert kinds["unused"] == "NoneType" and kinds["table"] == "IndexedSlices", kinds
        update = optimizer.apply_gradients(pairs, global_step=step)
        variables = v1.trainable_variables()
        slot = optimizer.get_slot(variables[0], "momentum")
        assert slot is not None and optimizer.get_slot_names() == ["momentum"]
        assert len(optimizer.variables()) == 3
        with v1.train.MonitoredTrainingSession(hooks=hooks()) as session:
            before = session.run(variables)
            for i in range(STEPS):
                feed = dict(zip(placeholders, (x[i, share], ids[i, share], y[i, share])))
                session.run(update, feed)
            after = session.run(variables)
            assert session.run(step) == STEPS
    return before, after


def training_body(rank, size):
    import numpy as np
    import tensorflow as tf
    from npu_bridge.npu_init import (
        NPUBroadcastGlobalVariablesHook,
        NPUDistributedOptimizer,
        NPUOptimizer,
        npu_distributed_optimizer_wrapper,
        npu_hooks_append,
        npu_tf_optimizer,
    )

    v1 = tf.compat.v1

    def momentum(v1):
        return v1.train.MomentumOptimizer(0.1, 0.9)

    def broadcast():
        return [NPUBroadcastGlobalVariablesHook(0)]

    everything = slice(0, size * ROWS)
    mine = slice(rank * ROWS, (rank + 1) * ROWS)
    # One process on the joint batch, with the variables that rank 0 begins with.
    start, expected = train(v1, momentum, everything, seed=1, hooks=list)
    finals = []
    for wrap, hooks in [
        (NPUDistributedOptimizer, broadcast),
        (npu_tf_optimizer, npu_hooks_append),
        (npu_distributed_optimizer_wrapper, broadcast),
        (lambda optimizer: NPUOptimizer(optimizer, is_distributed=True), broadcast),
        (lambda optimizer: NPUDistributedOptimizer(npu_tf_optimizer(optimizer), name="twice"), broadcast),
    ]:
        begun, ended = train(v1, lambda v1, wrap=wrap: wrap(momentum(v1)), mine, 1 + rank, hooks)
        assert all(np.array_equal(a, b) for a, b in zip(begun, start)), "all begin with rank 0's variables"
        for a, b in zip(ended, expected):
            assert np.allclose(a, b, rtol=2e-5, atol=1e-6), (a, b)
        finals.append([value.tobytes().hex() for value in ended])
    assert all(final == finals[0] for final in finals)
    return finals[0]


def test_training_equals_one_process_on_the_joint_batch(warm_ranks):
    results = warm_ranks(2, training_body, timeout=300).results
    assert results[0] == results[1] and results[0]


def alone_body(rank, size):
    import tensorflow as tf
    from npu_bridge.npu_init import NPUBroadcastGlobalVariablesHook, npu_distributed_optimizer_wrapper, npu_tf_optimizer

    v1 = tf.compat.v1
    with v1.Graph().as_default() as graph:
        variable = v1.get_variable("v", initializer=[1.0, 2.0])
        for optimizer in (
            npu_tf_optimizer(v1.train.GradientDescentOptimizer(0.5)),
            npu_distributed_optimizer_wrapper(v1.train.GradientDescentOptimizer(0.5)),
        ):
            optimizer.minimize(v1.reduce_sum(variable**2))
        hook = NPUBroadcastGlobalVariablesHook(0)
        hook.begin()
        assert not [op.type for op in graph.get_operations() if op.type.startswith("Hcom")]


def test_a_world_of_one_adds_nothing(warm_ranks):
    warm_ranks(1, alone_body)


def allreduce_body(rank, size):
    import numpy as np
    import pytest
    import tensorflow as tf
    from npu_bridge.estimator.npu import npu_optimizer
    from npu_bridge.npu_init import create_group, npu_allreduce

    def run():
        mine = tf.constant([1.0, 2.0]) * (rank + 1.0)
        whole = tf.constant([3, -4]) * (rank + 1)
        nest = {"a": [mine, None], "b": (whole,), "c": 5.0}
        results = {
            "average": npu_optimizer.allreduce(mine),
            "sum": npu_optimizer.allreduce(mine, average=False),
            "half": npu_optimizer.allreduce(tf.cast(mine, tf.float16)),
            "whole": npu_optimizer.allreduce(whole),
        }
        for reduction in ("sum", "max", "min", "prod"):
            results[reduction + " of one"] = npu_allreduce(mine, reduction)
        means = npu_allreduce(nest)
        assert means["a"][1] is None and isinstance(means["b"], tuple)
        results.update({"a": means["a"][0], "b": means["b"][0], "c": means["c"]})
        results["fused"] = npu_allreduce([mine, mine], reduction="sum", fusion=2, fusion_id=3)[1]
        results["pair"] = npu_allreduce(mine, group="pair")
        return results

    if rank < 2:
        create_group("pair", 2, [0, 1])
    else:
        create_group("pair", 2, [2, 3])
    eager = {name: value.numpy() for name, value in run().items()}
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        graph = session.run(run())
    assert eager.keys() == graph.keys()
    for name, value in eager.items():
        assert np.array_equal(value, graph[name]) and value.dtype == graph[name].dtype, name
    assert eager["half"].dtype == np.float16 and eager["whole"].dtype == np.int32

    for wrong in ("avg", None, "MEAN"):
        with pytest.raises(ValueError, match="mean, sum, max, min, prod"):
            npu_allreduce([1.0], wrong)
    with pytest.raises(ValueError, match="mean or sum for IndexedSlices"):
        npu_allreduce(tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([4, 2])), "max")
    return {name: value.tolist() for name, value in eager.items()}


def test_allreduce_and_npu_allreduce(warm_ranks):
    expected = {
        "average": [2.5, 5.0],
        "sum": [10.0, 20.0],
        "half": [2.5, 5.0],
        "whole": [7, -10],  # 30 / 4 and -40 / 4, rounded down
        "sum of one": [10.0, 20.0],
        "max of one": [4.0, 8.0],
        "min of one": [1.0, 2.0],
        "prod of one": [24.0, 384.0],
        "a": [2.5, 5.0],
        "b": [7, -10],
        "c": 5.0,
        "fused": [10.0, 20.0],
    }
    results = warm_ranks(4, allreduce_body).results
    for rank, result in enumerate(results):
        assert result == dict(expected, pair=[1.5, 3.0] if rank < 2 else [3.5, 7.0])


def slices_body(rank, size):
    import numpy as np
    import tensorflow as tf
    from npu_bridge.estimator.npu import npu_optimizer

    # Rank 0 has no slices at all, rank 1 one, rank 2 the same one twice and another.
    rows = [[], [3], [3, 0, 3]][rank]
    values = np.array([[10.0 * rank + i, 1.0] for i in range(len(rows))], np.float32).reshape(-1, 2)
    results = []
    for average in (False, True):
        slices = tf.IndexedSlices(tf.constant(values), tf.constant(rows, tf.int64), tf.constant([4, 2], tf.int64))
        reduced = npu_optimizer.allreduce(slices, average=average)
        assert isinstance(reduced, tf.IndexedSlices)
        results.append(tf.convert_to_tensor(reduced).numpy().tolist())
    return results


def test_slices_of_different_lengths(warm_ranks):
    total = [[21.0, 1.0], [0.0, 0.0], [0.0, 0.0], [10.0 + 20.0 + 22.0, 3.0]]
    third = [[value / 3 for value in row] for row in total]
    for result in warm_ranks(3, slices_body).results:
        assert result[0] == total
        assert all(abs(a - b) < 1e-5 for row, other in zip(result[1], third) for a, b in zip(row, other))


def eager_body(rank, size):
    """A v1 optimizer without a graph: the loss is a function."""
    import tensorflow as tf
    from npu_bridge.npu_init import NPUDistributedOptimizer

    variable = tf.Variable([1.0, 2.0])
    optimizer = NPUDistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.5))
    optimizer.minimize(lambda: tf.reduce_sum(variable * (1.0 + 2.0 * rank)), var_list=[variable])
    return variable.numpy().tolist()


def test_eager(warm_ranks):
    assert warm_ranks(2, eager_body).results == [[0.0, 1.0]] * 2


def refusals_body(rank, size):
    import pytest
    import tensorflow as tf
    from npu_bridge.npu_init import (
        NPUBroadcastGlobalVariablesHook,
        NPUDistributedOptimizer,
        NPUOptimizer,
        broadcast_global_variables,
        npu_distributed_optimizer_wrapper,
    )

    with pytest.raises(TypeError, match="npu_distributed_optimizer_wrapper takes the optimizers of Keras"):
        NPUDistributedOptimizer(tf.keras.optimizers.SGD(0.1))
    with pytest.raises(TypeError, match="NPUDistributedOptimizer: optimizer: expected"):
        NPUDistributedOptimizer(None)
    with pytest.raises(ValueError, match="loss_scale_manager"):
        NPUOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1), is_loss_scale=True)
    with pytest.raises(TypeError, match="expected an optimizer"):
        npu_distributed_optimizer_wrapper(3)
    for root in (1, -1, "0", None, True):
        with pytest.raises(ValueError, match="root_rank"):
            NPUBroadcastGlobalVariablesHook(root)
    with tf.Graph().as_default():
        with pytest.raises(ValueError, match="root_rank"):
            broadcast_global_variables(2, 0)


def test_refusals(warm_ranks):
    warm_ranks(1, refusals_body)
