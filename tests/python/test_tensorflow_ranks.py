"""foldcast.tensorflow on real ranks. A job of TensorFlow takes seconds to start, so each carries many cases."""

import signal

import pytest


def every_dtype(rank, size):
    """Bits are those of the oracle, in each way of running TensorFlow. Returns a digest of them all."""
    import zlib

    import _oracle
    import numpy as np
    import tensorflow as tf
    from foldcast.tensorflow import allreduce

    def all_reduced(tensors):
        return {reduction: [allreduce(tensor, reduction) for tensor in tensors] for reduction in _oracle.REDUCTIONS}

    def in_session(arrays):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            fed = [tf.compat.v1.placeholder(array.dtype, [None] * array.ndim) for array in arrays]
            return session.run(all_reduced(fed), dict(zip(fed, arrays)))

    ways = {
        "eager": lambda arrays: all_reduced([tf.constant(array) for array in arrays]),
        "function": lambda arrays: tf.function(all_reduced)([tf.constant(array) for array in arrays]),
        "session": in_session,
    }
    every_shape = [(), (0,), (2, 0, 3), (1, 3), (1027,), (40, 1000)]
    digest = 0
    for number, name in enumerate(_oracle.DTYPES):
        # Shapes and dtypes do not meet before the engine, whose tests have all of them.
        shapes = every_shape if number % 4 == 0 else every_shape[3:5]
        inputs = [
            [_oracle.pool(name, int(np.prod(shape)), seed=9 * r + i).reshape(shape) for i, shape in enumerate(shapes)]
            for r in range(size)
        ]
        right = {
            reduction: [_oracle.allreduce([of_rank[i] for of_rank in inputs], reduction) for i in range(len(shapes))]
            for reduction in _oracle.REDUCTIONS
        }
        for way, run in ways.items():
            found = run(inputs[rank])
            for reduction in _oracle.REDUCTIONS:
                for result, expected in zip(found[reduction], right[reduction]):
                    case = (name, reduction, way, expected.shape)
                    result = np.asarray(result.numpy() if way != "session" else result)
                    assert result.dtype == expected.dtype and result.shape == expected.shape, case
                    assert np.array_equal(_oracle.bits(result), _oracle.bits(expected)), case
                    digest = zlib.crc32(result.tobytes(), digest)
    return digest


def test_every_dtype_and_reduction_in_every_mode(warm_ranks):
    job = warm_ranks(3, every_dtype)
    assert len(set(job.results)) == 1


def in_another_order(rank, size):
    """What TensorFlow may run in any order, run in opposite orders on two ranks."""
    import threading

    import foldcast
    import numpy as np
    import tensorflow as tf
    from foldcast.tensorflow import allreduce

    v1 = tf.compat.v1
    one_thread = v1.ConfigProto(
        inter_op_parallelism_threads=1, intra_op_parallelism_threads=1, use_per_session_threads=True
    )

    def ordered(values):
        """The values, each after the one before it: from the front on even ranks, from the back on odd ones."""
        values = list(values)
        order = list(range(len(values)))[:: -1 if rank % 2 else 1]
        for before, after in zip(order, order[1:]):
            with tf.control_dependencies([values[before]]):
                values[after] = tf.identity(values[after])
        return values

    both = sum(range(1, size + 1))

    # Thirty in one step of a session with one thread. Those of the far end are made when all others are in flight.
    with tf.Graph().as_default(), v1.Session(config=one_thread) as session:
        fed = v1.placeholder(tf.float32, [2])
        results = [allreduce(value) for value in ordered(fed * float(i) for i in range(30))]
        for _ in range(3):
            found = session.run(results, {fed: [rank + 1] * 2})
            assert [array.tolist() for array in found] == [[both * i] * 2 for i in range(30)]

    # A Python function behind an allreduce calls the numpy face, while others are in flight.
    with tf.Graph().as_default(), v1.Session(config=one_thread) as session:
        fed = v1.placeholder(tf.float32, [2])
        first = allreduce(fed)
        behind = tf.numpy_function(lambda array: foldcast.allreduce(array, "max"), [first * (rank + 1.0)], tf.float32)
        rest = [allreduce(value) for value in ordered(fed + float(i) for i in range(6))]
        last = allreduce(behind)
        found = session.run([last, *rest], {fed: [rank + 1] * 2})
        assert found[0].tolist() == [size * size * both] * 2
        assert [array[0] for array in found[1:]] == [both + size * i for i in range(6)]

    # Two functions of one name with equal ops, called in another order on each rank, at once.
    def make(factor):
        @tf.function
        def step(x):
            return allreduce(x * factor)

        return step

    steps = [make(float(i)) for i in range(4)]
    for step in steps:
        step.get_concrete_function(tf.TensorSpec([3]))  # the order of tracing is the same on all ranks

    @tf.function
    def outer(x):
        # One function called several times, too; all of it copied into one graph.
        different = [step(value) for step, value in zip(steps, ordered([x] * 4))]
        return different, [steps[3](value) for value in ordered([x, 2 * x, 3 * x])]

    for _ in range(3):
        different, same = outer(tf.fill([3], rank + 1.0))
        assert [tensor.numpy()[0] for tensor in different] == [both * i for i in range(4)]
        assert [tensor.numpy()[0] for tensor in same] == [3 * both * i for i in (1, 2, 3)]

    # Threads, each with its own op of one session, start in opposite orders.
    with tf.Graph().as_default(), v1.Session() as session:
        fed = v1.placeholder(tf.float32, [2])
        results = [allreduce(fed + float(i)) for i in range(4)]
        failures = []

        def work(index):
            try:
                for step in range(20):
                    found = session.run(results[index], {fed: [rank + step] * 2})
                    assert found[0] == sum(r + step + index for r in range(size)), (index, step, found)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
        for thread in threads[:: -1 if rank % 2 else 1]:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures, failures

    # A loop whose iterations overlap, and become ready in another order on each rank.
    with tf.Graph().as_default(), v1.Session() as session:

        def body(i, array):
            def wait(index):
                import time

                time.sleep(0.01 * (index if rank % 2 else 8 - index))
                return np.float32(index)

            return i + 1, array.write(i, allreduce(tf.numpy_function(wait, [i], tf.float32)))

        array = tf.TensorArray(tf.float32, 8, element_shape=[])
        _, array = v1.while_loop(lambda i, _: i < 8, body, (0, array), parallel_iterations=8)
        for _ in range(2):
            assert session.run(array.stack()).tolist() == [float(size * i) for i in range(8)]


