"""The tags of allreduces in graphs: the same op has the same tag on every rank, and no two have one at the same time."""

import textwrap

import pytest
from _fake_engine import FakeEngine


@pytest.fixture(scope="module", autouse=True)
def modules():
    global allreduce, tf, v1
    import tensorflow as tf
    from foldcast.tensorflow import allreduce

    v1 = tf.compat.v1


@pytest.fixture
def engine():
    with FakeEngine().attached() as engine:
        yield engine


def tags_of(engine, call, *arguments):
    engine.submissions.clear()
    call(*arguments)
    return sorted(engine.tags)


def test_eager_calls_have_none(engine):
    assert tags_of(engine, lambda: [allreduce(1.0), allreduce(2.0, name="named")]) == ["", ""]


def make_step():
    @tf.function
    def step(x):
        return allreduce(x)

    return step


def test_functions_of_one_name_differ_and_their_traces_do_not(engine):
    first, second = make_step(), make_step()
    tags = [tags_of(engine, function, tf.constant([1.0])) for function in (first, second)]
    again = [tags_of(engine, function, tf.constant([1.0, 2.0])) for function in (first, second)]
    assert tags[0] != tags[1]
    assert again == tags


def test_methods_of_two_objects_differ_and_their_traces_do_not(engine):
    class Model(tf.Module):
        @tf.function
        def call(self, x):
            return allreduce(x)

    first, second = Model(), Model()
    tags = [tags_of(engine, model.call, tf.constant([1.0])) for model in (first, second)]
    again = [tags_of(engine, model.call, tf.constant([1.0, 2.0])) for model in (first, second)]
    assert tags[0] != tags[1]
    assert again == tags


def test_numbers_in_the_names_of_functions_stay(engine):
    def step_1(x):
        return allreduce(x)

    def step_2(x):
        return allreduce(x)

    tags = [tags_of(engine, tf.function(function), 1.0) for function in (step_1, step_2)]
    assert tags == [["step_1/HcomAllReduce"], ["step_2/HcomAllReduce"]]


def test_two_calls_of_one_function_differ(engine):
    inner = make_step()

    @tf.function
    def outer(x):
        return inner(x) + inner(x + 1)

    tags = tags_of(engine, lambda: outer(1.0))
    assert len(set(tags)) == 2
    assert tags_of(engine, lambda: outer(1.0)) == tags


def test_v1_graphs_differ(engine):
    def graph():
        with tf.Graph().as_default(), v1.Session() as session:
            return tags_of(engine, lambda: session.run([allreduce(tf.constant(1.0)), allreduce(tf.constant(1.0))]))

    first, second = graph(), graph()
    assert len(set(first + second)) == 4


def test_a_name_counts_only_what_its_group_has_seen(engine):
    def tag(group):
        def counted(x):
            return allreduce(x, group=group)

        return tags_of(engine, lambda: tf.function(counted)(1.0))

    assert tag("a") == ["counted/HcomAllReduce"]
    assert tag("a") == ["counted#2/HcomAllReduce"]
    assert tag("b") == ["counted/HcomAllReduce"]


def test_iterations_differ_and_steps_repeat(engine):
    @tf.function
    def loop(x):
        for _ in tf.range(3):
            for _ in tf.range(2):
                x = allreduce(x)
        return x

    tags = tags_of(engine, lambda: loop(tf.constant(1.0)))
    assert len(set(tags)) == 6
    assert tags_of(engine, lambda: loop(tf.constant(1.0))) == tags
    # Traced again, by then under other numbers of TensorFlow's.
    tf.function(lambda: allreduce(1.0))()
    assert tags_of(engine, lambda: loop(tf.constant([1.0]))) == tags


def test_parallel_iterations_of_a_v1_loop_are_in_flight_at_once():
    engine = FakeEngine(hold=8)
    with engine.attached(), tf.Graph().as_default(), v1.Session() as session:

        def body(i, array):
            return i + 1, array.write(i, allreduce(tf.cast(i, tf.float32)))

        array = tf.TensorArray(tf.float32, 8)
        _, array = v1.while_loop(lambda i, _: i < 8, body, (0, array), parallel_iterations=8)
        assert session.run(array.stack()).tolist() == [2.0 * i for i in range(8)]
        assert len(set(engine.tags)) == 8


def test_a_long_loop_has_a_bounded_number_of_tags():
    with FakeEngine(inline=True).attached() as engine:

        @tf.function
        def loop(x):
            return tf.while_loop(lambda i, _: i < 3000, lambda i, x: (i + 1, allreduce(x) * 0.5), (0, x))[1]

        assert loop(tf.constant(1.0)).numpy() == 1
        assert len(engine.tags) == 3000 and len(set(engine.tags)) == 1024


def test_branches_differ(engine):
    @tf.function
    def branch(x):
        if x > 0.0:
            return allreduce(x)
        return allreduce(-x)

    tags = [tags_of(engine, branch, tf.constant(value)) for value in (1.0, -1.0)]
    assert tags[0] != tags[1]


