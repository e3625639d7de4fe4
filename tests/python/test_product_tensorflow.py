"""R4 and R13 in TensorFlow: what a product does not take is refused when the op is made, naming it."""

import contextlib

import numpy as np
import pytest
from _page import PAGE, takers, takes, words

REDUCTIONS = ["sum", "max", "min", "prod"]
LIMITED = [product for product in PAGE if takes(product, "float32", "sum") and product != "host"]


@pytest.fixture(scope="module", autouse=True)
def modules():
    global allreduce, foldcast, tf, v1
    import foldcast
    import tensorflow as tf
    from foldcast.tensorflow import allreduce

    v1 = tf.compat.v1


@contextlib.contextmanager
def chosen(product):
    before = foldcast.product()
    foldcast.set_product(product)
    try:
        yield
    finally:
        foldcast.set_product(before)


def refused(make, *parts):
    with pytest.raises(foldcast.InvalidArgumentError) as caught:
        make()
    for part in parts:
        assert part in str(caught.value), f"{part!r} is not in: {caught.value}"
    return caught.value


def dtypes():
    from foldcast.tensorflow import _ops

    return [dtype.name for dtype in _ops._DTYPES]


def in_each_mode(tensor_of, make):
    """Runs `make` on a tensor in a v1 graph, while a function is traced, and eagerly; says how messages name the op there."""
    with tf.Graph().as_default():
        make(tensor_of(), "HcomAllReduce node 'scope/mine")

    @tf.function(autograph=False)
    def traced():
        make(tensor_of(), "HcomAllReduce node 'scope/mine")

    traced()
    make(tensor_of(), "HcomAllReduce node 'mine")


# ---- R4 ----


@pytest.mark.parametrize("product", PAGE)
def test_r4_every_dtype_and_reduction(product):
    def make(tensor, node):
        dtype = tensor.dtype.name
        for reduction in REDUCTIONS:

            def call():
                with tf.name_scope("scope/"):
                    return allreduce(tensor, reduction, name=f"mine_{reduction}")  # noqa: B023

            if takes(product, dtype, reduction):
                assert call().dtype == tensor.dtype
            else:
                error = refused(
                    call, f"{node}_{reduction}'", product, dtype, f"with {reduction}", *takers(dtype, reduction)
                )
                assert error.field in ("product", "dtype", "reduction") and error.op == "allreduce"
                assert all(taken in str(error) for taken in words(product, "dtypes"))

    with chosen(product):
        assert len(dtypes()) == 12
        for dtype in dtypes():
            in_each_mode(lambda: tf.zeros([2], dtype), make)  # noqa: B023


def test_r4_a_refused_op_leaves_no_trace_in_the_graph():
    with chosen("atlas-a2"), tf.Graph().as_default() as graph:
        wide, narrow = tf.zeros([2], tf.float64), tf.zeros([2], tf.float32)
        before = [op.name for op in graph.get_operations()]
        refused(lambda: allreduce(wide), "HcomAllReduce node 'HcomAllReduce'")
        assert [op.name for op in graph.get_operations()] == before
        assert allreduce(narrow).op.name == "HcomAllReduce"


def test_r4_a_graph_made_without_limits_is_held_to_them_when_it_runs():
    with tf.Graph().as_default(), v1.Session() as session:
        wide, narrow = allreduce(tf.ones([2], tf.float64), name="wide"), allreduce(tf.ones([2], tf.float32))
        assert session.run(wide).tolist() == [1, 1]
        with chosen("atlas-a2"):
            with pytest.raises(tf.errors.InvalidArgumentError, match="atlas-a2.*float64.*atlas-350") as caught:
                session.run(wide)
            assert "wide" in str(caught.value)
            assert session.run(narrow).tolist() == [1, 1]
        assert session.run(wide).tolist() == [1, 1]


