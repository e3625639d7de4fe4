"""Bad arguments of foldcast.tensorflow.allreduce, and bad attributes in graphs that come from elsewhere."""

import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
from _fake_engine import FakeEngine


@pytest.fixture(scope="module", autouse=True)
def modules():
    global allreduce, foldcast, tf, v1
    import foldcast
    import tensorflow as tf
    from foldcast.tensorflow import allreduce

    v1 = tf.compat.v1


def refusals():
    """Keyword arguments, and what the message must say beside the node."""
    return [
        ({"reduction": "mean"}, ["reduction", "sum, max, min, prod", "'mean'"]),
        ({"reduction": "SUM"}, ["reduction", "'SUM'"]),
        ({"reduction": None}, ["reduction", "None"]),
        ({"reduction": ["sum"]}, ["reduction", "['sum']"]),
        ({"fusion": 3}, ["fusion", "0, 1 or 2", "got 3"]),
        ({"fusion": -1}, ["fusion", "0, 1 or 2", "got -1"]),
        ({"fusion": "1"}, ["fusion", "'1'"]),
        ({"fusion": 1.0}, ["fusion", "1.0"]),
        ({"fusion": None}, ["fusion", "None"]),
        ({"fusion": 2}, ["fusion_id", "0 or more with fusion=2", "got -1"]),
        ({"fusion": 2, "fusion_id": -5}, ["fusion_id", "got -5"]),
        ({"fusion": 2, "fusion_id": 1 << 63}, ["fusion_id", str(1 << 63)]),
        ({"fusion": 2, "fusion_id": "a"}, ["fusion_id", "'a'"]),
        ({"fusion": 3, "reduction": "mean"}, ["fusion:"]),
        ({"fusion": 2, "reduction": "mean"}, ["fusion_id:"]),
        ({"group": ""}, ["group", "1 to 127 bytes", "0 bytes"]),
        ({"group": "x" * 128}, ["group", "1 to 127 bytes", "128 bytes"]),
        ({"group": "é" * 64}, ["group", "128 bytes"]),
        ({"group": "a\0b"}, ["group", "zero byte"]),
        ({"group": "\ud800"}, ["group", "UTF-8"]),
        ({"group": 7}, ["group", "7"]),
        ({"group": None}, ["group", "None"]),
    ]


def test_a_function_raises_what_it_would_raise_elsewhere():
    @tf.function
    def step(value):
        if tf.reduce_sum(value) > 0:  # so that AutoGraph has something to convert
            value = -value
        return allreduce(value, "mean")

    with pytest.raises(foldcast.InvalidArgumentError) as caught:
        step(tf.constant([1.0]))
    assert all(word in str(caught.value) for word in ["reduction", "'mean'", "sum, max, min, prod"]), caught.value


def test_bad_arguments_are_refused_when_the_op_is_made():
    for arguments, words in refusals():
        with tf.Graph().as_default() as graph:
            with pytest.raises(foldcast.InvalidArgumentError) as caught:
                allreduce(tf.constant(1.0), **arguments, name="tower/here")
            assert isinstance(caught.value, ValueError)
            assert all(word in str(caught.value) for word in [*words, "node 'tower/here'"]), caught.value
            assert not [op for op in graph.get_operations() if op.type == "HcomAllReduce"]
        with pytest.raises(foldcast.InvalidArgumentError):
            allreduce(tf.constant(1.0), **arguments)


def test_the_message_names_the_node_that_would_be_made():
    with FakeEngine().attached(), tf.Graph().as_default():
        allreduce(tf.constant(1.0))
        with v1.name_scope("tower"), pytest.raises(ValueError, match="node 'tower/HcomAllReduce'"):
            allreduce(tf.constant(1.0), "mean")
        with pytest.raises(ValueError, match="node 'HcomAllReduce_1'"):
            allreduce(tf.constant(1.0), "mean")


def test_other_dtypes_are_refused_with_the_twelve():
    for value in (True, 1j, "text", tf.constant(1, tf.qint8)):
        with pytest.raises(foldcast.InvalidArgumentError) as caught:
            allreduce(value)
        for name in "int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64".split():
            assert f"{name}," in f"{caught.value}," or f"{name} " in str(caught.value)
        assert tf.convert_to_tensor(value).dtype.name in str(caught.value)


def test_more_than_8_gib_is_refused_by_its_static_shape():
    with FakeEngine().attached() as engine, tf.Graph().as_default():
        limit = (8 << 30) // 4
        assert allreduce(v1.placeholder(tf.float32, [limit])).shape == [limit]
        with pytest.raises(foldcast.InvalidArgumentError) as caught:
            allreduce(v1.placeholder(tf.float32, [limit + 1]))
        assert str((limit + 1) * 4) in str(caught.value) and "8 GiB" in str(caught.value)
    assert not engine.submissions


def test_more_than_8_gib_is_refused_before_a_byte_is_touched():
    import mmap

    def resident_kib():
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

    no_reserve = 0x4000
    memory = mmap.mmap(-1, (8 << 30) + 4, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve)
    array = np.frombuffer(memory, np.float32)
    with FakeEngine().attached() as engine, tf.Graph().as_default(), v1.Session() as session:
        fed = v1.placeholder(tf.float32, [None])
        result = allreduce(fed)
        before = resident_kib()
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            session.run(result.op, {fed: array})
        assert resident_kib() - before < 1 << 20
    assert str(array.nbytes) in str(caught.value) and "8 GiB" in str(caught.value)
    assert not engine.submissions


