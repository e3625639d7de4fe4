"""Which allreduces TensorFlow fuses when it compiles a graph: what reaches an engine of one process."""

import os
import subprocess
import sys

import numpy as np
import pytest
from _fake_engine import FakeEngine


@pytest.fixture(scope="module", autouse=True)
def modules():
    global allreduce, allreduce_fused, foldcast, fusion_report, tf, v1
    import foldcast
    import tensorflow as tf
    from foldcast.tensorflow import allreduce, allreduce_fused, fusion_report

    v1 = tf.compat.v1
    if os.environ.get("FOLDCAST_TENSORFLOW_FUSION") == "0":
        pytest.skip("fusion is turned off")


@pytest.fixture
def engine():
    fusion_report(clear=True)
    with FakeEngine(fuse=True).attached() as engine:
        yield engine


def sizes(engine):
    return sorted(submission.bytes for submission in engine.submissions)


def members():
    return [launch["members"] for launch in fusion_report()]


def test_160_gradients_are_two_launches(engine):
    variables = [tf.Variable(tf.fill([i + 1], float(i))) for i in range(160)]

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(variable * variable) for variable in variables])
        return [allreduce(gradient) for gradient in tape.gradient(loss, variables)]

    results = step()
    assert [result.numpy()[-1] for result in results] == [4.0 * i for i in range(160)]
    assert len(engine.submissions) == 2
    small, large = sizes(engine)
    assert small + large == sum(4 * (i + 1) for i in range(160))
    assert small == 4 * (158 + 159 + 160)  # whole gradients, as near to 3.46 % of the bytes as can be
    first, second = fusion_report()
    assert [len(launch["members"]) for launch in (first, second)] == [157, 3]
    assert first["members"][:3] == ["HcomAllReduce", "HcomAllReduce_1", "HcomAllReduce_2"]
    assert {key: first[key] for key in ("group", "dtype", "fusion", "fusion_id", "bytes")} == {
        "group": "hccl_world_group",
        "dtype": "float32",
        "fusion": 1,
        "fusion_id": -1,
        "bytes": large,
    }
    step()
    assert len(engine.submissions) == 4 and len(set(engine.tags)) == 2


def test_sets_by_id_group_and_dtype(engine):
    @tf.function
    def step(x):
        y = tf.cast(x, tf.float64)
        return (
            [allreduce(x + float(i), "sum", 2, 7) for i in range(3)]
            + [allreduce(x * float(i), "sum", 2, 8) for i in range(2)]
            + [allreduce(x * float(i), "sum", 2, 7, "other") for i in range(2)]
            + [allreduce(y + float(i), "sum", 2, 7) for i in range(2)]
            + [allreduce(x - float(i), "sum", 0) for i in range(2)]
            + [allreduce(x - float(i), "max", 2, 7) for i in range(2)]
        )

    results = [float(result) for result in step(tf.constant(10.0))]
    assert results == [20, 22, 24, 0, 20, 0, 20, 20, 22, 20, 18, 20, 18]
    assert sizes(engine) == [4, 4, 4, 4, 8, 8, 12, 16]
    assert sorted((len(launch["members"]), launch["fusion_id"]) for launch in fusion_report()) == [
        (2, 7),
        (2, 7),
        (2, 8),
        (3, 7),
    ]


def fused(x, **arguments):
    return allreduce(x, "sum", 2, 1, **arguments)


def test_fetched_members_and_v1_graphs(engine):
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None])
        made = [fused(x + float(i), name=f"r{i}") for i in range(12)]
        after = [value + 1.0 for value in made]
        found = session.run([made, after, "r3:0"], {x: [0.0, 1.0]})
        assert [value.tolist() for value in found[0]] == [[2.0 * i, 2.0 * i + 2] for i in range(12)]
        assert [value[0] for value in found[1]] == [2.0 * i + 1 for i in range(12)] and found[2][0] == 6
        assert sizes(engine) == [12 * 8]
        assert members() == [[f"r{i}" for i in range(12)]]
        # Other fetches are another graph.
        assert session.run(made[:2], {x: [1.0]})[1].tolist() == [4]
        assert sizes(engine) == [8, 12 * 8]


def test_dependent_members_are_not_one_set(engine):
    @tf.function
    def step(x):
        first = [fused(x + float(i)) for i in range(2)]
        second = [fused(value * 1.0) for value in first]
        return [*second, fused(x + 9.0)]

    assert [float(value) for value in step(tf.constant(1.0))] == [4, 8, 20]
    assert sizes(engine) == [8, 12]


