"""Ranks that call with different things are told so, whatever is set."""

import numpy as np
import pytest


def counts_that_differ(rank, size):
    import foldcast

    with pytest.raises(foldcast.MismatchError) as found:
        foldcast.allreduce(np.ones(4 - rank, np.float32))
    text = str(found.value)
    assert found.value.field == "count" and "rank 0: 4 elements" in text and "rank 1: 3 elements" in text, text
    assert np.all(foldcast.allreduce(np.ones(4, np.float32)) == size)
    return text


# Every level of messages, and what else one might hope to silence it by.
@pytest.mark.parametrize("level", ["off", "error", "trace"])
def test_nccl_2428_no_level_of_messages_silences_the_check(ranks, level):
    env = {"FOLDCAST_LOG": level, "FOLDCAST_TIMEOUT": "inf", "FOLDCAST_WARN_AFTER": "inf", "HCCL_EXEC_TIMEOUT": "0"}
    job = ranks(2, counts_that_differ, env={**env, "PYTHONWARNINGS": "ignore", "PYTHONOPTIMIZE": None})
    assert all("the ranks disagree in count" in text for text in job.results)