def test_a_fusion_id_that_is_not_read_is_warned_of_once():
    def warned(**arguments):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            allreduce(tf.constant(1.0), **arguments)
        texts = [str(warning.message) for warning in caught if "fusion_id" in str(warning.message)]
        assert all(warning.filename == __file__ for warning in caught if "fusion_id" in str(warning.message))
        return texts

    with FakeEngine().attached():
        for fusion in (0, 1):
            (text,) = warned(fusion=fusion, fusion_id=90210)
            assert "fusion_id=90210" in text and "fusion=2" in text and "ignored" in text
            assert warned(fusion=fusion, fusion_id=90210) == []
        assert warned(fusion=2, fusion_id=90210) == [] and warned() == [] and warned(fusion=np.int64(0)) == []


def graph_with(**attributes):
    """A graph definition with one op of those attributes, which no Python face has checked."""
    with FakeEngine().attached(), tf.Graph().as_default() as graph:
        allreduce(v1.placeholder(tf.float32, [2], name="x"), name="tower/sum")
    definition = graph.as_graph_def()
    (node,) = [node for node in definition.node if node.op == "HcomAllReduce"]
    for name, value in attributes.items():
        node.attr[name].CopyFrom(tf.compat.v1.AttrValue(**value))
    return definition


def test_the_kernel_checks_attributes_again():
    cases = [
        ({"fusion": {"i": 3}}, ["fusion: expected 0, 1 or 2, got 3"]),
        ({"fusion": {"i": 2}}, ["fusion_id: expected 0 or more with fusion=2, got -1"]),
        ({"group": {"s": b""}}, ["group: expected 1 to 127 bytes", "0 bytes"]),
        ({"group": {"s": b"x" * 128}}, ["group: expected 1 to 127 bytes", "128 bytes"]),
        ({"group": {"s": b"\xff"}}, ["group: expected UTF-8"]),
        ({"fusion": {"i": 9}, "group": {"s": b""}}, ["fusion: "]),
    ]
    with FakeEngine().attached() as engine:
        for attributes, words in cases:
            with tf.Graph().as_default(), v1.Session() as session:
                (result,) = tf.import_graph_def(graph_with(**attributes), return_elements=["tower/sum:0"], name="")
                with pytest.raises(tf.errors.InvalidArgumentError) as caught:
                    session.run(result, {"x:0": [1, 2]})
                assert all(word in str(caught.value) for word in [*words, "node 'tower/sum'"]), caught.value
        with tf.Graph().as_default(), pytest.raises(ValueError, match="mean"):
            tf.import_graph_def(graph_with(reduction={"s": b"mean"}), name="")
    assert not engine.submissions


def run_program(program, **environment):
    """Runs a program; its output must hold what it asserts itself."""
    return subprocess.run(
        [sys.executable, "-c", program],
        env=dict(os.environ, TF_CPP_MIN_LOG_LEVEL="2", **environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )


def test_without_the_engine_the_op_says_what_to_import():
    from foldcast.tensorflow import library_path

    program = """
import sys
import tensorflow as tf
ops = tf.load_op_library(PATH)
assert "foldcast" not in sys.modules
try:
    ops.hcom_all_reduce(tensor=[1.0], reduction="sum")
except tf.errors.FailedPreconditionError as error:
    assert "import foldcast.tensorflow" in str(error) and "npu_bridge.hccl" in str(error), error
else:
    raise SystemExit("no error")
import foldcast.tensorflow
assert foldcast.tensorflow.library_path() == PATH
assert foldcast.tensorflow.allreduce([1.0], "max").numpy() == [1.0]
""".replace("PATH", repr(library_path()))
    ended = run_program(program)
    assert ended.returncode == 0, ended.stdout


def test_without_tensorflow_the_import_says_so_in_one_line():
    program = """
import sys
sys.modules["tensorflow"] = None
try:
    import foldcast.tensorflow
except ImportError as error:
    assert str(error) == "foldcast.tensorflow needs TensorFlow 1.15, or 2.6 or newer: pip install tensorflow", error
else:
    raise SystemExit("no error")
"""
    ended = run_program(program)
    assert ended.returncode == 0, ended.stdout


def test_a_library_that_is_not_there_is_named():
    ended = run_program("import foldcast.tensorflow", FOLDCAST_TENSORFLOW_LIBRARY="/nonexistent/lib.so")
    assert ended.returncode != 0
    assert "ImportError: FOLDCAST_TENSORFLOW_LIBRARY" in ended.stdout and "/nonexistent/lib.so" in ended.stdout


def test_a_library_that_was_opened_too_early_is_named():
    from foldcast.tensorflow import library_path

    ended = run_program(f"import ctypes; ctypes.CDLL({library_path()!r}); import foldcast.tensorflow")
    assert ended.returncode != 0 and "ImportError" in ended.stdout
    assert "tf.load_op_library" in ended.stdout.splitlines()[-1]


def test_the_library_refuses_a_table_of_another_version():
    import ctypes

    from foldcast.tensorflow._library import LIBRARY

    engine = FakeEngine()
    for field, change in (("version", 1), ("size", 8)):
        setattr(engine.table, field, getattr(engine.table, field) + change)
        with pytest.raises(ImportError, match=f"foldcast._foldcast: its {field} is another one"):
            LIBRARY.attach(ctypes.addressof(engine.table))
        setattr(engine.table, field, getattr(engine.table, field) - change)
    with pytest.raises(ImportError, match="there is no table"):
        LIBRARY.attach(0)
