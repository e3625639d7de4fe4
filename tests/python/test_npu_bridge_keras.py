"""Keras training with averaged gradients, on real ranks, against one process on the joint batches.

Runs on the Keras that the installed TensorFlow has: 2 (eager and, in TensorFlow 1.x, in a graph) or 3.
"""

ROWS = 4
STEPS = 5
EPOCHS = 2


def data(size):
    import numpy as np

    random = np.random.RandomState(3)
    x = random.standard_normal((STEPS, size * ROWS, 6)).astype(np.float32)
    y = np.tanh(x[..., :1] - x[..., 1:2]).astype(np.float32)
    return x, y


def make_model(tf, seed):
    import numpy as np

    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [layers.InputLayer((6,)), layers.Dense(5, activation="tanh"), layers.Dense(1)],
    )
    random = np.random.RandomState(seed)
    model.set_weights([random.normal(0, 0.3, weight.shape) for weight in model.get_weights()])
    return model


def fit(tf, optimizer, seed, share, size, callbacks=()):
    x, y = data(size)
    model = make_model(tf, seed)
    model.compile(optimizer=optimizer, loss="mse")
    x, y = x[:, share].reshape(-1, 6), y[:, share].reshape(-1, 1)
    rows = len(x) // STEPS
    model.fit(x, y, batch_size=rows, epochs=EPOCHS, shuffle=False, verbose=0, callbacks=list(callbacks))
    return model, model.get_weights()


def sgd(tf, graph=False):
    optimizers = tf.keras.optimizers
    if graph:
        # The optimizers of Keras 2.11 to 2.15 do not know graphs any more; their predecessors are still there.
        optimizers = getattr(optimizers, "legacy", optimizers)
    return optimizers.SGD(0.1, momentum=0.9)


def training_body(rank, size, graph):
    import numpy as np
    import tensorflow as tf
    from npu_bridge.npu_init import (
        KerasDistributeOptimizer,
        NPUBroadcastGlobalVariablesCallback,
        close_session,
        npu_callbacks_append,
        npu_distributed_optimizer_wrapper,
        npu_keras_optimizer,
        set_keras_session_npu_config,
    )

    session = None
    if graph:
        tf.compat.v1.disable_eager_execution()
        session = set_keras_session_npu_config()
        assert tf.compat.v1.keras.backend.get_session() is session
    _, expected = fit(tf, sgd(tf, graph), 1, slice(0, size * ROWS), size)
    finals = []
    mine = slice(rank * ROWS, (rank + 1) * ROWS)
    for wrap, callbacks in [
        (npu_distributed_optimizer_wrapper, [NPUBroadcastGlobalVariablesCallback(0)]),
        (npu_keras_optimizer, npu_callbacks_append(callbacks_list=[tf.keras.callbacks.Callback()])),
        (lambda optimizer: npu_keras_optimizer(KerasDistributeOptimizer(optimizer)), npu_callbacks_append()),
    ]:
        optimizer = sgd(tf, graph)
        wrapped = wrap(optimizer)
        assert wrapped is optimizer and isinstance(wrapped, type(sgd(tf, graph)))
        # What is saved is what was wrapped.
        assert type(wrapped).__name__ == "SGD"
        options = {"use_legacy_optimizer": True} if graph and hasattr(tf.keras.optimizers, "legacy") else {}
        loaded = tf.keras.optimizers.deserialize(tf.keras.optimizers.serialize(wrapped), **options)
        assert type(loaded) is type(sgd(tf, graph)) and loaded.get_config()["momentum"] == 0.9
        model, weights = fit(tf, wrapped, 1 + rank, mine, size, callbacks)
        for got, wanted in zip(weights, expected):
            assert np.allclose(got, wanted, rtol=2e-5, atol=1e-6), (got, wanted)
        finals.append([weight.tobytes().hex() for weight in weights])
    assert all(final == finals[0] for final in finals)
    if session is not None:
        close_session(session)
    return finals[0]


def test_fit(warm_ranks):
    results = warm_ranks(2, training_body, False, timeout=300).results
    assert results[0] == results[1] and results[0]


