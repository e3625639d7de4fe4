"""`npu_bridge`, the package that training scripts for Ascend's TensorFlow adapter import, on ordinary hosts.

Most scripts need ``from npu_bridge.npu_init import *`` or ``from npu_bridge.hccl import hccl_ops``. The collective
calls run on `foldcast`; what only tunes a device is accepted and does nothing.
"""
