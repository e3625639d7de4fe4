"""foldcast.tensorflow.broadcast, allgather and allreduce_sparse on real ranks, and hccl_ops upon them."""

import signal

import pytest

# A job's watchdog: many graphs are made, by ranks that may share two processors with others.
TIMEOUT = 400


def every_dtype(rank, size):
    """Bits are moved, in each way of running TensorFlow. Returns a digest of them all."""
    import zlib

    import _oracle
    import numpy as np
    import tensorflow as tf
    from foldcast.tensorflow import allgather, broadcast

    shapes = [(), (0,), (2, 0, 3), (1, 3), (1027,), (40, 1000)]
    root = size - 1

    def moved(tensors):
        # One list with everything in it, one tensor alone, and what has a first dimension gathered in both ways.
        rest = [tensor for tensor in tensors if tensor.shape.ndims]
        return {
            "list": broadcast(tensors, root),
            "alone": broadcast(tensors[3], root),
            "equal": [allgather(tensor) for tensor in rest],
            "unequal": [allgather(tensor, equal=False) for tensor in rest],
        }

    def in_session(arrays):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            fed = [tf.compat.v1.placeholder(array.dtype, [None] * array.ndim) for array in arrays]
            return session.run(moved(fed), dict(zip(fed, arrays)))

    ways = {
        "eager": lambda arrays: moved([tf.constant(array) for array in arrays]),
        "function": lambda arrays: tf.function(moved)([tf.constant(array) for array in arrays]),
        "session": in_session,
    }

    def inputs(r):
        """Of all dtypes; random bytes, among which are NaNs with payloads."""
        for number, name in enumerate(_oracle.DTYPES):
            kind = _oracle.dtype(name)
            for shape in shapes if number % 3 == 0 else shapes[:4]:
                count = int(np.prod(shape))
                source = np.random.RandomState(100 * r + number)
                yield np.frombuffer(source.bytes(count * kind.itemsize), kind).reshape(shape)

    every = [list(inputs(r)) for r in range(size)]
    joined = [np.concatenate(arrays) for arrays in zip(*every) if arrays[0].ndim]
    right = {"list": every[root], "alone": [every[root][3]], "equal": joined, "unequal": joined}
    digest = 0
    for way, run in ways.items():
        found = run(every[rank])
        found["alone"] = [found["alone"]]
        for what, expected in right.items():
            assert len(found[what]) == len(expected), what
            for result, wanted in zip(found[what], expected):
                result = np.asarray(result if way == "session" else result.numpy())
                case = (way, what, wanted.dtype, wanted.shape, result.shape)
                assert result.dtype == wanted.dtype and result.shape == wanted.shape, case
                assert np.array_equal(_oracle.bits(result), _oracle.bits(wanted)), case
                digest = zlib.crc32(result.tobytes(), digest)
    return digest


def test_every_dtype_in_every_mode(warm_ranks):
    assert len(set(warm_ranks(3, every_dtype, timeout=TIMEOUT).results)) == 1


