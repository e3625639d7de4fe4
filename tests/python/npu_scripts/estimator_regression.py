"""An Estimator with the device's run configuration, all ranks on one directory given as argument."""

import sys

import numpy as np
from npu_bridge.estimator.npu.npu_config import DumpConfig, NPURunConfig, ProfilingConfig
from npu_bridge.estimator.npu.npu_estimator import NPUEstimator, NPUEstimatorSpec
from npu_bridge.estimator.npu.npu_loss_scale_manager import FixedLossScaleManager
from npu_bridge.estimator.npu.npu_loss_scale_optimizer import NPULossScaleOptimizer
from npu_bridge.estimator.npu.npu_optimizer import NPUDistributedOptimizer
from npu_bridge.npu_init import get_rank_id, get_rank_size, npu_ops, tf


def model_fn(features, labels, mode, params):
    training = mode == tf.estimator.ModeKeys.TRAIN
    kernel = tf.get_variable("kernel", [6, 8])
    hidden = tf.nn.relu(tf.matmul(features, kernel))
    if training:
        hidden = npu_ops.dropout(hidden, keep_prob=0.95)
    predictions = tf.matmul(hidden, tf.get_variable("out", [8, 1]))
    if mode == tf.estimator.ModeKeys.PREDICT:
        return NPUEstimatorSpec(mode, predictions=predictions)
    loss = tf.losses.mean_squared_error(labels, predictions)
    if not training:
        metrics = {"error": tf.metrics.mean_absolute_error(labels, predictions)}
        return NPUEstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
    optimizer = NPUDistributedOptimizer(tf.train.MomentumOptimizer(params["rate"], 0.9))
    optimizer = NPULossScaleOptimizer(optimizer, FixedLossScaleManager(loss_scale=128), is_distributed=True)
    train_op = optimizer.minimize(loss, global_step=tf.train.get_global_step())
    return NPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def input_fn():
    random = np.random.RandomState(get_rank_id())
    x = random.standard_normal((64, 6)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((x, x[:, :2].sum(1, keepdims=True))).repeat().batch(16)


def main():
    session_config = tf.ConfigProto(allow_soft_placement=True)
    run_config = NPURunConfig(
        model_dir=sys.argv[1],
        session_config=session_config,
        save_checkpoints_steps=50,
        iterations_per_loop=10,
        enable_data_pre_proc=True,
        precision_mode="allow_mix_precision",
        profiling_config=ProfilingConfig(enable_profiling=False),
        dump_config=DumpConfig(enable_dump=False, dump_path="/nowhere"),
        hcom_parallel=True,
    )
    estimator = NPUEstimator(model_fn=model_fn, config=run_config, params={"rate": 0.05})
    estimator.train(input_fn=input_fn, max_steps=100)
    first = estimator.evaluate(input_fn=input_fn, steps=4)["error"]
    estimator.train(input_fn=input_fn, max_steps=300)
    metrics = estimator.evaluate(input_fn=input_fn, steps=4)
    assert metrics["global_step"] == 300 and metrics["error"] < 0.5, (first, metrics)
    total = sum(float(np.sum(estimator.get_variable_value(name))) for name in ("kernel", "out"))
    print("rank %d of %d: variables %s" % (get_rank_id(), get_rank_size(), total.hex()))


if __name__ == "__main__":
    main()
