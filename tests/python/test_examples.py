"""The examples run on any number of ranks, and say on each rank that the result is right."""

import pathlib
import re

import pytest

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"

# The example of the documentation page of hccl_ops.allreduce.
PAGE = """\
from npu_bridge.hccl import hccl_ops
tensor = tf.random_uniform((1, 3), minval=1, maxval=10, dtype=tf.float32)
result = hccl_ops.allreduce(tensor, "sum")
"""


def lines_of_ranks(job, size, pattern):
    """The one line of each rank, by rank; every rank has printed exactly one that matches."""
    found = re.findall(rf"^\[\d+\] rank (\d+) of {size}: {pattern}$", job.stdout, re.MULTILINE)
    assert sorted(int(rank) for rank in found) == list(range(size)), job.stdout
    return found


def test_the_page_stands_in_its_example():
    assert "\n" + PAGE in (EXAMPLES / "allreduce_page.py").read_text()


@pytest.mark.parametrize("size", [1, 4])
def test_allreduce_page(ranks, size):
    job = ranks.script(size, [str(EXAMPLES / "allreduce_page.py")])
    lines_of_ranks(job, size, "gave .*: the sum over all ranks, the same on each")
    given = set(re.findall(r"gave (\[\[.*?\]\])", job.stdout))
    received = set(re.findall(r"received (\[\[.*?\]\])", job.stdout))
    assert len(given) == size, "every rank gives numbers of its own"
    assert len(received) == 1, "every rank receives the same"


@pytest.mark.parametrize("size", [1, 3])
def test_keras_data_parallel(ranks, size):
    job = ranks.script(size, [str(EXAMPLES / "keras_data_parallel.py")])
    lines_of_ranks(job, size, r"40 steps, loss .*, equal to one rank's within .*")
