"""What the op library does between TensorFlow and the engine, with an engine of one process in the engine's place."""

import threading

import numpy as np
import pytest
from _fake_engine import CODES, FakeEngine

WORLD = "hccl_world_group"
DTYPES = "int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64".split()


@pytest.fixture(scope="module", autouse=True)
def modules():
    """TensorFlow is loaded when the first of these tests runs, not when the file is read."""
    global allreduce, tf, v1, LIBRARY
    import tensorflow as tf
    from foldcast.tensorflow import allreduce
    from foldcast.tensorflow._library import LIBRARY

    v1 = tf.compat.v1


@pytest.fixture
def engine():
    with FakeEngine().attached() as engine:
        yield engine


def one_thread():
    return v1.ConfigProto(inter_op_parallelism_threads=1, intra_op_parallelism_threads=1, use_per_session_threads=True)


def as_array(value):
    return value if isinstance(value, np.ndarray) else value.numpy()


# What reaches the engine


@pytest.mark.parametrize("reduction", ["sum", "max", "min", "prod"])
def test_every_dtype_and_reduction_reaches_the_engine(engine, reduction):
    for name in DTYPES:
        dtype = tf.as_dtype(name)
        result = allreduce(tf.cast(tf.constant([[1, 2, 3]]), dtype), reduction)
        assert result.dtype == dtype and result.shape == (1, 3)
        assert tf.cast(result, tf.int32).numpy().tolist() == [[2, 4, 6]]
        submission = engine.submissions[-1]
        assert (submission.dtype, submission.reduction) == (name, reduction)
        assert (submission.group, submission.tag, submission.bytes) == (WORLD, "", 3 * dtype.size)


def test_attributes_reach_the_engine_or_the_node(engine):
    with tf.Graph().as_default() as graph:
        result = allreduce(tf.constant(1.0), "max", 2, 7, "gruppe-é", name="mine")
        attributes = {key: result.op.get_attr(key) for key in ("reduction", "fusion", "fusion_id", "group")}
        assert attributes == {"reduction": b"max", "fusion": 2, "fusion_id": 7, "group": "gruppe-é".encode()}
        assert (result.op.type, result.op.name) == ("HcomAllReduce", "mine")
        defaults = allreduce(tf.constant(1.0)).op
        assert [defaults.get_attr(key) for key in attributes] == [b"sum", 1, -1, WORLD.encode()]
        with v1.Session(graph=graph) as session:
            assert session.run(result) == 2
    assert engine.submissions[0].group == "gruppe-é"


def test_scalars_and_empty_tensors(engine):
    assert allreduce(tf.constant(3.0)).numpy() == 6
    for shape in ([0], [2, 0, 3]):
        result = allreduce(tf.zeros(shape, tf.int16))
        assert result.shape == shape and result.dtype == tf.int16
    with tf.Graph().as_default(), v1.Session() as session:
        fed = v1.placeholder(tf.float32)
        result = allreduce(fed)
        assert session.run(result, {fed: 3.0}) == 6
        assert session.run(result, {fed: np.zeros((0, 5))}).shape == (0, 5)
    assert [submission.bytes for submission in engine.submissions] == [4, 0, 0, 4, 0]


def test_what_tensorflow_converts_is_accepted(engine):
    assert allreduce(2.5).numpy() == 5
    assert allreduce([1, 2]).numpy().tolist() == [2, 4]
    tensor = tf.constant([1.0, 2.0])
    assert allreduce([tensor]).shape == (1, 2)
    assert allreduce(np.arange(3, dtype=np.uint16)).numpy().tolist() == [0, 2, 4]
    slices = tf.IndexedSlices(tf.constant([[1.0], [2.0]]), tf.constant([2, 0]), tf.constant([3, 1]))
    assert allreduce(slices).numpy().tolist() == [[4], [0], [2]]
    with pytest.raises(ValueError, match="None"):
        allreduce(None)


def test_static_shapes_are_kept(engine):
    with tf.Graph().as_default():
        for shape in ([None, 3], [2, 3], [], None, [None, None]):
            tensor = v1.placeholder(tf.float32, shape)
            assert allreduce(tensor).shape.as_list() == shape if shape is not None else True
            assert allreduce(tensor).shape.rank == tensor.shape.rank


# Memory


