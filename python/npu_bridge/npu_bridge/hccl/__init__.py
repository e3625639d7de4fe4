"""Collective operations on TensorFlow tensors: see `npu_bridge.hccl.hccl_ops`."""