def test_r4_under_the_names_of_the_page():
    from npu_bridge.hccl import hccl_ops

    with chosen("atlas-350"), tf.Graph().as_default():
        with pytest.raises(ValueError, match="atlas-350.*prod"):
            hccl_ops.allreduce(tf.ones([1, 3]), "prod")
        assert hccl_ops.allreduce(tf.ones([1, 3]), "max").shape == (1, 3)


# ---- R13: graphs of v1 ----


def a_variable(name, resource):
    return v1.get_variable(name, initializer=tf.constant([1.0, 2.0]), use_resource=resource)


@pytest.mark.parametrize("product", LIMITED)
@pytest.mark.parametrize("resource", [False, True])
def test_r13_a_variable_that_feeds_the_op_is_named(product, resource):
    with chosen(product), tf.Graph().as_default():
        with v1.variable_scope("layer"):
            variable = a_variable("weights", resource)
        found = [variable, variable.value(), tf.convert_to_tensor(variable)]
        if resource:
            found.append(tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=tf.float32))
        else:
            found.append(variable._ref())
        for value in found:
            error = refused(
                lambda: allreduce(value, name="mine"),  # noqa: B023
                "HcomAllReduce node 'mine'",
                "variable 'layer/weights'",
                product,
                "tf.identity",
            )
            assert error.field == "tensor" and error.got == "variable 'layer/weights'"
        fine = [
            tf.identity(variable),
            variable * 1.0,
            variable + variable,
            [variable],
            tf.stop_gradient(variable),
            tf.cast(variable, tf.float16),
            tf.gather(variable, [0]),
            v1.placeholder(tf.float32, [2]),
            tf.constant(1.0),
        ]
        for value in fine:
            assert allreduce(value).op.type == "HcomAllReduce"


def test_r13_in_loops_and_branches_of_v1_graphs():
    with chosen("atlas-a2"), tf.Graph().as_default():
        variable = a_variable("weights", True)
        v1.disable_control_flow_v2()
        try:
            refused(
                lambda: tf.cond(v1.placeholder(tf.bool, []), lambda: allreduce(variable), lambda: tf.zeros([2])),
                "variable 'weights'",
            )
            refused(
                lambda: v1.while_loop(
                    lambda i, _: i < 3, lambda i, _: (i + 1, allreduce(variable)), [0, tf.zeros([2])]
                ),
                "variable 'weights'",
            )
        finally:
            v1.enable_control_flow_v2()


def test_r13_the_import_of_a_graph_keeps_what_feeds_what():
    with tf.Graph().as_default() as graph:
        a_variable("old", False)
        a_variable("new", True)
        definition = graph.as_graph_def()
    with chosen("atlas-a2"), tf.Graph().as_default() as graph:
        tf.import_graph_def(definition, name="in")
        refused(lambda: allreduce(graph.get_tensor_by_name("in/old/read:0")), "variable 'in/old'")
        refused(lambda: allreduce(graph.get_tensor_by_name("in/new/Read/ReadVariableOp:0")), "variable 'in/new'")


# ---- R13: functions, eager calls ----


def test_r13_in_functions():
    variable, local = tf.Variable([1.0, 2.0], name="weights"), []

    def traced(body):
        # AutoGraph would raise an error of its own, with ours as its text.
        return lambda: tf.function(body, autograph=False).get_concrete_function()

    def made_inside():
        if not local:
            local.append(tf.Variable([3.0], name="inside"))
        return allreduce(local[0])

    inner = tf.function(lambda: allreduce(variable), autograph=False)
    read_outside = tf.function(lambda value: allreduce(value), autograph=False)

    @tf.function(autograph=False)
    def captured():
        value = variable.value()
        return tf.cond(tf.reduce_sum(value) > 0, lambda: allreduce(value), lambda: value)

    with chosen("atlas-training"):
        for body, name in {
            "read": (lambda: allreduce(variable), "weights"),
            "value": (lambda: allreduce(variable.value()), "weights"),
            "inside": (made_inside, "inside"),
            "nested": (lambda: inner(), "weights"),
            "branch": (
                lambda: tf.cond(tf.constant(1) > 0, lambda: allreduce(variable), lambda: tf.zeros([2])),
                "weights",
            ),
            "loop": (
                lambda: tf.while_loop(
                    lambda i, _: i < 2, lambda i, _: (i + 1, allreduce(variable)), [0, tf.zeros([2])]
                ),
                "weights",
            ),
            "captured": (lambda: captured(), "weights"),
        }.values():
            refused(traced(body), f"variable '{name}'", "atlas-training", "HcomAllReduce node")
        for body in (
            lambda: allreduce(tf.identity(variable)),
            lambda: allreduce(variable * 2),
            lambda: allreduce(tf.constant([1.0])),
            lambda: read_outside(variable.value() + 0),
        ):
            traced(body)()
        # What a function gets as an argument is no variable's read.
        assert read_outside(tf.constant([1.0, 2.0])).numpy().tolist() == [1, 2]


