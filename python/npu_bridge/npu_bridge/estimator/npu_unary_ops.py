"""Activation functions."""

import math
import sys

import tensorflow as tf

__all__ = ["gelu"]

# Scripts also write `from npu_bridge.estimator.npu_unary_ops import npu_unary_ops`.
npu_unary_ops = sys.modules[__name__]


def gelu(x):
    """The Gaussian error linear unit of `x`, by its usual approximation with tanh."""
    x = tf.convert_to_tensor(x)
    inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)
    return 0.5 * x * (1.0 + tf.tanh(inner))
