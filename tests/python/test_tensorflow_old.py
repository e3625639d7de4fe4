"""How scripts of TensorFlow's first and early second releases run, on two real ranks; newer ones run them too."""

# The tests of 1.15 have it behave like 2.x, but for what is here for the sake of old scripts.
AS_IT_IS = {"TF2_BEHAVIOR": None}


def monitored_session(rank, size):
    """A v1 graph in a MonitoredTrainingSession, on one thread: 30 independent allreduces in a step, which are fused."""
    import numpy as np
    import tensorflow as tf
    from foldcast.tensorflow import allreduce, fusion_report

    v1 = tf.compat.v1
    one_thread = v1.ConfigProto(
        inter_op_parallelism_threads=1, intra_op_parallelism_threads=1, use_per_session_threads=True
    )
    untouched = v1.ConfigProto()
    untouched.CopyFrom(one_thread)
    with tf.Graph().as_default():
        step = v1.train.get_or_create_global_step()
        weights = [v1.get_variable("w%d" % i, initializer=np.float32(i), use_resource=i % 2 == 0) for i in range(30)]
        gradients = tf.gradients(tf.add_n([(weight - float(rank)) ** 2 for weight in weights]), weights)
        summed = [allreduce(gradient * 1.0) / float(size) for gradient in gradients]
        train = v1.train.GradientDescentOptimizer(0.25).apply_gradients(zip(summed, weights), global_step=step)
        hooks = [v1.train.StopAtStepHook(last_step=5)]
        with v1.train.MonitoredTrainingSession(hooks=hooks, config=one_thread) as session:
            while not session.should_stop():
                _, values = session.run([train, summed])
    # Each step halves the distance to the ranks' mean, of which the gradient is twice.
    mean = (size - 1) / 2.0
    expected = [2 * (i - mean) * 0.5**4 for i in range(30)]
    assert np.allclose(values, expected, rtol=1e-5), (values, expected)
    # By the default split: what is alone in its segment is no launch of a fused op.
    launches = [len(launch["members"]) for launch in fusion_report()]
    assert launches and 29 in launches and one_thread == untouched, (launches, one_thread)
    return [float(value).hex() for value in values]


def test_monitored_training_session(ranks):
    job = ranks(2, monitored_session, env=AS_IT_IS)
    assert job.results[0] == job.results[1]


def estimator(rank, size):
    """An Estimator, whose model sums its gradients."""
    import tempfile

    import numpy as np
    import tensorflow as tf
    from foldcast.tensorflow import allreduce

    v1 = tf.compat.v1
    if not hasattr(v1, "estimator") or not hasattr(v1.estimator, "Estimator"):
        return None

    def model(features, labels, mode):
        weight = v1.get_variable("weight", initializer=np.zeros(3, np.float32))
        loss = tf.reduce_mean((tf.reduce_sum(features * weight, 1) - labels) ** 2)
        (gradient,) = tf.gradients(loss, [weight])
        optimizer = v1.train.GradientDescentOptimizer(0.1)
        summed = allreduce(gradient) / float(size)
        train = optimizer.apply_gradients([(summed, weight)], global_step=v1.train.get_global_step())
        return v1.estimator.EstimatorSpec(mode, loss=loss, train_op=train)

    random = np.random.RandomState(rank)
    x = random.standard_normal((16, 3)).astype(np.float32)
    y = x.sum(1)
    with tempfile.TemporaryDirectory() as directory:
        made = v1.estimator.Estimator(model, model_dir=directory)
        made.train(lambda: (tf.constant(x), tf.constant(y)), steps=20)
        weight = made.get_variable_value("weight")
    assert np.all(np.abs(weight - 1) < 0.5)
    return [float(value).hex() for value in weight]


def test_estimator(ranks):
    job = ranks(2, estimator, env=AS_IT_IS)  # None where TensorFlow has no Estimator any more
    assert job.results[0] == job.results[1]


def function_and_keras(rank, size):
    """A `tf.function` that trains, retraced for another shape, and `Model.fit`, with gradients summed in both."""
    import numpy as np
    import tensorflow as tf
    from foldcast.tensorflow import allreduce, fusion_report

    if not tf.executing_eagerly():
        return None  # 1.15 that was not told to behave like 2.x

    def mean(gradients):
        return [allreduce(gradient, fusion=2, fusion_id=0) / float(size) for gradient in gradients]

    random = np.random.RandomState(rank)
    weights = [tf.Variable(np.zeros((3, 2), np.float32)), tf.Variable(np.zeros(2, np.float32))]
    right = np.arange(6, dtype=np.float32).reshape(3, 2)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.matmul(x, weights[0]) + weights[1] - y) ** 2)
        for weight, gradient in zip(weights, mean(tape.gradient(loss, weights))):
            weight.assign_sub(0.3 * gradient)
        return loss

    losses = []
    for i in range(40):
        x = random.standard_normal((8 if i % 4 or not rank else 5, 3)).astype(np.float32)  # one rank retraces
        losses.append(float(step(tf.constant(x), tf.constant(x @ right + 1))))
    assert losses[-1] < 0.05 * losses[0], losses
    assert any(len(launch["members"]) == 2 for launch in fusion_report())

    class Sgd(tf.keras.optimizers.SGD):
        """Sums gradients over the ranks, by whichever method this release of Keras calls."""

        def get_gradients(self, loss, params):
            return mean(super().get_gradients(loss, params))

        def apply_gradients(self, grads_and_vars, **options):
            pairs = list(grads_and_vars)
            summed = mean([gradient for gradient, _ in pairs])
            return super().apply_gradients(list(zip(summed, [variable for _, variable in pairs])), **options)

    model = tf.keras.Sequential([tf.keras.layers.Dense(2, input_shape=(3,), kernel_initializer="zeros")])
    model.compile(optimizer=Sgd(0.1), loss="mse")
    x = random.standard_normal((32, 3)).astype(np.float32)
    history = model.fit(x, x @ right + 1, batch_size=8, epochs=8, shuffle=False, verbose=0).history["loss"]
    assert history[-1] < 0.5 * history[0], history
    trained = [*(weight.numpy() for weight in weights), *model.get_weights()]
    return [[float(value).hex() for value in array.ravel()] for array in trained]


def test_functions_and_keras(warm_ranks):
    job = warm_ranks(2, function_and_keras)
    assert job.results[0] == job.results[1]


def test_a_tensorflow_without_the_optimisers_functions_gets_one_warning(monkeypatch):
    import warnings

    import pytest
    from foldcast.tensorflow import _fusion

    monkeypatch.setenv("FOLDCAST_TENSORFLOW_FUSION", "1")
    monkeypatch.setattr(_fusion.LIBRARY, "enable_fusion", lambda: 1)
    with pytest.warns(UserWarning, match="allreduces are not fused"):
        _fusion.enable()
    monkeypatch.setenv("FOLDCAST_TENSORFLOW_FUSION", "0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _fusion.enable()