def test_r13_eagerly():
    variable = tf.Variable([1.0, 2.0], name="weights")
    with chosen("atlas-300i-duo"):
        error = refused(lambda: allreduce(variable), "HcomAllReduce node 'HcomAllReduce'", "variable 'weights'")
        assert error.field == "tensor"
        assert allreduce(tf.identity(variable)).numpy().tolist() == [1, 2]
        assert allreduce(variable * 2).numpy().tolist() == [2, 4]
        # A dtype that the product does not take is named first.
        refused(lambda: allreduce(tf.Variable([1.0], dtype=tf.float64)), "dtype", "float64")


def test_r13_variables_of_keras():
    if not hasattr(tf.keras, "Variable"):
        pytest.skip("Keras has variables of its own from its third release on")
    variable = tf.keras.Variable([1.0, 2.0], name="kernel")
    with chosen("atlas-a3"):
        refused(lambda: allreduce(variable), "variable 'kernel'")
        traced = tf.function(lambda: allreduce(variable), autograph=False)
        refused(traced.get_concrete_function, "variable 'kernel'")


def test_r13_on_hosts_a_variable_is_taken_and_never_written_to():
    start = np.arange(5000, dtype=np.float32)
    assert foldcast.product() == "host"
    variable = tf.Variable(start)
    # The largest of one rank is what it gave; a sum of itself twice would show any write.
    for way in (lambda: allreduce(variable), tf.function(lambda: allreduce(variable) + allreduce(variable.value()))):
        for _ in range(3):
            way()
            assert np.array_equal(variable.numpy(), start)
    for resource in (False, True):
        with tf.Graph().as_default(), v1.Session() as session:
            held = v1.get_variable("held", initializer=tf.constant(start), use_resource=resource)
            results = [allreduce(held, reduction) for reduction in REDUCTIONS]
            session.run(v1.global_variables_initializer())
            for _ in range(3):
                assert all(np.array_equal(found, start) for found in session.run(results))
                assert np.array_equal(session.run(held), start)


def a_variable_on_ranks(rank, size):
    """Sums differ from what was given only where there are several ranks: the variable keeps what it had."""
    import numpy as np
    import tensorflow as tf
    from foldcast.tensorflow import allreduce

    v1 = tf.compat.v1
    start = np.full(70_000, rank + 1, np.float32)
    right = np.full(70_000, size * (size + 1) / 2, np.float32)
    variable = tf.Variable(start)
    for way in (lambda: allreduce(variable), tf.function(lambda: allreduce(variable))):
        assert np.array_equal(way().numpy(), right) and np.array_equal(variable.numpy(), start)
    for resource in (False, True):
        with tf.Graph().as_default(), v1.Session() as session:
            held = v1.get_variable("held", initializer=tf.constant(start), use_resource=resource)
            result = allreduce(held)
            session.run(v1.global_variables_initializer())
            for _ in range(3):
                assert np.array_equal(session.run(result), right)
                assert np.array_equal(session.run(held), start)


def test_r13_on_hosts_with_several_ranks(warm_ranks):
    warm_ranks(2, a_variable_on_ranks)
