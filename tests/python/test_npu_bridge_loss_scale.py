"""Loss scaling against trajectories that were computed by hand."""

import math

NAN, INF = math.nan, math.inf


def exponential_body(rank, size):
    """The scale after each step, for steps with finite (1) and other (0) gradients."""
    import tensorflow as tf
    from npu_bridge.npu_init import ExponentialUpdateLossScaleManager

    v1 = tf.compat.v1

    def trajectory(steps, *arguments, **options):
        with tf.Graph().as_default():
            manager = ExponentialUpdateLossScaleManager(*arguments, **options)
            finite = v1.placeholder(tf.bool)
            update = manager.update_loss_scale(finite)
            scale = manager.get_loss_scale()
            assert scale.dtype == tf.float32
            assert len(v1.global_variables()) == 3 and not v1.trainable_variables()
            with v1.Session() as session:
                session.run(v1.global_variables_initializer())
                scales = []
                for step in steps:
                    session.run(update, {finite: bool(step)})
                    scales.append(float(session.run(scale)))
        return scales

    # Grows after 3 in a row, shrinks after 2 of the others, in a row or not.
    steps = [1, 1, 0, 1, 1, 1, 0, 1, 0, 0, 0]
    expected = [8, 8, 8, 8, 8, 16, 16, 16, 8, 8, 4]
    assert trajectory(steps, 8, 3, 2, 2, 0.5) == expected
    # The defaults: 2 steps, times 2, times 0.8.
    assert trajectory([0, 0, 1, 1], init_loss_scale=10.0, incr_every_n_steps=2) == [10, 8, 8, 16]
    # Below 1 and beyond float32 it stays.
    assert trajectory([0, 0, 1, 0], 2.0, 1, 1, 2, 0.5) == [1, 1, 2, 1]
    assert trajectory([1, 1, 0], 2.0**126, 1, 1, 2, 0.5) == [2.0**127, 2.0**127, 2.0**126]


def arguments_body(rank, size):
    import pytest
    import tensorflow as tf
    from npu_bridge.npu_init import ExponentialUpdateLossScaleManager, FixedLossScaleManager, NPULossScaleOptimizer

    for wrong in (0, 0.5, -1, NAN, INF, "1", None, True):
        with pytest.raises(ValueError, match="loss_scale"):
            FixedLossScaleManager(wrong)
    good = {"init_loss_scale": 2**32, "incr_every_n_steps": 1000, "decr_every_n_nan_or_inf": 2, "decr_ratio": 0.5}
    for name, values in {
        "init_loss_scale": (0, None),
        "incr_every_n_steps": (0, 1.5, None),
        "decr_every_n_nan_or_inf": (0, "2"),
        "incr_ratio": (0.5, NAN),
        "decr_ratio": (0, 2, -1),
    }.items():
        for value in values:
            with pytest.raises(ValueError, match=name):
                ExponentialUpdateLossScaleManager(**dict(good, **{name: value}))
    with pytest.raises(TypeError, match="loss_scale_manager"):
        NPULossScaleOptimizer(tf.compat.v1.train.GradientDescentOptimizer(1.0), 1024)


def one_rank_body(rank, size):
    exponential_body(rank, size)
    arguments_body(rank, size)


def test_the_managers(warm_ranks):
    warm_ranks(1, one_rank_body)