def test_control_flow_of_v1(engine):
    """Scripts that disable TensorFlow 2's behaviour get loops and branches inside the graph, not as functions."""
    v1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default(), v1.Session() as session:
            x = v1.placeholder(tf.float32, [])
            _, looped = v1.while_loop(lambda i, _: i < 3, lambda i, value: (i + 1, allreduce(value)), (0, x))
            branched = v1.cond(x > 0.0, lambda: allreduce(x), lambda: allreduce(-x))
            fetches = [looped, branched, tf.gradients(looped, x)[0]]
            tags = tags_of(engine, session.run, fetches, {x: 1.0})
            assert len(set(tags)) == 7
            assert tags_of(engine, session.run, fetches, {x: 2.0}) == tags
            assert session.run(fetches, {x: 1.0}) == [8, 2, 8]
    finally:
        v1.enable_control_flow_v2()


def test_a_backward_pass_is_named_after_its_function(engine):
    inner = make_step()

    def backward(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = inner(x)
        return tape.gradient(y, x)

    x = tf.constant(1.0)
    tags = tags_of(engine, lambda: backward(x))
    function = tags[1].split("/")[0]
    assert tags[0] == f"grad({function})/gradients/HcomAllReduce_grad/HcomAllReduce"
    # For another shape forward and backward are traced again.
    assert tags_of(engine, lambda: backward(tf.constant([1.0]))) == tags


def test_what_a_custom_gradient_makes_is_named_after_its_function(engine):
    @tf.custom_gradient
    def both_ways(x):
        return x, lambda incoming: allreduce(incoming)

    @tf.function
    def custom(x):
        return both_ways(x) * 2.0

    def backward(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = custom(x)
        return tape.gradient(y, x)

    tags = tags_of(engine, lambda: backward(tf.constant(1.0)))
    assert tags[0].startswith("grad(custom)/")
    assert tags_of(engine, lambda: backward(tf.constant([1.0]))) == tags


def test_the_tag_goes_into_a_saved_model(engine, tmp_path):
    class Model(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None])])
        def serve(self, x):
            return allreduce(x, "max")

    model = Model()
    tags = tags_of(engine, lambda: model.serve([1.0]))
    tf.saved_model.save(model, str(tmp_path))
    loaded = tf.compat.v2.saved_model.load(str(tmp_path))
    # The loaded function calls the saved one, whose body TensorFlow copies into it.
    again = tags_of(engine, lambda: loaded.serve([1.0]))
    assert [tag.replace("StatefulPartitionedCall/", "") for tag in again] == tags
    assert engine.submissions[0].reduction == "max"
    assert loaded.serve(tf.constant([1.0, 2.0])).numpy().tolist() == [2, 4]


def test_a_graph_without_tags_is_matched_by_its_nodes(engine):
    with tf.Graph().as_default() as made:
        x = v1.placeholder(tf.float32, [2], name="x")
        allreduce(x, name="tower/sum")
    definition = made.as_graph_def()
    for node in definition.node:
        node.attr.pop("tag", None)
    with tf.Graph().as_default(), v1.Session() as session:
        (result,) = tf.import_graph_def(definition, return_elements=["tower/sum:0"], name="there")
        assert session.run(result, {"there/x:0": [1, 2]}).tolist() == [2, 4]
    assert engine.tags == ["there/tower/sum"]


# A program whose tags must not depend on what it has traced before: argument 1 is how much.
PROGRAM = """
    import sys
    import tensorflow as tf
    from _fake_engine import FakeEngine
    from foldcast.tensorflow import allreduce

    for i in range(int(sys.argv[1])):
        @tf.function
        def other(x):
            y = x
            for _ in tf.range(2):
                y = y + 1.0
            return tf.cond(tf.reduce_sum(y) > 0.0, lambda: y, lambda: x)
        other(tf.constant([1.0] * (i + 1)))

    weight = tf.Variable(2.0)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            y = x * weight
            for _ in tf.range(2):
                y = allreduce(y)
            if tf.reduce_sum(y) > 0.0:
                y = allreduce(y * 2.0)
        return allreduce(tape.gradient(y, weight))

    with FakeEngine().attached() as engine:
        for length in range(1, int(sys.argv[1]) + 2):
            engine.submissions.clear()
            step(tf.constant([1.0] * length))
        print(*sorted(engine.tags), sep="\\n")
"""


def test_tags_do_not_depend_on_what_was_traced_before(tmp_path):
    import os
    import pathlib
    import subprocess
    import sys

    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    here = str(pathlib.Path(__file__).parent)
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]))
    runs = [
        subprocess.Popen([sys.executable, str(program), before], env=environment, stdout=subprocess.PIPE, text=True)
        for before in ("0", "3")
    ]
    outputs = [run.communicate()[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    # Two iterations, their gradients, the gradient of the branch, and the last one; the branch itself is not needed.
    assert len(set(outputs[0].split())) == 6
    assert outputs[0] == outputs[1]