def test_orders_that_differ_between_ranks(ranks):
    ranks(2, in_another_order)


def control_flow_and_gradients(rank, size):
    import numpy as np
    import tensorflow as tf
    from foldcast.tensorflow import allreduce

    both = sum(range(1, size + 1))
    mine = tf.constant([rank + 1.0] * 3)

    # This rank alone traces things that have nothing to do with the others.
    if rank == 1:
        for i in range(3):
            tf.function(lambda x: tf.while_loop(lambda y, _: y < 9.0, lambda y, z: (y + 1.0, z), [x, x])[0])(
                tf.constant(float(i))
            )

    @tf.function
    def loop(x, times):
        for _ in tf.range(times):
            for _ in tf.range(2):
                x = allreduce(x) / float(size)
        return x

    assert np.allclose(loop(mine, 3), [both / size] * 3)
    assert np.allclose(loop(mine, 0), mine)

    @tf.function
    def branch(x):
        if tf.reduce_sum(x) > 0.0:
            return allreduce(x)
        return allreduce(x, "max") - 1.0

    # Ranks take the same branch, and next time the other one.
    assert branch(mine).numpy().tolist() == [both] * 3
    assert branch(-mine).numpy().tolist() == [-2.0] * 3

    @tf.function
    def gradient(x, weight):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x
            for _ in tf.range(2):
                y = allreduce(y)
            loss = tf.reduce_sum(y * weight)
        return tape.gradient(loss, x)

    # Each rank's loss has its own weight; what flows back is summed in each of the two allreduces.
    assert gradient(mine, rank + 1.0).numpy().tolist() == [both * size] * 3

    # A rank whose last batch has another size traces the function once more than the others.
    @tf.function
    def step(batch):
        return allreduce(tf.reduce_sum(batch))

    assert step(tf.ones([4])).numpy() == 4 * size
    assert step(tf.ones([4 - rank])).numpy() == sum(4 - r for r in range(size))
    assert step(tf.ones([4])).numpy() == 4 * size


def test_control_flow_gradients_and_retracing(warm_ranks):
    warm_ranks(2, control_flow_and_gradients)


