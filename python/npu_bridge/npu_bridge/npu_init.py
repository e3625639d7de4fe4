"""The names that training scripts get by ``from npu_bridge.npu_init import *``.

`tf` is TensorFlow's 1.x interface: `tensorflow` itself on 1.x, `tensorflow.compat.v1` on 2.x, because the scripts
that use this import are written for 1.x and call `tf.Session` and `tf.placeholder`. The import changes no setting of
TensorFlow: a 1.x script that builds its graph at the top level calls ``tf.disable_v2_behavior()`` first, as
everywhere on 2.x. A script for 2.x that wants `tf` to stay TensorFlow 2 imports `tensorflow` after this module, or
only the names it needs.

What the installed TensorFlow no longer has is not exported.
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
from npu_bridge.estimator import npu_ops
from npu_bridge.estimator.npu import npu_scope
from npu_bridge.hccl import hccl_ops
from npu_bridge.resource import close_session, init_resource, shutdown_resource

if not tf.__version__.startswith("1."):
    tf = tf.compat.v1

__all__ = [
    "RewriterConfig",
    "close_session",
    "config_pb2",
    "create_group",
    "destroy_group",
    "get_group_rank_from_world_rank",
    "get_local_rank_id",
    "get_local_rank_size",
    "get_rank_id",
    "get_rank_size",
    "get_world_rank_from_group_rank",
    "hccl_ops",
    "init_resource",
    "npu_config_proto",
    "npu_ops",
    "npu_scope",
    "os",
    "rewriter_config_pb2",
    "session",
    "session_run_hook",
    "set_split_strategy_by_idx",
    "set_split_strategy_by_size",
    "shutdown_resource",
    "tf",
]

# Keras of TensorFlow 1.x, whose session functions scripts call; TensorFlow carries it without promising to keep it.
try:
    from tensorflow.python.keras import backend  # noqa: F401
except ImportError:
    pass
else:
    __all__.append("backend")