def test_inputs_that_others_hold_are_never_written(engine):
    array = np.ones(1000, np.float32)
    constant = tf.constant(array)
    variable = tf.Variable(array)
    for value in (array, constant, variable):
        assert allreduce(value).numpy()[0] == 2
        assert as_array(value)[0] == 1

    @tf.function
    def step(captured):
        return allreduce(captured) + allreduce(variable) + allreduce(constant)

    for _ in range(3):
        assert step(constant).numpy()[0] == 6
    with tf.Graph().as_default(), v1.Session() as session:
        fed = v1.placeholder(tf.float32, [None])
        held = v1.get_variable("held", initializer=tf.constant(array), use_resource=False)
        resource = v1.get_variable("resource", initializer=tf.constant(array), use_resource=True)
        fixed = tf.constant(array)
        session.run(v1.global_variables_initializer())
        results = [allreduce(value) for value in (fed, held, held._ref(), resource, fixed)]
        for _ in range(3):
            assert [result[0] for result in session.run(results, {fed: array})] == [2] * 5
            assert [value[0] for value in session.run([held, resource, fixed])] == [1] * 3
    assert np.all(array == 1) and np.all(constant.numpy() == 1) and np.all(variable.numpy() == 1)
    assert not any(submission.in_place for submission in engine.submissions)


def test_a_temporary_gives_its_memory_to_the_result(engine):
    with tf.Graph().as_default(), v1.Session() as session:
        fed = v1.placeholder(tf.float32, [None])
        result = allreduce(fed + 1.0)
        assert session.run(result, {fed: np.ones(1000)})[0] == 4
    # The C API of 1.15 has no function for it.
    assert engine.submissions[0].in_place or tf.__version__.startswith("1.")


def test_unaligned_inputs(engine):
    with tf.Graph().as_default(), v1.Session() as session:
        fed = v1.placeholder(tf.float32, [None, 3])
        parts = [allreduce(part) for part in tf.unstack(fed[1:4], num=3)] + [allreduce(fed[1:])]
        results = session.run(parts, {fed: np.arange(15, dtype=np.float32).reshape(5, 3)})
        assert [result.ravel()[0] for result in results] == [6, 12, 18, 6]


def test_kernels_end_when_their_session_does(engine):
    before = LIBRARY.counters()
    for _ in range(5):
        with tf.Graph().as_default(), v1.Session() as session:
            results = [allreduce(tf.random.uniform([2])) for _ in range(20)]
            session.run(results)
            session.run(results)
    after = LIBRARY.counters()
    assert after["kernels_created"] - before["kernels_created"] == 100
    assert after["kernels_deleted"] - before["kernels_deleted"] == 100
    assert after["calls_finished"] - before["calls_finished"] == 200
    assert after["calls_submitted"] == after["calls_finished"]


def test_memory_stays_flat():
    def resident_kib():
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

    with FakeEngine(inline=True).attached() as engine, tf.Graph().as_default(), v1.Session() as session:
        fed = v1.placeholder(tf.float32, [None])
        step = tf.group(*[allreduce(fed * float(i)) for i in range(8)])
        data = np.ones(1 << 14, np.float32)

        def run(steps):
            for _ in range(steps):
                session.run(step, {fed: data})
                engine.submissions.clear()

        run(500)
        before = resident_kib()
        run(2000)
        grown = resident_kib() - before
    # 16,000 calls of 64 KiB each: a leak of one tensor a step would be 128 MiB, one of 1 KiB a call 16 MiB.
    assert grown < 12 << 10, f"{grown} KiB more after 2,000 steps"


# Running at the same time


def test_one_thread_carries_thirty_calls_at_once():
    with FakeEngine(hold=30).attached(), tf.Graph().as_default(), v1.Session(config=one_thread()) as session:
        results = [allreduce(tf.random.uniform([3]) * 0 + i) for i in range(30)]
        assert [result[0] for result in session.run(results)] == [2 * i for i in range(30)]


def test_the_calls_of_a_function_run_at_once(engine):
    engine.hold = 12

    @tf.function
    def inner(x):
        return allreduce(x) + allreduce(x + 1)

    @tf.function
    def step(x):
        return [allreduce(x * float(i)) for i in range(8)] + [inner(x), inner(2 * x)]

    assert [result.numpy() for result in step(tf.constant(1.0))] == [0, 2, 4, 6, 8, 10, 12, 14, 6, 10]


