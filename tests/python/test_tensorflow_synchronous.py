"""A TensorFlow that offers no asynchronous kernels: allreduces run one after the other, in one order, and what has no
order gets a thread for each, or is refused."""

import os
import pathlib
import subprocess
import sys
import textwrap

PROGRAM = """
    import warnings
    import tensorflow as tf
    from _fake_engine import FakeEngine

    v1 = tf.compat.v1
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        from foldcast.tensorflow import allreduce
    (text,) = [str(warning.message) for warning in caught if "foldcast" in str(warning.message)]
    assert "synchronous" in text and "one after the other" in text, text

    def threads(number):
        return v1.ConfigProto(inter_op_parallelism_threads=number, use_per_session_threads=True)

    with FakeEngine().attached() as engine:
        # The ops around the loop have one order, those in it another, which overlaps with the first.
        with tf.Graph().as_default(), v1.Session(config=threads(2)) as session:
            made = [allreduce(tf.random.uniform([2]) * 0 + float(i), name="r%d" % i) for i in range(30)]
            body = lambda i, x: (i + 1, allreduce(x))
            looped = tf.while_loop(lambda i, x: i < 3, body, (0, tf.constant(1.0)), parallel_iterations=1)[1]
            results, looped = session.run([made[::-1], looped])
            assert [result[0] for result in results] == [2.0 * i for i in reversed(range(30))] and looped == 8
        order = [tag for tag in engine.tags if "/r" in tag]
        assert order == ["graph/r%d" % i for i in range(30)], order
        engine.submissions.clear()

        # One order needs one thread.
        with tf.Graph().as_default(), v1.Session(config=threads(1)) as session:
            made = [allreduce(tf.random.uniform([2]) * 0 + float(i)) for i in range(30)]
            assert session.run(made)[29][0] == 58
        engine.submissions.clear()

        @tf.function
        def step(x):
            return [allreduce(x + float(i), name="s%d" % i) for i in range(8)]

        step(tf.constant(1.0))
        if tf.executing_eagerly():
            assert engine.tags == ["step/s%d" % i for i in range(8)], engine.tags
            assert allreduce(3.0).numpy() == 6
"""


SYNCHRONOUS = {"FOLDCAST_TENSORFLOW_SYNCHRONOUS": "1"}


def graphs_that_need_more_threads(rank, size):
    """Nodes of no known order, started in opposite orders, and loops: refused if there are too few threads, with nothing
    in flight; with enough threads all of them meet."""
    import time

    import numpy as np
    import tensorflow as tf
    from foldcast.tensorflow import allreduce

    v1 = tf.compat.v1

    def session(threads):
        return v1.Session(config=v1.ConfigProto(inter_op_parallelism_threads=threads, use_per_session_threads=True))

    def refused(fetches, threads, waiting):
        with session(threads) as session_:
            try:
                session_.run(fetches)
            except tf.errors.FailedPreconditionError as error:
                assert "inter_op_parallelism_threads=%d" % waiting in str(error), error
                assert "on %d:" % threads in str(error) and "HcomAllReduce node '" in str(error), error
                return
        raise AssertionError("nothing was refused")

    # As from a process with asynchronous kernels: without the edges that order the ops, and without their attribute.
    with tf.Graph().as_default() as graph:
        for i in range(3):
            allreduce(v1.placeholder(tf.float32, [], "x%d" % i), name="r%d" % i)
        definition = graph.as_graph_def()
    for node in definition.node:
        if node.op == "HcomAllReduce":
            del node.input[1:]
            node.attr["turn"].s = b""

    def slow(i, before):
        def wait():
            time.sleep(0.1)
            return np.float32(i)

        with tf.control_dependencies(before):
            return tf.numpy_function(wait, [], tf.float32)

    with tf.Graph().as_default():
        # The ranks come to the ops in opposite orders; on one thread they would wait for each other now.
        fed, before = {}, []
        for i in range(3)[:: -1 if rank % 2 else 1]:
            before = [slow(i, before)]
            fed["x%d" % i] = before[0]
        fetches = tf.import_graph_def(definition, fed, ["r%d:0" % i for i in range(3)], name="")
        for value in fetches:
            value.set_shape([])
        refused(fetches, 1, 3)
        refused(fetches, 2, 3)
        with session(3) as session_:
            for _ in range(3):
                assert session_.run(fetches) == [0.0, float(size), 2.0 * size]

    # A loop of v1, whose iterations may overlap, beside an op outside of it.
    v1.disable_control_flow_v2()
    with tf.Graph().as_default():
        outside = allreduce(tf.constant(1.0) * 2)

        def loop(**options):
            body = lambda i, x: (i + 1, allreduce(x))  # noqa: E731
            return v1.while_loop(lambda i, _: i < 3, body, (0, tf.constant(1.0)), **options)[1]

        fetches = [outside, loop(parallel_iterations=1)]
        with session(2) as session_:
            assert session_.run(fetches) == [2.0 * size, float(size**3)]
        refused(fetches, 1, 2)
        refused([outside, loop(parallel_iterations=5)], 5, 6)
    return True


def test_what_could_wait_for_ever_is_refused(warm_ranks):
    job = warm_ranks(2, graphs_that_need_more_threads, env=SYNCHRONOUS)
    assert job.results == [True, True]


def test_one_order_on_every_rank(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    here = str(pathlib.Path(__file__).parent)
    environment = dict(
        os.environ,
        PYTHONPATH=os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]),
        TF_CPP_MIN_LOG_LEVEL="2",
        **SYNCHRONOUS,
    )
    ended = subprocess.run(
        [sys.executable, str(program)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stdout