def graphs(rank, size):
    """What scripts do in v1 graphs: shapes, variables, groups, loops, steps."""
    import foldcast
    import numpy as np
    import tensorflow as tf
    from foldcast.tensorflow import allgather, broadcast
    from foldcast.tensorflow._library import LIBRARY

    v1 = tf.compat.v1
    v2_control_flow = v1.control_flow_v2_enabled()

    with tf.Graph().as_default(), v1.Session() as session:
        fed = v1.placeholder(tf.float32, [None, 3])
        one, two = broadcast([fed, tf.constant([rank])], 0)
        assert [one.op.type, two.op.type, one.op.name] == ["HcomBroadcast"] * 3
        assert one.op is two.op and one.shape.as_list() == [None, 3] and two.shape.as_list() == [1]
        known, unknown = allgather(tf.ones([2, 3])), allgather(fed)
        assert known.op.type == "HcomAllGather" and known.shape.as_list() == [2 * size, 3]
        assert unknown.shape.as_list() == [None, 3]
        assert allgather(tf.ones([2, 3]), equal=False).shape.as_list() == [None, 3]
        anything = allgather(v1.placeholder(tf.float32))
        assert anything.shape.ndims is None
        # What the op itself infers, as for a graph that is loaded.
        plain = LIBRARY.ops.hcom_all_gather(tensor=fed, rank_size=size)
        assert plain.shape.as_list() == [None, 3]

        # A group that is made after the graph.
        late = allgather(fed, group="late"), broadcast([fed], size - 1, group="late")[0]
        foldcast.new_group(range(size), "late")
        values = np.full([2, 3], rank, np.float32)
        found = session.run(late, {fed: values})
        assert found[0][:, 0].tolist() == [r for r in range(size) for _ in range(2)]
        assert found[1][0, 0] == size - 1

        # Variables are read; 160 of them in one op, which is one call.
        variables = [v1.get_variable("v%d" % i, initializer=np.full(i % 7, rank + i, np.float32)) for i in range(160)]
        big = v1.get_variable("big", initializer=np.full(1 << 20, rank, np.int32))
        spread = broadcast(variables + [big], 0)
        update = tf.group(*[v1.assign(v, value) for v, value in zip(variables + [big], spread)])
        session.run(v1.global_variables_initializer())
        before = LIBRARY.counters()["calls_submitted"]
        session.run(update)
        assert LIBRARY.counters()["calls_submitted"] == before + 1
        for i, value in enumerate(session.run(variables)):
            assert value.tolist() == [i] * (i % 7)
        assert not session.run(big).any()

        # A loop whose iterations overlap.
        def body(i, array):
            row = tf.cast(tf.stack([i + rank]), tf.float32)
            return i + 1, array.write(i, tf.concat([allgather(row), broadcast([row], 0)[0]], 0))

        array = tf.TensorArray(tf.float32, 9, element_shape=[size + 1])
        _, array = v1.while_loop(lambda i, _: i < 9, body, (0, array), parallel_iterations=1 if v2_control_flow else 4)
        for _ in range(2):
            found = session.run(array.stack()).tolist()
            assert found == [[float(i + r) for r in range(size)] + [float(i)] for i in range(9)]

        # Many small ones in one step, and steps again and again.
        many = [allgather(fed + float(i), equal=bool(i % 2)) for i in range(40)] + broadcast([fed] * 40, 0)
        for step in range(10):
            found = session.run(many, {fed: values + step})
            assert [array[-1, 0] for array in found[:40]] == [size - 1 + step + i for i in range(40)]
            assert all(array[0, 0] == step for array in found[40:])


@pytest.mark.parametrize("size", [1, 4])
def test_graphs(warm_ranks, size):
    warm_ranks(size, graphs, timeout=TIMEOUT)


