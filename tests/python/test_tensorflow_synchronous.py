"""A TensorFlow that offers no asynchronous kernels: allreduces run one after the other, in one order."""

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

    one_thread = v1.ConfigProto(inter_op_parallelism_threads=1, use_per_session_threads=True)
    with FakeEngine().attached() as engine:
        with tf.Graph().as_default(), v1.Session(config=one_thread) as session:
            made = [allreduce(tf.random.uniform([2]) * 0 + float(i), name="r%d" % i) for i in range(30)]
            looped = tf.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, allreduce(x)), (0, tf.constant(1.0)))[1]
            results, looped = session.run([made[::-1], looped])
            assert [result[0] for result in results] == [2.0 * i for i in reversed(range(30))] and looped == 8
        order = [tag for tag in engine.tags if "/r" in tag]
        assert order == ["graph/r%d" % i for i in range(30)], order
        engine.submissions.clear()

        @tf.function
        def step(x):
            return [allreduce(x + float(i), name="s%d" % i) for i in range(8)]

        step(tf.constant(1.0))
        if tf.executing_eagerly():
            assert engine.tags == ["step/s%d" % i for i in range(8)], engine.tags
            assert allreduce(3.0).numpy() == 6
"""


def test_one_order_on_every_rank(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    here = str(pathlib.Path(__file__).parent)
    environment = dict(
        os.environ,
        PYTHONPATH=os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]),
        FOLDCAST_TENSORFLOW_SYNCHRONOUS="1",
        TF_CPP_MIN_LOG_LEVEL="2",
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