def test_gradients_of_a_training_step_run_at_once(engine):
    variables = [tf.Variable(1.0) for _ in range(6)]

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.add_n([variable * variable for variable in variables])
        for variable, gradient in zip(variables, tape.gradient(loss, variables)):
            variable.assign_sub(allreduce(gradient) * 0.25)

    engine.hold = 6
    step()
    assert [variable.numpy() for variable in variables] == [0.0] * 6


def test_the_patch_of_tensorflow_is_applied_once():
    from foldcast.tensorflow._control_dependencies import let_run_together
    from tensorflow.python.framework import auto_control_deps

    before = auto_control_deps.op_is_stateful
    let_run_together(frozenset({"HcomAllReduce", "HcomAllReduceFused"}))
    assert auto_control_deps.op_is_stateful is before


def test_equal_calls_are_neither_merged_nor_folded(engine):
    @tf.function
    def step():
        one = tf.constant(1.0)
        return allreduce(one) + allreduce(one)

    for _ in range(3):
        assert step().numpy() == 4
    assert len(engine.submissions) == 6


def test_the_engine_may_end_a_call_inside_submit():
    with FakeEngine(inline=True).attached():
        assert allreduce(tf.constant([1.0])).numpy() == [2]
        with tf.Graph().as_default(), v1.Session(config=one_thread()) as session:
            value = tf.random.uniform([2]) * 0 + 1
            for _ in range(50):
                value = allreduce(value)
                value = value * 0.5
            assert session.run(value).tolist() == [1, 1]