def test_two_sets_that_would_wait_for_each_other(engine):
    @tf.function
    def step(x):
        a = allreduce(x, "sum", 2, 1, name="a1")
        b = allreduce(x + 1.0, "sum", 2, 2, name="b1")
        return allreduce(b * 1.0, "sum", 2, 1, name="a2"), allreduce(a * 1.0, "sum", 2, 2, name="b2")

    assert [float(value) for value in step(tf.constant(1.0))] == [8, 4]
    # Set 1 needs b1, set 2 needs a1: only one of them may be fused.
    assert len(engine.submissions) in (3, 4)


def test_control_edges(engine):
    with tf.Graph().as_default(), v1.Session() as session:
        counter = v1.get_variable("counter", initializer=0.0, use_resource=True)
        session.run(v1.global_variables_initializer())
        x = v1.placeholder(tf.float32, [])
        first, second = fused(x), fused(x + 1.0)
        with tf.control_dependencies([first]):
            added = v1.assign_add(counter, 1.0)
        with tf.control_dependencies([added]):
            third, fourth = fused(x + 2.0), fused(x + 3.0)
        assert session.run([first, second, third, fourth], {x: 1.0}) == [2, 4, 6, 8]
        assert session.run(counter) == 1
    assert sizes(engine) == [8, 8]


def test_loops(engine):
    @tf.function
    def loop(x, y):
        for _ in tf.range(3):
            x, y = fused(x), fused(y)
        return x, y, fused(x + 1.0), fused(y + 1.0)

    assert [float(value) for value in loop(tf.constant(1.0), tf.constant(2.0))] == [8, 16, 18, 34]
    assert sizes(engine) == [8, 8, 8, 8]
    assert len(set(engine.tags)) == 4


def test_branches(engine):
    @tf.function
    def branch(x):
        if x > 0.0:
            pair = fused(x), fused(x + 1.0)
        else:
            pair = fused(-x), fused(1.0 - x)
        return pair, fused(x * 0.0)

    for value, pair in ((1.0, [2, 4]), (-3.0, [6, 8])):
        engine.submissions.clear()
        found, outside = branch(tf.constant(value))
        assert [float(element) for element in found] == pair and float(outside) == 0
        assert sizes(engine) == [4, 8]


def test_control_flow_of_v1(engine):
    v1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default(), v1.Session() as session:
            x = v1.placeholder(tf.float32, [])

            def body(i, a, b):
                return i + 1, fused(a), fused(b)

            _, a, b = v1.while_loop(lambda i, *_: i < 3, body, (0, x, x + 1.0))
            pair = v1.cond(x > 0.0, lambda: (fused(x), fused(x + 1.0)), lambda: (fused(-x), fused(-x)))
            outside = fused(x), fused(x + 2.0)
            assert session.run([a, b, pair, outside], {x: 1.0}) == [8, 16, (2, 4), (2, 6)]
            assert sizes(engine) == [8] * 5
            assert session.run([pair, outside], {x: -1.0}) == [(2, 2), (-2, 2)]
    finally:
        v1.enable_control_flow_v2()


def test_nested_functions(engine):
    @tf.function
    def inner(x):
        return fused(x)

    @tf.function
    def outer(x):
        return inner(x), inner(x + 1.0), fused(x + 2.0)

    assert [float(value) for value in outer(tf.constant(1.0))] == [2, 4, 6]
    assert sizes(engine) == [12]


def test_saved_models(engine, tmp_path):
    class Model(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None])])
        def serve(self, x):
            return fused(x) + fused(x * 2.0) + fused(x * 3.0)

    tf.saved_model.save(Model(), str(tmp_path))
    # 1.15 has another function under the name `load`.
    loaded = getattr(tf.saved_model, "load_v2", tf.saved_model.load)(str(tmp_path))
    assert loaded.serve(tf.constant([1.0, 2.0])).numpy().tolist() == [12, 24]
    assert sizes(engine) == [24]


def test_empty_and_scalar_members(engine):
    @tf.function
    def step(x):
        return fused(tf.zeros([0, 3]) * x), fused(x), fused(tf.ones([2, 2]) * x)

    empty, scalar, matrix = step(tf.constant(3.0))
    assert empty.shape == (0, 3) and float(scalar) == 6 and np.all(matrix.numpy() == 6)
    assert sizes(engine) == [20]


def test_an_error_of_a_fused_call_names_its_node():
    fail = ("Mismatch", "the ranks disagree")
    with FakeEngine(fuse=True, fail=lambda submission: fail if submission.bytes == 8 else None).attached():

        @tf.function
        def step(x):
            return fused(x, name="first"), fused(x + 1.0, name="second")

        with pytest.raises(tf.errors.InvalidArgumentError, match="the ranks disagree.*first/fused_2"):
            step(tf.constant(1.0))


