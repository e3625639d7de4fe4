"""Ranks that call with different things are told so, whatever is set, and from TensorFlow too."""

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


def other_dtypes(rank, size):
    import tensorflow as tf
    from foldcast.tensorflow import allreduce

    @tf.function
    def step(x):
        return allreduce(x)

    dtype = tf.int32 if rank == 1 else tf.float32
    for call in (step, allreduce):
        with pytest.raises(tf.errors.InvalidArgumentError) as found:
            call(tf.ones([5], dtype))
        text = str(found.value)
        assert "rank 0: float32" in text and "rank 1: int32" in text and "dtype" in text, text
    assert np.all(step(tf.ones([5], tf.float32)).numpy() == size)


def test_tensorflow_60847_another_dtype_on_one_rank(ranks):
    pytest.importorskip("tensorflow")
    ranks(2, other_dtypes)
