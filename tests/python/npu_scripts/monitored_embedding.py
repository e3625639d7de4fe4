"""A recommender with an embedding in a MonitoredTrainingSession, moved from another collective library."""

import numpy as np
import tensorflow as tf
from npu_bridge.estimator import npu_ops
from npu_bridge.estimator.npu.npu_optimizer import NPUDistributedOptimizer, allreduce
from npu_bridge.npu_init import NpuEmptyHook, get_rank_id, get_rank_size, npu_config_proto, npu_hooks_append

if not tf.__version__.startswith("1."):
    import tensorflow.compat.v1 as tf
tf.disable_eager_execution()

USERS, ITEMS, WIDTH = 20, 15, 4


def ratings(rank, size):
    """The rank's share of the ratings, and the joint number of all."""
    random = np.random.RandomState(0)
    taste, kind = random.standard_normal((USERS, 2)), random.standard_normal((ITEMS, 2))
    pairs = np.array([(user, item) for user in range(USERS) for item in range(ITEMS)])[rank::size]
    return pairs, np.sum(taste[pairs[:, 0]] * kind[pairs[:, 1]], 1).astype(np.float32)


def main():
    with tf.Session() as sess:
        sess.run(npu_ops.initialize_system())
        rank, size = get_rank_id(), get_rank_size()
    pairs, scores = ratings(rank, size)
    global_step = tf.train.get_or_create_global_step()
    iterator = tf.data.make_one_shot_iterator(tf.data.Dataset.from_tensor_slices((pairs, scores)).repeat().batch(50))
    pair, score = iterator.get_next()
    tables = [
        tf.get_variable(name, [rows, WIDTH], initializer=tf.random_normal_initializer(stddev=0.3, seed=10 * rank + i))
        for i, (name, rows) in enumerate([("users", USERS), ("items", ITEMS)])
    ]
    rows = [tf.nn.embedding_lookup(table, pair[:, i]) for i, table in enumerate(tables)]
    loss = tf.reduce_mean(tf.square(tf.reduce_sum(rows[0] * rows[1], 1) - score))
    optimizer = NPUDistributedOptimizer(tf.train.AdagradOptimizer(0.3))
    grads_and_vars = optimizer.compute_gradients(loss)
    assert all(isinstance(gradient, tf.IndexedSlices) for gradient, _ in grads_and_vars)
    train_op = optimizer.apply_gradients(grads_and_vars, global_step=global_step)
    mean_loss = allreduce(loss)

    hooks = npu_hooks_append(hooks_list=[tf.train.StopAtStepHook(last_step=60), NpuEmptyHook()])
    losses = []
    with tf.train.MonitoredTrainingSession(hooks=hooks, config=npu_config_proto()) as sess:
        while not sess.should_stop():
            _, value, values = sess.run([train_op, mean_loss, tables])
            losses.append(value)
    assert losses[-1] < 0.5 * losses[0], losses
    total = sum(float(np.sum(value)) for value in values)
    print("rank %d of %d: variables %s loss %s" % (rank, size, total.hex(), float(losses[-1]).hex()))


if __name__ == "__main__":
    main()