def test_a_compiled_graph_is_worth_a_line():
    program = """
import tensorflow as tf
from _fake_engine import FakeEngine
from foldcast.tensorflow import allreduce
with FakeEngine(fuse=True).attached():
    @tf.function
    def step(x):
        return [allreduce(x + float(i), "sum", 2, 1) for i in range(6)]
    step(tf.constant(0.0))
"""
    here = os.path.dirname(os.path.abspath(__file__))
    path = os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])
    environment = dict(os.environ, PYTHONPATH=path, FOLDCAST_LOG="info", TF_CPP_MIN_LOG_LEVEL="2")
    ended = subprocess.run([sys.executable, "-c", program], env=environment, stderr=subprocess.PIPE, timeout=120)
    assert ended.returncode == 0, ended.stderr
    lines = [line for line in ended.stderr.decode().splitlines() if "compiled a graph" in line]
    assert lines == ["foldcast: compiled a graph: 6 allreduces became 1, 24 bytes"]


def test_fusion_can_be_turned_off():
    program = """
import tensorflow as tf
from _fake_engine import FakeEngine
from foldcast.tensorflow import allreduce, fusion_report
with FakeEngine(fuse=True).attached() as engine:
    @tf.function
    def step(x):
        return [allreduce(x + float(i), "sum", 2, 1) for i in range(6)]
    assert [float(value) for value in step(tf.constant(0.0))] == [0, 2, 4, 6, 8, 10]
    assert len(engine.submissions) == 6 and fusion_report() == []
"""
    here = os.path.dirname(os.path.abspath(__file__))
    path = os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])
    environment = dict(os.environ, PYTHONPATH=path, FOLDCAST_TENSORFLOW_FUSION="0", TF_CPP_MIN_LOG_LEVEL="2")
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=120)


def test_members_are_handed_over_where_they_are(engine):
    @tf.function
    def step(x):
        return [fused(x + float(1 + i)) for i in range(3)]

    step(tf.constant([1.0, 2.0]))
    (submission,) = engine.submissions
    # TensorFlow 1.15 never gives an output its input's memory.
    assert submission.in_place or tf.__version__.startswith("1."), "what nobody else holds is reduced in its own memory"
    assert submission.names == ["HcomAllReduce", "HcomAllReduce_1", "HcomAllReduce_2"]
    engine.submissions.clear()

    @tf.function
    def of_arguments(x, y):
        return fused(x), fused(y), fused(x)

    x, y = tf.constant([1.0, 2.0]), tf.constant([3.0])
    results = of_arguments(x, y)
    assert [value.numpy().tolist() for value in (*results, x, y)] == [[2, 4], [6], [2, 4], [1, 2], [3]]
    (submission,) = engine.submissions
    assert not submission.in_place


def test_mixed_dtypes_share_the_segments(engine):
    @tf.function
    def step(x):
        y = tf.cast(x, tf.float64)
        results = []
        for i in range(20):
            results += [allreduce(value + float(i)) for value in (x, y)]
        return results

    assert [float(value) for value in step(tf.constant(0.0))] == [2.0 * i for i in range(20) for _ in range(2)]
    assert sum(sizes(engine)) == 20 * 12 and len(engine.submissions) == 3
    # 3.46 % of 240 bytes: the last member, of 8.
    assert sorted((launch["dtype"], len(launch["members"])) for launch in fusion_report()) == [
        ("float32", 20),
        ("float64", 1),
        ("float64", 19),
    ]


def test_allreduce_fused(engine):
    def step(x):
        y = tf.cast(x, tf.float64)
        slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1]), tf.constant([3, 2]))
        return allreduce_fused([x, y, [x, x], slices, tf.zeros([0])])

    for run in (step, tf.function(step)):
        engine.submissions.clear()
        x, y, pair, dense, empty = run(tf.constant(3.0))
        assert (float(x), float(y), pair.numpy().tolist(), empty.shape) == (6, 6, [6, 6], (0,))
        assert dense.numpy().tolist() == [[0, 0], [2, 2], [0, 0]] and y.dtype == tf.float64
        assert sizes(engine) == [8, 4 + 8 + 24]
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None])
        values = allreduce_fused((x, x + 1.0), "max", name="mine")
        assert values[0].op.name == "mine" and values[1].shape.as_list() == [None]
        assert [value.tolist() for value in session.run(values, {x: [1.0]})] == [[2], [4]]
    assert allreduce_fused([]) == []


