"""What was reported of neighbours' TensorFlow ops. One job for all: TensorFlow takes seconds to come."""

import numpy as np
import pytest


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


def views_of_arrays(rank, size):
    import tensorflow as tf
    from foldcast.tensorflow import allreduce

    @tf.function
    def step(x):
        return [allreduce(tf.transpose(x)), allreduce(x[::2, ::-1]), allreduce(x[:, 1:])]

    array = np.arange(48, dtype=np.float32).reshape(6, 8)
    total = array * sum(r + 1 for r in range(size))
    mine = array * (rank + 1)
    for got, want in zip(step(tf.constant(mine)), [total.T, total[::2, ::-1], total[:, 1:]]):
        assert np.array_equal(got.numpy(), want)
    views = [lambda a: a.T, lambda a: a[::2, ::-1], lambda a: a[:, 1:], np.asfortranarray, lambda a: a[:, 3]]
    for view in views:
        assert np.array_equal(allreduce(view(mine)).numpy(), view(total))


def both(rank, size):
    other_dtypes(rank, size)
    views_of_arrays(rank, size)


def test_tensorflow_60847_other_dtypes_and_megatron_lm_5337_pytorch_192920_views(ranks):
    pytest.importorskip("tensorflow")
    ranks(2, both)
