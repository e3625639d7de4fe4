"""The names that training scripts get by ``from npu_bridge.npu_init import *``.

`tf` is TensorFlow's 1.x interface: `tensorflow` itself on 1.x, `tensorflow.compat.v1` on 2.x, because the scripts
that use this import are written for 1.x and call `tf.Session` and `tf.placeholder`. The import changes no setting of
TensorFlow: a 1.x script that builds its graph at the top level calls ``tf.disable_v2_behavior()`` first, as
everywhere on 2.x. A script for 2.x that wants `tf` to stay TensorFlow 2 imports `tensorflow` after this module, or
only the names it needs.

What needs something that the installed TensorFlow no longer has, such as Estimator, says so when it is used.
"""

import os

import tensorflow as tf
from hccl.manage.api import (
    create_group,
    destroy_group,
    get_group_rank_from_world_rank,
    get_local_rank_id,
    get_local_rank_size,
    get_rank_id,
    get_rank_size,
    get_world_rank_from_group_rank,
)
from hccl.split.api import set_split_strategy_by_idx, set_split_strategy_by_size
from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig
from tensorflow.python.client import session
from tensorflow.python.training import session_run_hook

from npu_bridge.config import npu_config_proto
from npu_bridge.estimator import npu_ops, npu_unary_ops
from npu_bridge.estimator.npu import npu_optimizer, npu_scope, util
from npu_bridge.estimator.npu.npu_callbacks import NPUBroadcastGlobalVariablesCallback, npu_callbacks_append
from npu_bridge.estimator.npu.npu_config import (
    DumpConfig,
    ExperimentalConfig,
    MemoryConfig,
    NPURunConfig,
    ProfilingConfig,
    npu_run_config_init,
)
from npu_bridge.estimator.npu.npu_estimator import NPUEstimator, NPUEstimatorSpec
from npu_bridge.estimator.npu.npu_hook import (
    NPUBroadcastGlobalVariablesHook,
    NPUCheckpointSaverHook,
    NpuEmptyHook,
    broadcast_global_variables,
    npu_hooks_append,
)
from npu_bridge.estimator.npu.npu_loss_scale_manager import ExponentialUpdateLossScaleManager, FixedLossScaleManager
from npu_bridge.estimator.npu.npu_loss_scale_optimizer import NPULossScaleOptimizer
from npu_bridge.estimator.npu.npu_optimizer import (
    KerasDistributeOptimizer,
    NPUDistributedOptimizer,
    NPUOptimizer,
    npu_allreduce,
    npu_distributed_optimizer_wrapper,
    npu_keras_optimizer,
    npu_tf_optimizer,
)
from npu_bridge.hccl import hccl_ops
from npu_bridge.resource import close_session, init_resource, set_keras_session_npu_config, shutdown_resource

if not tf.__version__.startswith("1."):
    tf = tf.compat.v1

# The names under which scripts ask for ranks without importing `hccl`.
get_npu_rank_id = get_rank_id
get_npu_rank_size = get_rank_size
get_npu_local_rank_id = get_local_rank_id
get_npu_local_rank_size = get_local_rank_size

__all__ = [
    "DumpConfig",
    "ExperimentalConfig",
    "ExponentialUpdateLossScaleManager",
    "FixedLossScaleManager",
    "KerasDistributeOptimizer",
    "MemoryConfig",
    "NPUBroadcastGlobalVariablesCallback",
    "NPUBroadcastGlobalVariablesHook",
    "NPUCheckpointSaverHook",
    "NPUDistributedOptimizer",
    "NPUEstimator",
    "NPUEstimatorSpec",
    "NPULossScaleOptimizer",
    "NPUOptimizer",
    "NPURunConfig",
    "NpuEmptyHook",
    "ProfilingConfig",
    "RewriterConfig",
    "broadcast_global_variables",
    "close_session",
    "config_pb2",
    "create_group",
    "destroy_group",
    "get_group_rank_from_world_rank",
    "get_local_rank_id",
    "get_local_rank_size",
    "get_npu_local_rank_id",
    "get_npu_local_rank_size",
    "get_npu_rank_id",
    "get_npu_rank_size",
    "get_rank_id",
    "get_rank_size",
    "get_world_rank_from_group_rank",
    "hccl_ops",
    "init_resource",
    "npu_allreduce",
    "npu_callbacks_append",
    "npu_config_proto",
    "npu_distributed_optimizer_wrapper",
    "npu_hooks_append",
    "npu_keras_optimizer",
    "npu_ops",
    "npu_optimizer",
    "npu_run_config_init",
    "npu_scope",
    "npu_tf_optimizer",
    "npu_unary_ops",
    "os",
    "rewriter_config_pb2",
    "session",
    "session_run_hook",
    "set_keras_session_npu_config",
    "set_split_strategy_by_idx",
    "set_split_strategy_by_size",
    "shutdown_resource",
    "tf",
    "util",
]

# Keras of TensorFlow 1.x, whose session functions scripts call; TensorFlow carries it without promising to keep it.
try:
    from tensorflow.python.keras import backend  # noqa: F401
except ImportError:
    pass
else:
    __all__.append("backend")
