"""NPUEstimator and what belongs to it, on the TensorFlow releases that have Estimator: 1.15 to 2.15."""

import pathlib

import pytest

ROWS = 8


def has_estimator():
    import tensorflow as tf

    try:
        return tf.compat.v1.estimator.Estimator is not None
    except (AttributeError, ImportError):
        return False


@pytest.fixture
def estimator_is_there():
    if not has_estimator():
        import tensorflow as tf

        pytest.skip(f"SKIPPED: TensorFlow {tf.__version__} has no Estimator; ci/tensorflow-matrix.sh runs this")


def model_fn(features, labels, mode, params):
    from npu_bridge.npu_init import NPUDistributedOptimizer, NPUEstimatorSpec, tf

    initial = tf.random_normal_initializer(seed=params["seed"])
    weight = tf.get_variable("weight", [3, 1], initializer=initial)
    predictions = tf.matmul(features, weight)
    if mode == tf.estimator.ModeKeys.PREDICT:
        return NPUEstimatorSpec(mode, predictions={"y": predictions})
    loss = tf.reduce_mean(tf.square(predictions - labels))
    calls = tf.get_variable("calls", initializer=0, trainable=False)
    host_call = (lambda amount: tf.assign_add(calls, amount), {"amount": tf.constant(10)})
    if mode == tf.estimator.ModeKeys.EVAL:
        return NPUEstimatorSpec(mode, loss=loss, host_call=host_call)
    optimizer = tf.train.GradientDescentOptimizer(0.1)
    if params["distributed"]:
        optimizer = NPUDistributedOptimizer(optimizer)
    train_op = optimizer.minimize(loss, global_step=tf.train.get_global_step())
    tf.summary.scalar("loss", loss)
    return NPUEstimatorSpec(mode, loss=loss, train_op=train_op, host_call=host_call)


def input_fn(share):
    import numpy as np
    import tensorflow as tf

    random = np.random.RandomState(7)
    x = random.standard_normal((2 * ROWS, 3)).astype(np.float32)[share]
    y = x.sum(1, keepdims=True)
    return lambda: tf.compat.v1.data.Dataset.from_tensors((x, y)).repeat()


def run_body(rank, size, directory, own):
    """Trains on two ranks; `own` gives each a directory of its own."""
    import numpy as np
    from npu_bridge.npu_init import NPUEstimator, NPURunConfig, tf

    place = pathlib.Path(directory) / (str(rank) if own else "common")
    saved = []
    save = tf.train.Saver.save
    tf.train.Saver.save = lambda saver, *args, **options: saved.append(args[1]) or save(saver, *args, **options)
    config = NPURunConfig(
        model_dir=str(place),
        save_checkpoints_steps=10,
        save_summary_steps=5,
        iterations_per_loop=10,
        session_config=tf.ConfigProto(),
        enable_data_pre_proc=True,
        precision_mode="allow_mix_precision",
        hcom_parallel=True,
        keep_checkpoint_max=3,
    )
    assert config.model_dir == str(place) and config.npu_options["precision_mode"] == "allow_mix_precision"
    estimator = NPUEstimator(model_fn, config=config, params={"seed": rank, "distributed": True})
    assert isinstance(estimator, tf.estimator.Estimator)
    mine = input_fn(slice(rank * ROWS, (rank + 1) * ROWS))
    estimator.train(mine, steps=15)
    weight = estimator.get_variable_value("weight")
    assert estimator.get_variable_value("calls") == 150
    # Those of another directory go on from where rank 0 is; to a step that was reached already, nobody goes.
    estimator.train(mine, max_steps=15)
    estimator.train(mine, max_steps=20)
    assert estimator.get_variable_value("global_step") == 20
    assert bool(saved) == (own or rank == 0), "of those with one directory, one writes"
    evaluated = estimator.evaluate(mine, steps=2)
    predicted = next(estimator.predict(mine))
    final = estimator.get_variable_value("weight")
    assert np.isfinite(evaluated["loss"]) and predicted["y"].shape == (1,)

    alone = NPUEstimator(
        model_fn,
        model_dir=str(pathlib.Path(directory) / f"alone{rank}"),
        config=NPURunConfig(horovod_mode=True, save_checkpoints_steps=0, log_step_count_steps=None),
        params={"seed": 0, "distributed": False},
    )
    weights = []
    alone.train(input_fn(slice(None)), hooks=[_keeper(weights)], steps=20)
    assert np.allclose(final, weights[-1], rtol=1e-5, atol=1e-6), (final, weights[-1])
    return [[float(value).hex() for value in array.ravel()] for array in (weight, final)]


def _keeper(weights):
    """A hook that keeps the weights after each step; without checkpoints nothing else does."""
    import tensorflow as tf

    class Keeper(tf.compat.v1.train.SessionRunHook):
        def begin(self):
            (self.weight,) = [v for v in tf.compat.v1.global_variables() if v.op.name == "weight"]

        def after_run(self, run_context, run_values):
            weights.append(run_context.session.run(self.weight))

    return Keeper()


