"""TensorFlow's Estimator, trained on all ranks together."""

import hashlib
import logging
import os
import tempfile

import foldcast
import numpy as np
import tensorflow as tf
from hccl.manage.api import get_rank_id

from npu_bridge.estimator.npu._missing import estimator_class
from npu_bridge.estimator.npu.npu_config import NPURunConfig
from npu_bridge.estimator.npu.npu_hook import NPUBroadcastGlobalVariablesHook

__all__ = ["NPUEstimator", "NPUEstimatorSpec"]

_v1 = tf.compat.v1
_Estimator = estimator_class("Estimator")
_EstimatorSpec = estimator_class("EstimatorSpec")
_RunConfig = estimator_class("RunConfig")


class NPUEstimatorSpec(_EstimatorSpec):
    """A `tf.estimator.EstimatorSpec` that also takes a `host_call`.

    `host_call` is a function and its arguments, a list or a dict of tensors: it is called once, when the spec is made,
    and the op or the tensors that it returns run with each step of training and evaluation. Scripts write summaries so.
    """

    def __new__(
        cls,
        mode,
        predictions=None,
        loss=None,
        train_op=None,
        eval_metric_ops=None,
        export_outputs=None,
        training_chief_hooks=None,
        training_hooks=None,
        scaffold=None,
        evaluation_hooks=None,
        prediction_hooks=None,
        host_call=None,
    ):
        modes = {"train": training_hooks, "eval": evaluation_hooks}
        if host_call is not None and mode in modes:
            modes[mode] = [*(modes[mode] or ()), _RunsWithEachStep(_called("NPUEstimatorSpec", host_call))]
        return super().__new__(
            cls,
            mode,
            predictions=predictions,
            loss=loss,
            train_op=train_op,
            eval_metric_ops=eval_metric_ops,
            export_outputs=export_outputs,
            training_chief_hooks=training_chief_hooks,
            training_hooks=modes["train"],
            scaffold=scaffold,
            evaluation_hooks=modes["eval"],
            prediction_hooks=prediction_hooks,
        )


class _RunsWithEachStep(_v1.train.SessionRunHook):
    def __init__(self, fetches):
        self._fetches = fetches

    def before_run(self, run_context):
        return _v1.train.SessionRunArgs(self._fetches)


def _called(call, host_call):
    expected = f"{call}: host_call: expected a function and a list or dict of tensors"
    if not isinstance(host_call, (tuple, list)) or len(host_call) != 2 or not callable(host_call[0]):
        raise ValueError(f"{expected}, got {host_call!r}")
    function, arguments = host_call
    if isinstance(arguments, dict):
        result = function(**arguments)
    elif isinstance(arguments, (tuple, list)):
        result = function(*arguments)
    else:
        raise ValueError(f"{expected}, got {arguments!r} as arguments")
    return [] if result is None else result


class _TrainsTogether(_Estimator):
    """A class of its own, because TensorFlow refuses an Estimator that overrides methods itself."""

    # Whether this rank writes to its directory; known from the first training on.
    _writes = True

    def train(self, input_fn, hooks=None, steps=None, max_steps=None, saving_listeners=None):
        """Trains the model, on all ranks together: all call this.

        All begin with the variables of rank 0, restored or initialised, and so with its global step. Of the ranks that
        have one `model_dir` the lowest writes to it. When this returns on one rank, every rank has made its last step
        and written what it writes.
        """
        if foldcast.size() == 1:
            return super().train(input_fn, hooks, steps, max_steps, saving_listeners)
        hooks = list(hooks or [])
        begun, self._writes = self._agreed()
        if steps is None and max_steps is not None and max_steps > 0:
            # Whether there is anything to do depends on the checkpoint of rank 0, not on a rank's own.
            if begun >= max_steps:
                logging.getLogger("tensorflow").info("NPUEstimator: max_steps %d were made already", max_steps)
                return self
            hooks.insert(0, _v1.train.StopAtStepHook(last_step=max_steps))
            max_steps = None
        if not self._config_of_device("horovod_mode"):
            # First of all hooks: others look at the global step.
            hooks.insert(0, NPUBroadcastGlobalVariablesHook(0))
        config = self._config
        try:
            if not self._writes:
                self._config = _silent(config)
                saving_listeners = None
            super().train(input_fn, hooks, steps, max_steps, saving_listeners)
        finally:
            self._config = config
        foldcast.barrier()
        return self

    def eval_dir(self, name=None):
        """Where `evaluate` writes its summaries: each rank in a directory of its own, since names of files could meet."""
        directory = super().eval_dir(name)
        return directory if self._writes else f"{directory}_rank{foldcast.rank()}"

    def _config_of_device(self, option):
        return getattr(self._config, "npu_options", {}).get(option)

    def _agreed(self):
        """The global step of rank 0's checkpoint, and whether this rank writes to its directory."""
        directory = os.path.realpath(os.fspath(self.model_dir))
        latest = _v1.train.latest_checkpoint(directory)
        begun = 0
        if latest is not None:
            begun = int(_v1.train.load_variable(directory, _v1.GraphKeys.GLOBAL_STEP))
        digest = int.from_bytes(hashlib.sha256(os.fsencode(directory)).digest()[:7], "little")
        table = foldcast.allgather(np.array([[begun, digest]], np.int64))
        first = int(np.argmax(table[:, 1] == digest))
        return int(table[0, 0]), first == get_rank_id()


def _silent(config):
    """`config` without all that writes into the model's directory."""
    return config.replace(
        save_checkpoints_steps=None, save_checkpoints_secs=None, save_summary_steps=0, log_step_count_steps=None
    )


class NPUEstimator(_TrainsTogether):
    """A `tf.estimator.Estimator` that trains on all ranks together: see `train`.

    The gradients are averaged by the optimizer of the `model_fn`, such as `NPUDistributedOptimizer`. With a
    `model_dir` neither here nor in `config` a new directory ``model_dir_...`` is made where the program runs.
    `job_start_file` is a device's and does nothing.
    """

    def __init__(
        self, model_fn=None, model_dir=None, config=None, params=None, job_start_file="", warm_start_from=None
    ):
        if config is None:
            config = NPURunConfig()
        elif not isinstance(config, _RunConfig):
            raise TypeError(f"NPUEstimator: config: expected an NPURunConfig, got {config!r}")
        if model_dir is None and config.model_dir is None:
            model_dir = tempfile.mkdtemp(prefix="model_dir_", dir=os.getcwd())
        super().__init__(
            model_fn=model_fn, model_dir=model_dir, config=config, params=params, warm_start_from=warm_start_from
        )