def functions_and_gradients(rank, size):
    import numpy as np
    import tensorflow as tf
    from foldcast.tensorflow import GradientError, allgather, allreduce_sparse, broadcast

    @tf.function
    def loop(x, times):
        for _ in tf.range(times):
            x = broadcast(x + 1.0, 0) + tf.reduce_sum(allgather(x, equal=False)[:1]) * 0.0
        return x

    assert loop(tf.fill([3], float(rank)), 4).numpy().tolist() == [4.0] * 3

    # Independent ones run at the same time: nothing chains them.
    @tf.function
    def together(x):
        return [allgather(x + float(i)) for i in range(6)] + [broadcast(x + float(i), i % size) for i in range(6)]

    found = [tensor.numpy().tolist() for tensor in together(tf.fill([1], float(rank)))]
    assert found == [[float(r + i) for r in range(size)] for i in range(6)] + [[float(i % size + i)] for i in range(6)]
    graph = together.get_concrete_function(tf.TensorSpec([1])).graph
    moves = [op for op in graph.get_operations() if op.type in ("HcomAllGather", "HcomBroadcast")]
    assert len(moves) == 12 and not any(op.control_inputs for op in moves)

    # The gradient of an allgather: each rank weighs all rows by its own factor.
    lengths = [2 + (r % 2) for r in range(size)]
    for equal in (True, False):
        rows = 2 if equal else lengths[rank]
        all_rows = 2 * size if equal else sum(lengths)
        before = 2 * rank if equal else sum(lengths[:rank])
        weights = np.arange(2.0 * all_rows, dtype=np.float32).reshape(all_rows, 2)

        def gradient(x, equal=equal, weights=weights):
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_sum(allgather(x, equal=equal) * weights * (rank + 1.0))
            return tape.gradient(loss, x)

        for run in (gradient, tf.function(gradient)):
            found = run(tf.ones([rows, 2]))
            expected = weights[before : before + rows] * sum(range(1, size + 1))
            assert found.shape == [rows, 2] and np.array_equal(found.numpy(), expected), (found, expected)

    with tf.GradientTape() as tape:
        x = tf.constant([1.0])
        tape.watch(x)
        y = broadcast(x)
    with pytest.raises(GradientError, match="tf.stop_gradient"):
        tape.gradient(y, x)

    # Slices of all ranks; one that a rank has twice, and a rank that has none.
    count = rank % 2 + 1 if rank else 0
    values, indices = tf.fill([count, 2], rank + 1.0), tf.range(count)
    for average in (False, True):

        def summed(values, indices, average=average):
            return allreduce_sparse(tf.IndexedSlices(values, indices, tf.constant([4, 2])), average=average)

        for run in (summed, tf.function(summed)):
            found = run(values, indices)
            assert isinstance(found, tf.IndexedSlices) and found.dense_shape.numpy().tolist() == [4, 2]
            dense = np.zeros([4, 2], np.float32)
            for r in range(1, size):
                dense[: r % 2 + 1] += (r + 1.0) / (size if average else 1)
            together_again = np.zeros([4, 2], np.float32)
            np.add.at(together_again, found.indices.numpy(), found.values.numpy())
            assert np.allclose(together_again, dense)
    assert allreduce_sparse(tf.IndexedSlices(values, indices)).dense_shape is None
    for bad, words in ((tf.ones([2]), "slices.*IndexedSlices"), ([1], "slices")):
        with pytest.raises(ValueError, match=words):
            allreduce_sparse(bad)
    with pytest.raises(ValueError, match="floating-point.*int32"):
        allreduce_sparse(tf.IndexedSlices(tf.constant([1]), tf.constant([0])), average=True)


def test_functions_gradients_and_slices(warm_ranks):
    warm_ranks(3, functions_and_gradients, timeout=TIMEOUT)


