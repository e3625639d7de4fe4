"""The small things of npu_bridge: dropout, gelu, repeated steps, configurations, hooks; and a rank that dies."""

import _monitored


def ops_body(rank, size):
    import numpy as np
    import pytest
    import tensorflow as tf
    from npu_bridge.estimator.npu_unary_ops import npu_unary_ops
    from npu_bridge.npu_init import npu_ops

    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        ones = tf.ones([50, 40])
        keep = v1.placeholder(tf.float32, [])
        kept = session.run(npu_ops.dropout(ones, 0.25, seed=3))
        assert set(np.unique(kept)) == {0.0, 4.0} and 0.15 < np.mean(kept != 0) < 0.35
        fed = npu_ops.dropout(ones, keep_prob=keep, noise_shape=[50, 1], name="mine")
        assert fed.op.name.startswith("mine")
        rows = session.run(fed, {keep: 0.5})
        assert all(len(set(row)) == 1 for row in rows) and set(np.unique(rows)) == {0.0, 2.0}
        assert np.all(session.run(npu_ops.dropout(ones, 1)) == 1)
        for wrong in (0, 1.5, -0.1):
            with pytest.raises(ValueError, match="keep_prob"):
                npu_ops.dropout(ones, wrong)

        # Values of x * Phi(x); the approximation with tanh is within 0.001 of them.
        x = [-3.0, -1.0, 0.0, 1.0, 2.0]
        exact = [-0.00404951, -0.15865525, 0.0, 0.84134475, 1.95449974]
        result = session.run(npu_unary_ops.gelu(tf.constant(x)))
        assert result.dtype == np.float32 and np.allclose(result, exact, atol=1e-3), result


def iterations_body(rank, size):
    import pytest
    import tensorflow as tf
    from npu_bridge.npu_init import util

    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        counter = v1.get_variable("counter", initializer=0.0)
        amount = v1.placeholder(tf.float32)
        step = v1.assign_add(counter, amount)
        three = util.set_iteration_per_loop(session, step.op, 3)
        one = util.set_iteration_per_loop(session, step, iterations_per_loop=1)
        iteration = util.IterationPerLoop()
        with pytest.raises(ValueError, match="create_iteration_per_loop_var"):
            iteration.load_iteration_per_loop_var(session, 5)
        later = iteration.create_iteration_per_loop_var(step.op)
        assert all(isinstance(op, tf.Operation) for op in (three, one, later))
        session.run(v1.global_variables_initializer())
        reads = []
        for op in (three, one, later):
            session.run(op, {amount: 1.0})
            reads.append(float(session.run(counter)))
        iteration.load_iteration_per_loop_var(session, 5)
        session.run({"nested": [(later,)]}, feed_dict={amount: 2.0})
        reads.append(float(session.run(counter)))
        iteration.load_iteration_per_loop_var(session, 2)
        session.run([later, amount], {amount: 1.0})
        reads.append(float(session.run(counter)))
        for wrong in (0, -1, 1.5, None, True):
            with pytest.raises(ValueError, match="iterations_per_loop"):
                util.set_iteration_per_loop(session, step, wrong)
    assert reads == [3.0, 4.0, 5.0, 15.0, 17.0], reads

    # In a MonitoredTrainingSession hooks see every step.
    with tf.Graph().as_default():
        global_step = v1.train.get_or_create_global_step()
        iteration = util.IterationPerLoop()
        train = iteration.create_iteration_per_loop_var(v1.assign_add(global_step, 1).op)
        with v1.train.MonitoredTrainingSession(hooks=[v1.train.StopAtStepHook(last_step=8)]) as session:
            iteration.load_iteration_per_loop_var(session, 4)
            runs = 0
            while not session.should_stop():
                session.run(train)
                runs += 1
    assert runs == 2


def configurations_body(rank, size):
    import pytest
    import tensorflow as tf
    from npu_bridge.npu_init import (
        DumpConfig,
        MemoryConfig,
        NPUBroadcastGlobalVariablesCallback,
        NPUBroadcastGlobalVariablesHook,
        NpuEmptyHook,
        ProfilingConfig,
        npu_callbacks_append,
        npu_hooks_append,
    )

    dump = DumpConfig(True, dump_path="/tmp", dump_step="0|5")
    assert (dump.enable_dump, dump.dump_path, dump.dump_mode) == (True, "/tmp", "output")
    assert ProfilingConfig(enable_profiling=True, profiling_options="{}").profiling_options == "{}"
    assert MemoryConfig().atomic_clean_policy == 0
    with pytest.raises(TypeError, match="dump_pth.*did you mean 'dump_path'"):
        DumpConfig(dump_pth="x")
    with pytest.raises(TypeError, match="given twice"):
        DumpConfig(True, enable_dump=False)
    with pytest.raises(TypeError, match="up to 8"):
        DumpConfig(*range(9))

    mine = [NpuEmptyHook()]
    assert npu_hooks_append(mine) is mine and isinstance(mine[1], NPUBroadcastGlobalVariablesHook)
    assert [type(hook) for hook in npu_hooks_append()] == [NPUBroadcastGlobalVariablesHook]
    assert len(npu_hooks_append(hooks_list=(NpuEmptyHook(),))) == 2
    assert isinstance(mine[0], tf.compat.v1.train.SessionRunHook)
    callbacks = []
    assert npu_callbacks_append(callbacks) is callbacks
    assert isinstance(callbacks[0], NPUBroadcastGlobalVariablesCallback)
    assert len(npu_callbacks_append()) == 1