def test_sessions_of_several_threads(engine):
    with tf.Graph().as_default() as graph:
        feeds = [v1.placeholder(tf.float32, [3]) for _ in range(4)]
        results = [allreduce(allreduce(fed + 0.0)) for fed in feeds]
    failures = []

    def work(session, index):
        try:
            for step in range(50):
                assert session.run(results[index], {feeds[index]: [step] * 3}).tolist() == [4 * step] * 3
        except BaseException as error:
            failures.append(error)

    with v1.Session(graph=graph) as session:
        threads = [threading.Thread(target=work, args=(session, index)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures
    # Each op has its own tag, however the threads interleave.
    assert len(set(engine.tags)) == 8 and len(engine.tags) == 400


def test_eager_calls_of_two_threads_at_once_are_an_error(engine, monkeypatch):
    import foldcast

    def attempt(group, results):
        try:
            results.append(allreduce(tf.constant([1.0]), group=group).numpy().tolist())
        except tf.errors.InvalidArgumentError as error:
            results.append(str(error))

    def overlapping(group):
        """Results of a call, and of a second one that another thread makes while the first is held back."""
        results = [], []
        engine.hold = 3
        threads = []
        for count, (other, found) in enumerate(zip((WORLD, group), results), 1):
            threads.append(threading.Thread(target=attempt, args=(other, found)))
            threads[-1].start()
            while len(engine.submissions) < count and threads[-1].is_alive():
                threads[-1].join(0.01)
        engine.release()
        for thread in threads:
            thread.join()
        engine.submissions.clear()
        return results[0] + results[1]

    assert overlapping(WORLD) == [[2], [2]]  # a world of one rank: there is nobody to meet
    monkeypatch.setattr(foldcast, "size", lambda: 2)
    first, second = overlapping(WORLD)
    assert first == [2] and f"group '{WORLD}'" in second and "another thread" in second and "tf.function" in second
    assert overlapping("other") == [[2], [2]]
    assert allreduce(3.0).numpy() == 6


# Errors


def errors_of_tensorflow():
    return {
        "InvalidArgument": tf.errors.InvalidArgumentError,
        "NotInGroup": tf.errors.InvalidArgumentError,
        "Mismatch": tf.errors.InvalidArgumentError,
        "RankDied": tf.errors.AbortedError,
        "Deadline": tf.errors.DeadlineExceededError,
        "GroupAborted": tf.errors.FailedPreconditionError,
        "ForkedProcess": tf.errors.FailedPreconditionError,
        "Closed": tf.errors.FailedPreconditionError,
        "Resource": tf.errors.ResourceExhaustedError,
    }


@pytest.mark.parametrize("inline", [False, True])
def test_errors_of_the_engine_come_with_their_text_and_node(inline):
    text = "rank 0: allreduce 'é' on group 'g': something, got 1 (after 0.002 s); do this"
    assert set(errors_of_tensorflow()) == set(CODES)
    for code, expected in errors_of_tensorflow().items():
        with FakeEngine(inline=inline, fail=lambda _, code=code: (code, text)).attached():
            with pytest.raises(expected) as caught:
                allreduce(tf.constant(1.0))
            assert text in str(caught.value)
            with tf.Graph().as_default(), v1.Session() as session, pytest.raises(expected) as caught:
                session.run(allreduce(tf.constant(1.0), name="tower/sum"))
            assert text in str(caught.value) and "node 'tower/sum'" in str(caught.value)
            with pytest.raises(expected) as caught:
                tf.function(lambda: allreduce(tf.constant(1.0)))()
            assert text in str(caught.value)
    before = LIBRARY.counters()
    assert before["calls_submitted"] == before["calls_finished"]


def test_a_failed_call_ends_the_step_with_its_error_and_the_next_step_works():
    engine = FakeEngine(hold=10, fail=lambda s: ("Mismatch", "the ranks disagree") if s.tag.endswith("bad") else None)
    with engine.attached(), tf.Graph().as_default(), v1.Session(config=one_thread()) as session:
        good = [allreduce(tf.random.uniform([2])) for _ in range(9)]
        bad = allreduce(tf.random.uniform([2]), name="bad")
        with pytest.raises(tf.errors.InvalidArgumentError, match="the ranks disagree"):
            session.run([*good, bad])
        engine.hold = 9
        assert len(session.run(good)) == 9


# Gradients


def test_the_gradient_of_a_sum_is_the_sum_over_the_same_group(engine):
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [2])
        y = allreduce(x, "sum", fusion=2, fusion_id=3, group="some")
        gradient = tf.gradients(y, x)[0]
        op = gradient.op
        attributes = [op.get_attr(key) for key in ("reduction", "fusion", "fusion_id", "group")]
        assert op.type == "HcomAllReduce" and attributes == [b"sum", 0, -1, b"some"]
        with v1.Session() as session:
            assert session.run(gradient, {x: [1, 2]}).tolist() == [2, 2]


def test_gradients_on_a_tape(engine):
    x = tf.Variable([1.0, 2.0])

    def loss():
        with tf.GradientTape() as tape:
            y = tf.reduce_sum(allreduce(x * 3.0))
        return tape.gradient(y, x)

    assert loss().numpy().tolist() == [6, 6]
    assert engine.tags == ["", ""]
    assert tf.function(loss)().numpy().tolist() == [6, 6]
    # A tape around a function: the backward function is TensorFlow's own.
    inner = tf.function(lambda x: allreduce(x * 3.0))
    with tf.GradientTape() as tape:
        y = inner(x)
    assert tape.gradient(y, x).numpy().tolist() == [6, 6]


def test_a_gradient_that_comes_as_slices(engine):
    x = tf.Variable([[1.0], [2.0], [3.0]])
    with tf.GradientTape() as tape:
        y = tf.reduce_sum(tf.gather(allreduce(x), [0, 2, 0]))
    assert tape.gradient(y, x).numpy().tolist() == [[4], [0], [2]]


@pytest.mark.parametrize("reduction", ["max", "min", "prod"])
def test_other_reductions_have_no_gradient(engine, reduction):
    from foldcast.tensorflow import GradientError

    assert issubclass(GradientError, LookupError) and issubclass(GradientError, ValueError)
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [2])
        y = allreduce(x, reduction, name="here")
        with pytest.raises(GradientError, match=f"node 'here'.*reduction='sum'.*'{reduction}'"):
            tf.gradients(y, x)
    x = tf.Variable(1.0)
    with tf.GradientTape() as tape:
        y = allreduce(x, reduction)
    with pytest.raises(GradientError, match=reduction):
        tape.gradient(y, x)


def test_the_gradient_can_be_overridden_by_the_ops_name(engine):
    @tf.RegisterGradient("TestTimesSeven")
    def gradient(op, incoming):
        return incoming * 7.0

    with tf.Graph().as_default() as graph, graph.gradient_override_map({"HcomAllReduce": "TestTimesSeven"}):
        x = tf.constant(1.0)
        derivative = tf.gradients(allreduce(x, "max"), x)[0]
        with v1.Session() as session:
            assert session.run(derivative) == 7