def test_one_directory_for_all(warm_ranks, tmp_path, estimator_is_there):
    results = warm_ranks(2, run_body, str(tmp_path), False, timeout=400).results
    assert results[0] == results[1]
    common = tmp_path / "common"
    assert (common / "checkpoint").exists() and (common / "eval").is_dir() and (common / "eval_rank1").is_dir()


def test_a_directory_for_each(warm_ranks, tmp_path, estimator_is_there):
    results = warm_ranks(2, run_body, str(tmp_path), True, timeout=400).results
    assert results[0] == results[1]
    assert (tmp_path / "0" / "checkpoint").exists() and (tmp_path / "1" / "checkpoint").exists()
    assert not (tmp_path / "alone0" / "checkpoint").exists()


def orphan_body(rank, size, directory, horovod):
    """Rank 1 is killed in the middle. TensorFlow must not begin anew for ever."""
    from _ranks import ready, report
    from npu_bridge.npu_init import NPUEstimator, NPURunConfig, tf

    class Tells(tf.train.SessionRunHook):
        def after_run(self, run_context, run_values):
            ready("trained")

    config = NPURunConfig(horovod_mode=horovod, save_checkpoints_steps=0, log_step_count_steps=None)
    place = str(pathlib.Path(directory) / f"{rank}{horovod}")
    estimator = NPUEstimator(model_fn, model_dir=place, config=config, params={"seed": 1, "distributed": True})
    try:
        estimator.train(input_fn(slice(0, ROWS)), hooks=[Tells()])
    except tf.errors.FailedPreconditionError as error:
        report(str(error))


def test_a_death_ends_the_training(warm_ranks, tmp_path, estimator_is_there):
    for horovod in (True, False):
        with warm_ranks.start(2, orphan_body, str(tmp_path), horovod, keep_going=True, timeout=400) as job:
            job.wait_ready(0, "trained")
            job.wait_ready(1, "trained")
            job.kill(1)
            job.finish(expect=None)
        assert "rank 1 was killed by signal 9" in job.results[0], job.results


def options_body(rank, size, directory):
    import os

    from npu_bridge.npu_init import (
        NPUEstimator,
        NPUEstimatorSpec,
        NPURunConfig,
        RewriterConfig,
        npu_run_config_init,
        tf,
    )

    os.chdir(directory)
    config = NPURunConfig()
    assert (config.save_checkpoints_steps, config.save_checkpoints_secs) == (100, None)
    assert (config.save_summary_steps, config.keep_checkpoint_max) == (0, 5)
    assert NPURunConfig(save_checkpoints_secs=60).save_checkpoints_steps is None
    assert NPURunConfig(save_checkpoints_steps=0).save_checkpoints_steps is None
    assert NPURunConfig(20, None, "somewhere", 7).tf_random_seed == 7
    copy = config.replace(model_dir="there")
    assert (type(copy), copy.model_dir) == (NPURunConfig, "there")
    with pytest.raises(TypeError, match="precision_mod.*precision_mode"):
        NPURunConfig(precision_mod="x")
    with pytest.raises(ValueError, match="model_dir"):
        NPUEstimator(model_fn, model_dir="here", config=copy)
    with pytest.raises(TypeError, match="NPURunConfig"):
        NPUEstimator(model_fn, config={})
    made = NPUEstimator(model_fn)
    assert os.path.dirname(made.model_dir) == os.path.realpath(directory)
    assert os.path.basename(made.model_dir).startswith("model_dir_")

    given = tf.estimator.RunConfig(model_dir="m", session_config=tf.ConfigProto(allow_soft_placement=True))
    for initial in (given, None):
        changed = npu_run_config_init(run_config=initial)
        rewriting = changed.session_config.graph_options.rewrite_options
        assert rewriting.remapping == RewriterConfig.OFF
        assert [optimizer.name for optimizer in rewriting.custom_optimizers] == ["NpuOptimizer"]
    assert npu_run_config_init(given).model_dir == "m"
    with pytest.raises(TypeError, match="RunConfig"):
        npu_run_config_init({})
    for wrong in (print, (print,), (print, 3), ("name", [])):
        with pytest.raises(ValueError, match="host_call"):
            NPUEstimatorSpec("train", loss=tf.constant(1.0), train_op=tf.no_op(), host_call=wrong)


def test_configurations(warm_ranks, tmp_path, estimator_is_there):
    warm_ranks(1, options_body, str(tmp_path))


def missing_body(rank, size):
    from npu_bridge.npu_init import NPUEstimator, NPUEstimatorSpec, NPURunConfig, npu_run_config_init, tf

    for use in (NPUEstimator, NPURunConfig, lambda: NPUEstimatorSpec("train"), npu_run_config_init):
        with pytest.raises(NotImplementedError, match=f"{tf.__version__} has no Estimator: install TensorFlow 2.15"):
            use()


def test_without_estimator_the_use_is_an_error(warm_ranks):
    if has_estimator():
        pytest.skip("SKIPPED: this TensorFlow has Estimator")
    warm_ranks(1, missing_body)