def test_fit_in_a_graph(warm_ranks):
    import pytest
    import tensorflow as tf

    keras = getattr(tf.compat.v1, "keras", None)
    if not hasattr(getattr(keras, "backend", None), "set_session"):
        pytest.skip("SKIPPED: Keras 3 runs in no v1 graph")
    results = warm_ranks(2, training_body, True, timeout=300).results
    assert results[0] == results[1] and results[0]


def steps_body(rank, size):
    """A training loop of one's own, an embedding, a variable without gradient, and a model that is built late."""
    import numpy as np
    import tensorflow as tf
    from npu_bridge.npu_init import NPUBroadcastGlobalVariablesCallback, npu_distributed_optimizer_wrapper

    table = tf.Variable(np.ones((4, 2), np.float32))
    dense = tf.Variable([1.0])
    idle = tf.Variable([7.0])
    optimizer = npu_distributed_optimizer_wrapper("sgd")
    optimizer.learning_rate = 1.0
    with tf.GradientTape() as tape:
        rows = tf.gather(table, [rank, rank, 3])
        loss = tf.reduce_sum(rows) + (1.0 + rank) * tf.reduce_sum(dense)
    variables = [table, dense, idle]
    gradients = tape.gradient(loss, variables)
    assert isinstance(gradients[0], tf.IndexedSlices) and gradients[2] is None
    optimizer.apply_gradients(zip(gradients, variables))
    # Row 0: twice on rank 0 only; row 1: twice on rank 1 only; row 3: once on both.
    assert table.numpy().tolist() == [[0.0, 0.0], [0.0, 0.0], [1.0, 1.0], [0.0, 0.0]]
    assert dense.numpy().tolist() == [-0.5] and idle.numpy().tolist() == [7.0]

    class Late(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.inner = tf.keras.layers.Dense(1, kernel_initializer=tf.keras.initializers.RandomNormal(seed=rank))

        def call(self, inputs):
            return self.inner(inputs)

    model = Late()
    model.compile(optimizer=tf.keras.optimizers.SGD(0.0), loss="mse")
    x = np.ones((4, 3), np.float32)
    model.fit(x, x[:, :1], verbose=0, batch_size=2, callbacks=[NPUBroadcastGlobalVariablesCallback(1)])
    return [weight.tolist() for weight in model.get_weights()]


def test_own_loop_and_late_weights(warm_ranks):
    results = warm_ranks(2, steps_body).results
    assert results[0] == results[1] and results[0]


def under_a_loss_scale(rank, size):
    import numpy as np
    import tensorflow as tf
    from npu_bridge.npu_init import npu_distributed_optimizer_wrapper

    if not hasattr(tf.keras.mixed_precision, "set_global_policy"):
        return "no policies"
    tf.keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        npu_distributed_optimizer_wrapper(sgd(tf))
    except ValueError as error:
        assert "LossScaleOptimizer" in str(error) and "mixed_float16" in str(error), error
    else:
        raise AssertionError("each rank would decide by itself which steps it skips")
    optimizer = npu_distributed_optimizer_wrapper(tf.keras.mixed_precision.LossScaleOptimizer(sgd(tf)))
    model = tf.keras.Sequential([tf.keras.layers.InputLayer((2,)), tf.keras.layers.Dense(1, use_bias=False)])
    model.set_weights([np.ones((2, 1), np.float32)])
    model.compile(optimizer=optimizer, loss="mse")
    # Rank 0's gradient overflows at first, and rank 1's does not: both skip those steps.
    x = np.full((4, 2), 200.0 if rank == 0 else 1.0, np.float32)
    model.fit(x, np.zeros((4, 1), np.float32), batch_size=4, epochs=20, shuffle=False, verbose=0)
    return [float(value) for value in model.get_weights()[0].ravel()]


def test_a_loss_scale_of_keras_goes_around_the_average(warm_ranks):
    first, second = warm_ranks(2, under_a_loss_scale, timeout=300).results
    assert first == second