def keras_fit(rank, size):
    """On the world, and on rank 0 alone."""
    import foldcast
    import numpy as np
    import tensorflow as tf
    from foldcast.tensorflow import allreduce

    keras = tf.keras

    class Parallel(keras.Model):
        def __init__(self):
            super().__init__()
            self.inner = [keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(1)]

        def call(self, x):
            for layer in self.inner:
                x = layer(x)
            return x

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(x) - y))
            weights = self.trainable_weights
            gradients = tape.gradient(loss, weights)
            gradients = [allreduce(gradient, group=group) / float(group.size) for gradient in gradients]
            self.optimizer.apply_gradients(zip(gradients, weights))
            return {"loss": allreduce(loss, group=group) / float(group.size)}

    def train(x, y, batch):
        getattr(keras.utils, "set_random_seed", tf.random.set_seed)(3)
        model = Parallel()
        model.compile(optimizer=keras.optimizers.SGD(0.1))
        history = model.fit(x, y, batch_size=batch, epochs=4, shuffle=False, verbose=0)
        return history.history["loss"], np.concatenate([weight.numpy().ravel() for weight in model.trainable_weights])

    random = np.random.default_rng(5)
    x = random.standard_normal((64, 3)).astype(np.float32)
    y = np.sum(x, 1, keepdims=True)
    # Each rank takes every size-th example: the ranks' batches together are the joint one.
    group = foldcast.group("hccl_world_group")
    together = train(x[rank::size], y[rank::size], 16 // size)
    if rank == 0:
        group = foldcast.new_group([0], "alone")
        for joint, alone in zip(together, train(x, y, 16)):
            assert np.allclose(joint, alone, rtol=1e-5, atol=1e-7), (joint, alone)
    losses, weights = together
    return losses, weights.tolist()


def test_keras_fit_on_two_ranks_is_that_of_one(warm_ranks):
    pytest.importorskip("keras")  # TensorFlow 1.15 has one of its own, without train_step
    results = warm_ranks(2, keras_fit).results
    assert results[0] == results[1]


def bad_calls(rank, size):
    import foldcast
    import pytest
    import tensorflow as tf
    from foldcast.tensorflow import allreduce

    v1 = tf.compat.v1
    refused = tf.errors.InvalidArgumentError

    def refusal(call, *arguments, **options):
        with pytest.raises(refused) as caught:
            call(*arguments, **options)
        return str(caught.value)

    # Ranks that disagree, eagerly and in a session; the next correct call works.
    odd = rank == size - 1
    differences = {
        "count": (lambda: tf.ones([3 + odd]), "sum"),
        "dtype": (lambda: tf.ones([3], tf.int32 if odd else tf.float32), "sum"),
        "reduction": (lambda: tf.ones([3]), "max" if odd else "sum"),
    }
    for field, (make, reduction) in differences.items():
        text = refusal(allreduce, make(), reduction)
        assert f"disagree in {field}" in text and "rank 0" in text and f"rank {size - 1}" in text, text
        assert allreduce(1.0).numpy() == size
        with tf.Graph().as_default(), v1.Session() as session:
            wrong, right = allreduce(make(), reduction, name="tower/wrong"), allreduce(tf.ones([2]))
            text = refusal(session.run, wrong)
            assert f"disagree in {field}" in text and "node 'tower/wrong'" in text, text
            assert session.run(right).tolist() == [size] * 2

    # A group that nobody made, and one that this rank is no member of.
    text = refusal(allreduce, 1.0, group="nobody")
    assert "'nobody'" in text and f"rank {rank}" in text and "hccl_world_group" in text, text
    group = foldcast.new_group([0], "first")
    for given in (group, "first"):
        if rank == 0:
            assert allreduce(5.0, group=given).numpy() == 5
        else:
            text = refusal(allreduce, 5.0, group=given)
            assert f"rank {rank}" in text and "'first'" in text and "rank 0" in text, text

    # In a v1 graph the group may be made after the op.
    with tf.Graph().as_default(), v1.Session() as session:
        late = allreduce(tf.ones([2]), group="late", name="late")
        assert "'late'" in refusal(session.run, late)
        foldcast.new_group(range(size), "late")
        assert session.run(late).tolist() == [size] * 2

    foldcast.shutdown()
    with pytest.raises(tf.errors.FailedPreconditionError, match="closed"):
        with tf.Graph().as_default(), v1.Session() as session:
            session.run(late_op(tf))


def late_op(tf):
    from foldcast.tensorflow._library import LIBRARY

    return LIBRARY.ops.hcom_all_reduce(tensor=[1.0], reduction="sum")


def test_bad_calls_are_errors_and_the_next_call_works(warm_ranks):
    warm_ranks(2, bad_calls)


def with_a_victim(rank, size, mode):
    """Everybody is in calls when rank 1 ends; the others report what they got."""
    import os
    import time

    import pytest
    import tensorflow as tf
    from _ranks import ready, report
    from foldcast.tensorflow import allreduce

    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        fed = v1.placeholder(tf.float32, [4])
        results = [allreduce(fed + float(i), name=f"tower/sum_{i}") for i in range(8)]
        assert session.run(results, {fed: [1.0] * 4})[7][0] == 8 * size
        ready("running")
        if rank == 1:
            if mode == "exit":
                os._exit(3)
            time.sleep(600)
        start = time.monotonic()
        try:
            session.run(results, {fed: [1.0] * 4})
        except tf.errors.OpError as error:
            report([type(error).__name__, str(error), time.monotonic() - start])
        else:
            report(["no error", "", 0])
        # All later calls fail at once, eager ones too.
        with pytest.raises(tf.errors.FailedPreconditionError, match="rank 1"):
            session.run(results[0], {fed: [1.0] * 4})
    with pytest.raises(tf.errors.FailedPreconditionError, match="rank 1"):
        allreduce(1.0)
    os._exit(0)


def check_death(job, how):
    assert "Traceback" not in job.stderr, job.stderr
    for rank in (0, 2):
        kind, text, seconds = job.results[rank]
        assert kind == "AbortedError", job.results
        assert "rank 1" in text and how in text and "node 'tower/sum_" in text, text
        assert seconds < 60  # far below the deadline of a call: it was the death that ended it


def test_a_killed_rank_ends_the_step_of_the_others(ranks):
    with ranks.start(3, with_a_victim, "sleep", launcher=["--keep-going"]) as job:
        for rank in range(3):
            job.wait_ready(rank, "running")
        job.kill(1, signal.SIGKILL)
        check_death(job.finish(expect=None), "SIGKILL")


def test_a_rank_that_fails_ends_the_step_of_the_others(warm_ranks):
    check_death(warm_ranks(3, with_a_victim, "exit", keep_going=True, expect=None), "status 3")


def late(rank, size):
    import time

    import tensorflow as tf
    from _ranks import ready, report
    from foldcast.tensorflow import allreduce

    assert allreduce(1.0).numpy() == size
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        result = allreduce(tf.ones([2]), name="waits")
        if rank == 1:
            time.sleep(600)  # the test ends it
        try:
            session.run(result)
        except tf.errors.DeadlineExceededError as error:
            report(str(error))
        ready("told")


def test_a_late_rank_is_named_at_the_deadline(warm_ranks):
    # Also the first call has no more time than this, while TensorFlow gets ready on each rank.
    with warm_ranks.start(2, late, env={"FOLDCAST_TIMEOUT": "2"}, keep_going=True) as job:
        job.wait_ready(0, "told")
        job.kill(1)
        job.finish(expect=None)
    assert "rank 1" in job.results[0] and "node 'waits'" in job.results[0], job.results


def loops(rank, size):
    import tensorflow as tf
    from foldcast.tensorflow import allreduce

    v1 = tf.compat.v1
    steps = 5000

    def step(i, x):
        return i + 1, allreduce(x + 1.0, "max")

    with tf.Graph().as_default(), v1.Session() as session:
        zeros = [tf.constant(0), tf.constant([float(rank), 0.0])]
        end = v1.while_loop(lambda i, _: i < steps, step, zeros, parallel_iterations=1)
        # What is ready runs on the thread that makes it so: the next call within the end of the last one.
        here = v1.RunOptions(inter_op_thread_pool=-1)
        for options in [None, here, None, here]:
            count, result = session.run(end, options=options)
            assert count == steps and result.tolist() == [steps + size - 1.0, steps], (count, result)


def test_long_loops_of_small_calls_in_pools_of_threads_and_without(warm_ranks):
    warm_ranks(2, loops)


def many_steps(rank, size):
    """A training-like function, many times over."""
    import tensorflow as tf
    from foldcast.tensorflow import allreduce, fusion_report
    from foldcast.tensorflow._library import LIBRARY

    @tf.function
    def step(x):
        return [allreduce(tf.fill([16 << (i % 12)], x * float(i + 1)), ["sum", "max"][i % 2]) for i in range(24)]

    for count in range(150):
        x = float(count + rank)
        for i, tensor in enumerate(step(tf.constant(x))):
            values = [(count + r) * float(i + 1) for r in range(size)]
            expected = max(values) if i % 2 else sum(values)
            assert tensor.shape == [16 << (i % 12)]
            assert float(tf.reduce_min(tensor)) == float(tf.reduce_max(tensor)) == expected, (count, i)
    counters = LIBRARY.counters()
    # The twelve sums become two calls where TensorFlow fuses.
    sums = 2 if fusion_report() else 12
    assert counters["calls_submitted"] == counters["calls_finished"] == 150 * (12 + sums)


def test_many_steps(warm_ranks):
    warm_ranks(2, many_steps)
