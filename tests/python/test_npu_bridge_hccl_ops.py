"""npu_bridge.hccl.hccl_ops.allreduce as scripts call it: in v1 graphs and in tf.function, on real ranks."""


def graph_body(rank, size):
    import inspect

    import numpy as np
    import tensorflow.compat.v1 as tf
    from hccl.manage.api import create_group
    from npu_bridge.hccl import hccl_ops

    tf.disable_eager_execution()
    assert (
        str(inspect.signature(hccl_ops.allreduce))
        == "(tensor, reduction, fusion=1, fusion_id=-1, group='hccl_world_group')"
    )

    # Ranks 0, 1, 2, 3 give 1, 2, 3, 4 at place 0, and so on.
    mine = np.array([[1.0 + rank, -2.0 * rank, 0.5]], np.float32)
    fed = tf.placeholder(tf.float32, [None, 3])
    fetches = {reduction: hccl_ops.allreduce(fed, reduction) for reduction in ("sum", "max", "min", "prod")}
    assert [tensor.op.type for tensor in fetches.values()] == ["HcomAllReduce"] * 4
    assert [tensor.shape.as_list() for tensor in fetches.values()] == [[None, 3]] * 4
    assert {tensor.dtype for tensor in fetches.values()} == {tf.float32}

    # What TensorFlow converts to a tensor: a number, an array, a list (packed), slices (densified), a variable.
    fetches["number"] = hccl_ops.allreduce(2.0, "sum")
    fetches["array"] = hccl_ops.allreduce(np.arange(3, dtype=np.int64) + rank, "sum", fusion=0)
    fetches["list"] = hccl_ops.allreduce([fed], "sum", fusion=2, fusion_id=0)
    assert fetches["list"].shape.as_list() == [1, None, 3]
    slices = tf.IndexedSlices(tf.constant([[1.0], [2.0]]), tf.constant([2, 0]), tf.constant([3, 1]))
    fetches["slices"] = hccl_ops.allreduce(slices, "sum")
    variable = tf.get_variable("v", initializer=tf.constant(float(rank)))
    fetches["variable"] = hccl_ops.allreduce(variable, "sum")

    # A group that is made after the graph. Another name on each half, all positional.
    half = "even" if rank % 2 == 0 else "odd"
    fetches["half"] = hccl_ops.allreduce(fed, "sum", 1, -1, half)
    fetches["half gradient"] = tf.gradients(fetches["half"] * (1.0 + rank), fed)[0]
    create_group(half, 2, [rank % 2, rank % 2 + 2])

    fetches["gradient"] = tf.gradients(fetches["sum"] * (1.0 + rank), fed)[0]

    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        results = session.run(fetches, {fed: mine})
        assert session.run(variable) == rank, "a variable that feeds the op is never written to"
    return {name: result.tolist() for name, result in results.items()}


def test_graph(warm_ranks):
    expected = {
        "sum": [[10.0, -12.0, 2.0]],
        "max": [[4.0, 0.0, 0.5]],
        "min": [[1.0, -6.0, 0.5]],
        "prod": [[24.0, 0.0, 0.0625]],
        "number": 8.0,
        "array": [6, 10, 14],
        "list": [[[10.0, -12.0, 2.0]]],
        "slices": [[8.0], [0.0], [4.0]],
        "variable": 6.0,
        "gradient": [[10.0, 10.0, 10.0]],
    }
    even = {"half": [[4.0, -4.0, 1.0]], "half gradient": [[4.0, 4.0, 4.0]]}
    odd = {"half": [[6.0, -8.0, 1.0]], "half gradient": [[6.0, 6.0, 6.0]]}
    results = warm_ranks(4, graph_body).results
    assert results == [dict(expected, **half) for half in (even, odd, even, odd)]


def override_body(rank, size):
    import tensorflow.compat.v1 as tf
    from npu_bridge.hccl import hccl_ops

    tf.disable_eager_execution()

    @tf.RegisterGradient("Mine")
    def _mine(op, grad):
        return hccl_ops.allreduce(grad, "sum", fusion=0) * 10.0

    fed = tf.placeholder(tf.float32, [2])
    with tf.get_default_graph().gradient_override_map({"HcomAllReduce": "Mine"}):
        overridden = hccl_ops.allreduce(fed, "sum")
    gradient = tf.gradients(overridden, fed)[0]
    with tf.Session() as session:
        return session.run(gradient, {fed: [1.0, 2.0]}).tolist()


def function_body(rank, size):
    import tensorflow as tf
    from npu_bridge.hccl import hccl_ops

    @tf.function
    def step(value):
        with tf.GradientTape() as tape:
            tape.watch(value)
            reduced = hccl_ops.allreduce(value, "sum")
        return reduced, tape.gradient(reduced, value)

    eager = hccl_ops.allreduce(tf.constant([1.0 + rank]), "max")
    reduced, gradient = step(tf.constant([1.0 + rank]))
    return [eager.numpy().tolist(), reduced.numpy().tolist(), gradient.numpy().tolist()]


def refusals_body(rank, size):
    import pytest
    import tensorflow.compat.v1 as tf
    from npu_bridge.hccl import hccl_ops

    tf.disable_eager_execution()
    value = tf.constant([1.0])
    with pytest.raises(ValueError):
        hccl_ops.allreduce(None, "sum")
    with pytest.raises(TypeError):
        hccl_ops.allreduce(value, "sum", name="mine")
    for words, arguments in [
        (["avg", "sum", "max", "min", "prod"], {"reduction": "avg"}),
        (["fusion", "3"], {"reduction": "sum", "fusion": 3}),
        (["fusion", "-1"], {"reduction": "max", "fusion": -1}),
        (["fusion_id", "-1"], {"reduction": "sum", "fusion": 2}),
        (["fusion_id", "-7"], {"reduction": "max", "fusion": 2, "fusion_id": -7}),
        (["127", "128"], {"reduction": "sum", "group": "g" * 128}),
        (["127", "0"], {"reduction": "sum", "group": ""}),
    ]:
        with pytest.raises(ValueError) as caught:
            hccl_ops.allreduce(value, **arguments)
        missing = [word for word in words if word not in str(caught.value)]
        assert not missing, f"{missing} not in: {caught.value}"

    # What only shows when the op runs, and then fails on this rank at once.
    absent = hccl_ops.allreduce(value, "sum", group="absent")
    with tf.Session() as session:
        with pytest.raises(tf.errors.OpError) as caught:
            session.run(absent)
        assert "absent" in str(caught.value) and f"rank {rank}" in str(caught.value), caught.value
        assert session.run(hccl_ops.allreduce(value, "sum")).tolist() == [2.0]


def small_bodies(rank, size):
    # Eager mode comes first: the others turn it off.
    return {
        "eager and function": function_body(rank, size),
        "gradient_override_map": override_body(rank, size),
        "refusals": refusals_body(rank, size),
    }


def test_eager_function_override_and_refusals(warm_ranks):
    expected = {
        "eager and function": [[2.0], [3.0], [2.0]],
        "gradient_override_map": [20.0, 20.0],
        "refusals": None,
    }
    assert warm_ranks(2, small_bodies).results == [expected] * 2