def bad_calls(rank, size):
    import foldcast
    import pytest
    import tensorflow as tf
    from foldcast.tensorflow import allgather, broadcast
    from foldcast.tensorflow._library import LIBRARY

    v1 = tf.compat.v1

    # When the op is made.
    ones = tf.ones([2])
    for call, words in [
        (lambda: broadcast(ones, size), ["HcomBroadcast node", "root_rank", "0 to %d" % (size - 1), "got %d" % size]),
        (lambda: broadcast(ones, -1), ["root_rank", "-1"]),
        (lambda: broadcast(ones, "0"), ["root_rank", "'0'"]),
        (lambda: broadcast([]), ["tensors", "at least one"]),
        (lambda: broadcast([ones, True]), ["tensor", "bool"]),
        (lambda: broadcast(ones, fusion=3), ["fusion", "0, 1 or 2", "3"]),
        (lambda: broadcast(ones, group=""), ["group", "1 to 127 bytes"]),
        (lambda: allgather(1.0), ["HcomAllGather node", "tensor", "at least one dimension", "scalar"]),
        (lambda: allgather(ones, rank_size=size + 1), ["rank_size", "expected %d" % size, "got %d" % (size + 1)]),
        (lambda: allgather(ones, rank_size=0), ["rank_size", "got 0"]),
        (lambda: allgather(["text"]), ["tensor", "string"]),
    ]:
        with pytest.raises(foldcast.InvalidArgumentError) as caught:
            call()
        assert isinstance(caught.value, ValueError)
        assert all(word in str(caught.value) for word in words), str(caught.value)

    def refusal(call, *arguments, **options):
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            call(*arguments, **options)
        return str(caught.value)

    # When it runs: ranks that disagree, eagerly and in a session; the next correct call works.
    odd = rank == size - 1
    other = [tf.float32, tf.int32][odd]
    differences = [
        ("root", lambda **names: broadcast(tf.ones([3]), rank, **names)),
        ("count", lambda **names: broadcast(tf.ones([3 + odd]), **names)),
        ("dtype", lambda **names: broadcast(tf.ones([3], other), **names)),
        ("parts", lambda **names: broadcast([tf.ones([3 - odd]), tf.ones([3 + odd])], **names)[0]),
        ("parts", lambda **names: broadcast([tf.ones([1], other), tf.ones([1], tf.int16)], **names)[0]),
        ("kind", lambda **names: (allgather if odd else broadcast)(tf.ones([3]), **names)),
        ("count", lambda **names: allgather(tf.ones([3 + odd]), **names)),
        ("dtype", lambda **names: allgather(tf.ones([3], other), **names)),
        ("count", lambda **names: allgather(tf.ones([3 + odd, 2 + odd]), equal=False, **names)),
    ]
    for field, make in differences:
        text = refusal(make)
        assert "disagree in %s" % field in text and "rank 0" in text and "rank %d" % (size - 1) in text, text
        assert allgather(tf.constant([rank])).numpy().tolist() == list(range(size))
        with tf.Graph().as_default(), v1.Session() as session:
            # One name on all ranks, so that the ops meet, whatever they are.
            wrong, right = make(name="tower/wrong"), broadcast([tf.fill([2], rank)], 1)[0]
            text = refusal(session.run, wrong)
            assert "disagree in %s" % field in text and "node 'tower/wrong'" in text, text
            assert session.run(right).tolist() == [1, 1]

    # In graphs from elsewhere the op checks for itself.
    for call, words in [
        (lambda: LIBRARY.ops.hcom_all_gather(tensor=1.0, rank_size=size), "least"),
        (
            lambda: LIBRARY.ops.hcom_all_gather(tensor=[1.0], rank_size=size + 1, tag="x"),
            "rank_size: expected %d" % size,
        ),
        (lambda: LIBRARY.ops.hcom_broadcast(tensors=[1.0], root_rank=size, tag="x"), "root_rank: expected 0 to"),
    ]:
        with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match=words):
            call()
    # Nobody is inside of an eager call any more after that.
    assert allgather(tf.constant([rank])).numpy().tolist() == list(range(size))

    # No member.
    group = foldcast.new_group([1], "second")
    if rank == 1:
        assert broadcast(5.0, group=group).numpy() == 5 and allgather([5], group="second").numpy().tolist() == [5]
    else:
        for call in (broadcast, allgather):
            for options in ({}, {"equal": False}) if call is allgather else ({},):
                text = refusal(call, tf.ones([1]), group=group, **options)
                assert "rank %d" % rank in text and "'second'" in text, text
    assert "'nobody'" in refusal(broadcast, 1.0, group="nobody")

    foldcast.shutdown()
    for call in (broadcast, allgather):
        with pytest.raises(tf.errors.FailedPreconditionError, match="closed"):
            with tf.Graph().as_default(), v1.Session() as session:
                session.run(raw(call.__name__, size))


def raw(name, size):
    from foldcast.tensorflow._library import LIBRARY

    if name == "broadcast":
        return LIBRARY.ops.hcom_broadcast(tensors=[[1.0]], root_rank=0)
    return LIBRARY.ops.hcom_all_gather(tensor=[1.0], rank_size=size, unequal=1)


def test_bad_calls_are_errors_and_the_next_call_works(warm_ranks):
    warm_ranks(2, bad_calls, timeout=TIMEOUT)