def one_rank_body(rank, size):
    ops_body(rank, size)
    iterations_body(rank, size)
    configurations_body(rank, size)


def test_ops_repeated_steps_and_configurations(warm_ranks):
    warm_ranks(1, one_rank_body)


def broadcast_body(rank, size):
    """Variables of all types and shapes, from a root that is not rank 0; to the last bit."""
    import numpy as np
    import tensorflow as tf
    from npu_bridge.npu_init import broadcast_global_variables

    v1 = tf.compat.v1
    random = np.random.RandomState(rank)
    values = [
        random.standard_normal((3, 4)).astype(np.float32),
        random.standard_normal(5).astype(np.float16),
        np.array([np.nan, -0.0, np.inf], np.float64) * (rank + 1),
        random.randint(0, 100, 7).astype(np.int64),
        np.int32(rank),
        random.rand(6) > 0.5,
        (random.standard_normal(2) + 1j * random.standard_normal(2)).astype(np.complex64),
        (random.standard_normal((2, 1)) + 1j).astype(np.complex128),
        np.zeros((0, 3), np.float32),
    ]
    with tf.Graph().as_default(), v1.Session() as session:
        variables = [
            v1.get_variable("v%d" % i, initializer=tf.constant(value), use_resource=i % 2 == 0)
            for i, value in enumerate(values)
        ]
        local = v1.get_local_variable("local", initializer=float(rank))
        op = broadcast_global_variables(1, 0)
        assert isinstance(op, tf.Operation)
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        session.run(op)
        got = session.run(variables)
        assert session.run(local) == rank, "local variables stay"
        if rank == 1:
            assert all(a.tobytes() == b.tobytes() for a, b in zip(got, values))

        v1.get_variable("text", initializer=tf.constant("abc"))
        try:
            broadcast_global_variables(0)
        except ValueError as error:
            assert "'text:0'" in str(error) and "string" in str(error), error
        else:
            raise AssertionError("text cannot be broadcast")
    return [value.tobytes().hex() for value in got]


def test_broadcast_of_variables(warm_ranks):
    results = warm_ranks(3, broadcast_body).results
    assert results[0] == results[1] == results[2] and len(results[0]) == 9


def orphan_body(rank, size):
    import tensorflow as tf
    from npu_bridge.npu_init import NPUDistributedOptimizer, npu_hooks_append

    v1 = tf.compat.v1
    with tf.Graph().as_default():
        weight = v1.get_variable("w", initializer=[1.0])
        optimizer = NPUDistributedOptimizer(v1.train.GradientDescentOptimizer(0.1))
        train = optimizer.minimize(v1.reduce_sum(weight**2))
        _monitored.train_until_a_death(train, hooks=npu_hooks_append())


def test_a_death_ends_the_session(ranks):
    _monitored.check_a_death(ranks, orphan_body)


def first_checkpoint_body(rank, size, place):
    """Each rank begins with values of its own; TensorFlow writes a checkpoint before it comes to our hook."""
    import pathlib

    import tensorflow as tf
    from npu_bridge.npu_init import NPUBroadcastGlobalVariablesHook

    v1 = tf.compat.v1
    directory = str(pathlib.Path(place) / str(rank))
    found = []

    class Looks(v1.train.SessionRunHook):
        """A hook before ours: what it sees has been broadcast."""

        def after_create_session(self, session, coord):
            found.append(float(session.run(weight)[0]))

    for begun in (10.0, 20.0):  # Initialised; then restored from checkpoints of which one was spoilt.
        with tf.Graph().as_default():
            step = v1.train.get_or_create_global_step()
            weight = v1.get_variable("w", initializer=[begun + rank])
            train = tf.group(v1.assign_add(step, 1), weight.assign_add([100.0 * (rank + 1)]))
            hooks = [Looks(), NPUBroadcastGlobalVariablesHook(1)]
            with v1.train.MonitoredTrainingSession(checkpoint_dir=directory, hooks=hooks) as session:
                session.run(train)
        first = v1.train.get_checkpoint_state(directory).all_model_checkpoint_paths[0]
        found.append(float(v1.train.load_variable(first, "w")[0]))
    return found


def test_the_first_checkpoint_has_the_broadcast_values(ranks, tmp_path):
    results = ranks(2, first_checkpoint_body, str(tmp_path)).results
    # Of rank 1: 11 at first; 211 after its step, which it restores.
    assert results[0] == results[1] == [11.0, 11.0, 211.0, 11.0], results