def test_allreduce_fused_refuses_what_is_no_list_of_tensors(engine):
    for bad, words in (
        (tf.ones([2]), ["tensors: expected a list", "Tensor"]),
        ([tf.ones([2]), None], ["tensors[1]", "None", "leave it out"]),
        ([tf.constant("text")], ["tensors[0]", "string"]),
    ):
        with pytest.raises(foldcast.InvalidArgumentError) as caught:
            allreduce_fused(bad)
        assert all(word in str(caught.value) for word in words + ["HcomAllReduceFused node"]), caught.value
    assert engine.submissions == []


def test_allreduce_fused_has_a_gradient(engine):
    weights = [tf.Variable([1.0, 2.0]), tf.Variable(3.0), tf.Variable(4.0)]

    def step():
        with tf.GradientTape() as tape:
            first, second, _ = allreduce_fused([weight * 1.0 for weight in weights])
            loss = tf.reduce_sum(first) + 5.0 * second
        return (loss, *tape.gradient(loss, weights))

    for run in (step, tf.function(step)):
        engine.submissions.clear()
        loss, first, second, third = run()
        assert (float(loss), first.numpy().tolist(), float(second), float(third)) == (36, [2, 2], 10, 0)
        assert sizes(engine) == [16, 16]
    with tf.GradientTape() as tape:
        loss = tf.add_n(allreduce_fused([weights[1] * 1.0], "max"))
    with pytest.raises(foldcast.InvalidArgumentError, match="only for reduction='sum'"):
        tape.gradient(loss, weights[1])


def test_another_graph_plugin_is_found_and_left_alone(tmp_path):
    """Beside a library with a graph optimiser there is a warning and no fusion; a library without one does not matter."""
    program = """
import tensorflow as tf, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from foldcast.tensorflow import allreduce, fusion_report
from _fake_engine import FakeEngine
with FakeEngine(fuse=True).attached() as engine:
    @tf.function
    def step(x):
        return [allreduce(x + float(i), "sum", 2, 1) for i in range(4)]
    assert [float(value) for value in step(tf.constant(0.0))] == [0, 2, 4, 6]
print(len(engine.submissions), *[str(warning.message) for warning in caught if "foldcast" in str(warning.message)])
"""
    # TensorFlow's packages, seen from another folder: plugins stand beside it.
    os.symlink(os.path.dirname(tf.__file__), tmp_path / "tensorflow")
    plugins = tmp_path / "tensorflow-plugins"
    plugins.mkdir()
    here = os.path.dirname(os.path.abspath(__file__))
    path = os.pathsep.join([str(tmp_path), here, os.environ.get("PYTHONPATH", "")])
    environment = dict(os.environ, PYTHONPATH=path, TF_CPP_MIN_LOG_LEVEL="2")
    environment.pop("FOLDCAST_TENSORFLOW_FUSION", None)
    for name, symbol in (("libdevice.so", b"SE_InitPlugin"), ("libgraphs.so", b"TF_InitGraph")):
        (plugins / name).write_bytes(b"\x7fELF" + bytes(100) + symbol + b"\0")
        said = subprocess.check_output([sys.executable, "-c", program], env=environment, timeout=300).decode()
        if name == "libdevice.so":
            assert said == "1\n"
        else:
            assert said.startswith("4 ") and str(plugins / name) in said and "not fused" in said, said


def gradients_fused_and_not(rank, size):
    """160 gradients on real ranks, and fewer of other dtypes: the same bits fused, unfused and eagerly."""
    import zlib

    import numpy as np
    import tensorflow as tf
    from foldcast.tensorflow import allreduce, fusion_report

    random = np.random.default_rng(rank)
    shapes = [((7 * i) % 50 + 1, i % 5 + 1) for i in range(160)]
    digests = []
    for dtype, count in ((tf.float32, 160), (tf.float16, 30), (tf.int32, 30)):
        inputs = [tf.cast(random.standard_normal(shape) * 100, dtype) for shape in shapes[:count]]

        @tf.function
        def step(tensors, fusion):
            return [allreduce(tensor, "sum", fusion, 3 if fusion == 2 else -1) for tensor in tensors]

        results = [step(inputs, fusion) for fusion in (0, 1, 2)]
        results.append([allreduce(tensor) for tensor in inputs])
        as_bytes = [b"".join(value.numpy().tobytes() for value in result) for result in results]
        assert len(set(as_bytes)) == 1
        digests.append(zlib.crc32(as_bytes[0]))
    # Two launches by default, one by fusion=2, for each dtype.
    launches = [len(launch["members"]) for launch in fusion_report()]
    assert (launches.count(160), launches.count(30)) == (1, 2), launches
    return [digests, len(fusion_report())]


def test_equal_bits_fused_and_unfused_on_real_ranks(warm_ranks):
    job = warm_ranks(3, gradients_fused_and_not, timeout=600)
    assert job.results[0] == job.results[1] == job.results[2]
    assert job.results[0][1] == 9
