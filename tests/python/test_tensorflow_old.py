"""How scripts of TensorFlow's first and early second releases run, on two real ranks; newer ones run them too."""


def monitored_session(rank, size):
    """A v1 graph in a MonitoredTrainingSession, on one thread: 30 independent allreduces in a step."""
    import numpy as np
    import tensorflow as tf
    from foldcast.tensorflow import allreduce

    v1 = tf.compat.v1
    one_thread = v1.ConfigProto(
        inter_op_parallelism_threads=1, intra_op_parallelism_threads=1, use_per_session_threads=True
    )
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
    return [float(value).hex() for value in values]


def test_monitored_training_session(ranks):
    job = ranks(2, monitored_session)
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
    job = ranks(2, estimator)
    assert job.results[0] == job.results[1]