def training_body(rank, size, distributed, initial):
    """Four steps; in the second, the gradient is infinite on rank 1 only, in the third it is NaN on rank 0 only."""
    import tensorflow as tf
    from npu_bridge.npu_init import ExponentialUpdateLossScaleManager, NPUDistributedOptimizer, NPULossScaleOptimizer

    v1 = tf.compat.v1
    with tf.Graph().as_default():
        step = v1.train.get_or_create_global_step()
        weight = v1.get_variable("w", initializer=[8.0, 8.0])
        table = v1.get_variable("table", initializer=[[1.0], [1.0]])
        half = v1.get_variable("half", initializer=tf.constant([4.0], tf.float16), use_resource=True)
        factor = v1.placeholder(tf.float32)
        loss = v1.reduce_sum(weight * factor) + v1.reduce_sum(v1.nn.embedding_lookup(table, [1])) * factor
        loss += tf.cast(v1.reduce_sum(half), tf.float32) * factor
        manager = ExponentialUpdateLossScaleManager(initial, 1000, 2, 2, 0.5)
        inner = v1.train.GradientDescentOptimizer(1.0)
        if distributed == "averaged":
            inner = NPUDistributedOptimizer(inner)
        optimizer = NPULossScaleOptimizer(inner, manager, is_distributed=distributed is not None)
        pairs = optimizer.compute_gradients(loss, var_list=[weight, table, half])
        assert isinstance(pairs[1][0], tf.IndexedSlices) and pairs[2][0].dtype == tf.float16
        train = optimizer.apply_gradients(pairs, global_step=step)
        assert isinstance(train, tf.Operation)
        scale = manager.get_loss_scale()
        results = []
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for factors in ([1.0, 1.0], [1.0, INF], [NAN, 1.0], [2.0, 2.0]):
                session.run(train, {factor: factors[rank]})
                held = session.run([weight, table, half, scale, step])
                results.append([held[0][0], held[1][0][0], held[1][1][0], held[2][0], held[3], held[4]])
    return [[float(value) for value in result] for result in results]


def test_all_ranks_skip_a_step_alike(warm_ranks):
    first, last = [7, 1, 0, 3, 2**15, 1], [5, 1, -2, 1, 2**14, 2]
    expected = [first, first, [7, 1, 0, 3, 2**14, 1], last]
    assert warm_ranks(2, training_body, "own", 2.0**15).results == [expected] * 2


def test_averaged_gradients_are_scaled_and_skipped(warm_ranks):
    # The sum of two ranks' float16 gradients is finite up to 65504, before it is divided by 2.
    first, last = [7, 1, 0, 3, 2**14, 1], [5, 1, -2, 1, 2**13, 2]
    expected = [first, first, [7, 1, 0, 3, 2**13, 1], last]
    assert warm_ranks(2, training_body, "averaged", 2.0**14).results == [expected] * 2


def test_not_distributed_each_rank_decides(warm_ranks):
    # The scale is still 2**15 in the last step, so that the gradient 2 of the float16 variable is infinite there.
    first, second = [7, 1, 0, 3, 2**15, 1], [6, 1, -1, 2, 2**15, 2]
    zero = [first, second, second, [6, 1, -1, 2, 2**14, 2]]
    one = [first, first, second, [6, 1, -1, 2, 2**14, 2]]
    assert warm_ranks(2, training_body, None, 2.0**15).results == [zero, one]


def fixed_body(rank, size):
    import tensorflow as tf
    from npu_bridge.npu_init import FixedLossScaleManager, NPULossScaleOptimizer, NPUOptimizer

    v1 = tf.compat.v1
    outcome = []
    for checks in (True, False):
        for make in (
            lambda opt, manager: NPULossScaleOptimizer(opt, manager),
            lambda opt, manager: NPUOptimizer(opt, loss_scale_manager=manager, is_loss_scale=True),
        ):
            with tf.Graph().as_default(), v1.Session() as session:
                weight = v1.get_variable("w", initializer=[1.0])
                factor = v1.placeholder(tf.float32)
                manager = FixedLossScaleManager(loss_scale=1024, enable_overflow_check=checks)
                optimizer = make(v1.train.MomentumOptimizer(1.0, 0.9), manager)
                train = optimizer.minimize(v1.reduce_sum(weight * factor))
                session.run(v1.global_variables_initializer())
                session.run(train, {factor: 0.5})
                session.run(train, {factor: INF})
                assert session.run(manager.get_loss_scale()) == 1024
                outcome.append(float(session.run(weight)[0]))
    return outcome


def test_a_fixed_scale(warm_ranks):
    assert warm_ranks(1, fixed_body).results == [[0.5, 0.5, -INF, -INF]]
