"""Whole training scripts, as people have them for a device, run unchanged on two ranks that end with equal variables."""

import pathlib
import re

import pytest

SCRIPTS = pathlib.Path(__file__).parent / "npu_scripts"


def check(job):
    """Each rank prints its number and the sum of its variables to the last bit."""
    lines = sorted(re.findall(r"rank (\d) of (\d): (variables .*)", job.stdout))
    assert [line[:2] for line in lines] == [("0", "2"), ("1", "2")], job.stdout
    assert lines[0][2] == lines[1][2], lines


@pytest.mark.parametrize("name", ["session_classifier", "monitored_embedding", "keras_regression"])
def test_script(ranks, name):
    check(ranks.script(2, [str(SCRIPTS / f"{name}.py")], timeout=300))


def test_estimator_script(ranks, tmp_path):
    import tensorflow as tf

    if not hasattr(getattr(tf.compat.v1, "estimator", None), "Estimator"):
        pytest.skip(f"SKIPPED: TensorFlow {tf.__version__} has no Estimator; ci/tensorflow-matrix.sh runs this")
    directory = tmp_path / "model"
    check(ranks.script(2, [str(SCRIPTS / "estimator_regression.py"), str(directory)], timeout=300))
    assert (directory / "checkpoint").exists()
