"""What decides between algorithms: files of costs and a forced algorithm change no result, and say what is wrong once."""

import json

import numpy as np
import pytest

SIZES = [1, 12, 1000, 70_000]


def calls(rank, size):
    import foldcast

    for count in SIZES:
        x = np.arange(count, dtype=np.float32) + rank
        want = size * np.arange(count, dtype=np.float32) + size * (size - 1) / 2
        handle = foldcast.allreduce_async(x, name="a")
        assert np.array_equal(foldcast.allreduce(x), want) and np.array_equal(handle.wait(), want)
    foldcast.barrier()
    group = foldcast.new_group(range(size - 1))
    if rank < size - 1:
        assert (group.allreduce(np.ones(1000, np.float32)) == size - 1).all()


def own_choice(rank, size, names):
    """Each rank has another algorithm in its environment: the first one's counts."""
    import os

    if names[rank]:
        os.environ["FOLDCAST_ALGO"] = names[rank]
    calls(rank, size)


@pytest.mark.parametrize("name", ["flat", "one_shot", "reduce_scatter_allgather"])
def test_a_forced_algorithm_gives_the_same_results(ranks, name):
    # On three ranks, and in a group of two of them: what cannot be done is done otherwise, and said once.
    job = ranks(3, calls, env={"FOLDCAST_ALGO": name})
    warnings = [line for line in job.stderr.splitlines() if "cannot do" in line]
    assert len(warnings) == 1 and name in warnings[0], job.stderr


def test_ranks_with_other_algorithms_do_as_the_first(ranks):
    job = ranks(3, own_choice, ["reduce_scatter_allgather", "flat", None])
    # The group of two cannot do what its first member forces; what the second has in its environment nobody asks.
    assert "forced algorithm reduce_scatter_allgather cannot do" in job.stderr, job.stderr
    assert "forced algorithm flat" not in job.stderr, job.stderr


def test_a_file_of_costs_that_is_of_no_use_is_said_once(ranks, tmp_path):
    file = tmp_path / "costs.json"
    contents = ["", "{", json.dumps({"format": "foldcast-costs-1", "cpu": "another", "cores": 1})]
    for content in contents:
        file.write_text(content)
        job = ranks(3, calls, env={"FOLDCAST_COSTS": str(file)})
        warnings = [line for line in job.stderr.splitlines() if "costs.json" in line]
        assert len(warnings) == 1 and "of no use" in warnings[0], job.stderr
        assert file.read_text() == content, "jobs do not write it"


@pytest.mark.parametrize("home", ["/proc", "/nowhere", None])
def test_any_home_will_do(ranks, home):
    job = ranks(2, calls, env={"HOME": home, "XDG_CACHE_HOME": None, "FOLDCAST_COSTS": None})
    assert job.stderr == "", job.stderr


def refused(rank, size, variable):
    import foldcast

    with pytest.raises(foldcast.InvalidArgumentError, match=f"{variable}.*(one_shot|off)"):
        foldcast.init()


@pytest.mark.parametrize(("variable", "value"), [("FOLDCAST_ALGO", "ring"), ("FOLDCAST_COSTS", "on")])
def test_what_cannot_be_meant_is_refused(ranks, variable, value):
    ranks(1, refused, variable, env={variable: value})