def with_a_victim(rank, size):
    """Everybody is in a broadcast or an allgather when rank 1 ends; the others report what they got."""
    import os
    import time

    import tensorflow as tf
    from _ranks import ready, report
    from foldcast.tensorflow import allgather, broadcast

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        calls = broadcast([tf.ones([4]), tf.ones([1 << 20])], 1, name="spread"), allgather(tf.ones([3]), equal=False)
        session.run(calls)
        ready("running")
        if rank == 1:
            time.sleep(600)
        found = []
        for call in calls:
            try:
                session.run(call)
            except (tf.errors.FailedPreconditionError, tf.errors.AbortedError) as error:
                found.append(str(error))
        report(found)
    os._exit(0)


def test_a_killed_rank_ends_the_step_of_the_others(warm_ranks):
    with warm_ranks.start(3, with_a_victim, keep_going=True, timeout=TIMEOUT) as job:
        for rank in range(3):
            job.wait_ready(rank, "running")
        job.kill(1, signal.SIGKILL)
        job.finish(expect=None)
    assert "Traceback" not in job.stderr, job.stderr
    for rank in (0, 2):
        broadcast, allgather = job.results[rank]
        assert "rank 1" in broadcast and "SIGKILL" in broadcast and "HcomBroadcast node 'spread'" in broadcast
        assert "rank 1" in allgather and "HcomAllGather node" in allgather


def in_turn(rank, size):
    """With synchronous kernels the moves of a graph take turns, so that few threads are enough."""
    import warnings

    import tensorflow as tf

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from foldcast.tensorflow import allgather, broadcast

    v1 = tf.compat.v1
    one_thread = v1.ConfigProto(
        inter_op_parallelism_threads=1, intra_op_parallelism_threads=1, use_per_session_threads=True
    )
    with tf.Graph().as_default(), v1.Session(config=one_thread) as session:
        mine = tf.constant([float(rank)])
        order = range(12) if rank else range(11, -1, -1)
        results = [
            broadcast([mine + float(i)], 0)[0] if i % 3 == 0 else allgather(mine + float(i), equal=i % 3 == 1)
            for i in range(12)
        ]
        found = session.run([results[i] for i in order])
        for i, array in zip(order, found):
            assert array.tolist() == ([float(i)] if i % 3 == 0 else [float(r + i) for r in range(size)])


def test_synchronous_kernels(warm_ranks):
    warm_ranks(2, in_turn, env={"FOLDCAST_TENSORFLOW_SYNCHRONOUS": "1"}, timeout=TIMEOUT)


def hccl_ops_body(rank, size):
    import inspect

    import tensorflow as tf
    from npu_bridge.hccl import hccl_ops

    assert str(inspect.signature(hccl_ops.broadcast)) == (
        "(tensor, root_rank, fusion=2, fusion_id=0, group='hccl_world_group')"
    )
    assert str(inspect.signature(hccl_ops.allgather)) == (
        "(tensor, rank_size, group='hccl_world_group', fusion=0, fusion_id=-1)"
    )
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        first, second = hccl_ops.broadcast([tf.fill([2], rank), tf.constant(float(rank))], 1)
        gathered = hccl_ops.allgather(tf.fill([1, 2], rank), size, "hccl_world_group", 1, 5)
        assert (first.op.type, gathered.op.type) == ("HcomBroadcast", "HcomAllGather")
        assert (first.op.get_attr("fusion"), first.op.get_attr("fusion_id")) == (2, 0)
        assert gathered.shape.as_list() == [size, 2]
        found = session.run([first, second, gathered])
    assert [array.tolist() for array in found] == [[1, 1], 1.0, [[r, r] for r in range(size)]]
    for wrong in (lambda: hccl_ops.allgather(tf.ones([1]), size + 1), lambda: hccl_ops.allgather(tf.ones([]), size)):
        try:
            wrong()
        except ValueError:
            continue
        raise AssertionError("no error")


def test_hccl_ops(warm_ranks):
    pytest.importorskip("npu_bridge")
    warm_ranks(3, hccl_ops_body, timeout=TIMEOUT)
