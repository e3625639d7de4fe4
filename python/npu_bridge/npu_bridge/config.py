"""Session configurations, as scripts make them for a device; TensorFlow on a CPU runs them."""

from tensorflow.core.protobuf import config_pb2
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig

__all__ = ["npu_config_proto"]

# Scripts look the entry up by this name to set options of the device on it.
_OPTIMIZER = "NpuOptimizer"


def npu_config_proto(config_proto=None):
    """`config_proto`, or a new ConfigProto, with the custom optimizer NpuOptimizer and with remapping off.

    A `config_proto` that is given is changed and returned, everything else in it kept; its NpuOptimizer entry, if it
    has one already, stays the only one. TensorFlow passes over a custom optimizer that it has no code for, so a
    Session with this configuration runs on a CPU, all other graph optimizations but remapping included.
    """
    if config_proto is None:
        config_proto = config_pb2.ConfigProto()
    elif not isinstance(config_proto, config_pb2.ConfigProto):
        raise TypeError(f"npu_config_proto: config_proto: expected a ConfigProto or None, got {config_proto!r}")
    options = config_proto.graph_options.rewrite_options
    if all(optimizer.name != _OPTIMIZER for optimizer in options.custom_optimizers):
        options.custom_optimizers.add().name = _OPTIMIZER
    options.remapping = RewriterConfig.OFF
    return config_proto
