"""A classifier in a plain Session, as scripts for a device write it: resources, dropout, loss scale, repeated steps."""

# ruff: noqa: F403, F405
import sys

import numpy as np
import tensorflow as tf
from npu_bridge.npu_init import *

tf.disable_v2_behavior()

CLASSES = 3
BATCH = 32


def dataset(rank):
    random = np.random.RandomState(100 + rank)
    x = random.standard_normal((4 * BATCH, 8)).astype(np.float32)
    return x, np.argmax(x[:, :CLASSES], 1).astype(np.int64)


def network(x, keep_prob):
    net = npu_unary_ops.gelu(dense(x, 32))
    net = npu_ops.dropout(net, keep_prob)
    return dense(net, CLASSES)


def dense(x, units):
    with tf.variable_scope(None, "dense"):
        kernel = tf.get_variable("kernel", [x.shape[1], units])
        bias = tf.get_variable("bias", [units], initializer=tf.zeros_initializer())
    return tf.matmul(x, kernel) + bias


def main():
    npu_session, npu_shutdown = init_resource()
    rank_size, rank_id = get_npu_rank_size(), get_npu_rank_id()
    tf.set_random_seed(rank_id)

    x = tf.placeholder(tf.float32, [None, 8])
    y = tf.placeholder(tf.int64, [None])
    keep_prob = tf.placeholder_with_default(1.0, [])
    with npu_scope.without_npu_compile_scope():
        logits = network(x, keep_prob)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
    optimizer = npu_tf_optimizer(tf.train.AdamOptimizer(0.01))
    manager = ExponentialUpdateLossScaleManager(
        init_loss_scale=2**10, incr_every_n_steps=1000, decr_every_n_nan_or_inf=2, decr_ratio=0.5
    )
    optimizer = NPULossScaleOptimizer(optimizer, manager, is_distributed=rank_size > 1)
    train_op = optimizer.minimize(loss, global_step=tf.train.get_or_create_global_step())
    start = broadcast_global_variables(0, rank_id)
    accuracy = hccl_ops.allreduce(tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), y), tf.float32)), "sum")
    init = tf.global_variables_initializer()

    config = tf.ConfigProto(allow_soft_placement=True)
    custom_op = config.graph_options.rewrite_options.custom_optimizers.add()
    custom_op.name = "NpuOptimizer"
    custom_op.parameter_map["use_off_line"].b = True
    custom_op.parameter_map["precision_mode"].s = tf.compat.as_bytes("allow_mix_precision")
    config.graph_options.rewrite_options.remapping = RewriterConfig.OFF
    config.graph_options.rewrite_options.memory_optimization = RewriterConfig.OFF

    features, labels = dataset(rank_id)
    with tf.Session(config=npu_config_proto(config_proto=config)) as sess:
        sess.run(init)
        train_op = util.set_iteration_per_loop(sess, train_op, iterations_per_loop=4)
        sess.run(start)
        for step in range(30):
            rows = slice(step % 4 * BATCH, (step % 4 + 1) * BATCH)
            sess.run([train_op, loss], feed_dict={x: features[rows], y: labels[rows], keep_prob: 0.9})
        steps = sess.run(tf.train.get_global_step())
        reached = sess.run(accuracy, feed_dict={x: features, y: labels}) / rank_size
        total = sum(float(np.sum(value)) for value in sess.run(tf.trainable_variables()))
    shutdown_resource(npu_session, npu_shutdown)
    close_session(npu_session)
    assert steps == 120 and reached > 0.85, (steps, reached)
    print("rank %d of %d: variables %s" % (rank_id, rank_size, total.hex()))


if __name__ == "__main__":
    sys.exit(main())
