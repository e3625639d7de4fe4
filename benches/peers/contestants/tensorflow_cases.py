"""What the two contestants that are called from TensorFlow have in common: results are new tensors."""

import method
import numpy as np
import tensorflow as tf

DTYPES = {"f32": tf.float32, "f16": tf.float16, "bf16": tf.bfloat16, "i32": tf.int32}


class Case(method.Made):
    """``function`` makes a tensor of a tensor."""

    def __init__(self, size, dtype, rank, function):
        dtype = DTYPES[dtype]
        self.source = method.pattern(size // dtype.size, rank).astype(dtype.as_numpy_dtype)
        self.input = tf.constant(self.source)
        self.function = tf.function(
            function, input_signature=[tf.TensorSpec(self.source.shape, dtype)], autograph=False
        )
        self.output = None

    def call(self):
        self.output = self.function(self.input)

    def wait(self):
        # Functions are called eagerly here, and return when they have run; the value is looked at to make sure.
        self.output[0].numpy()

    def rewrite(self):
        # A new tensor, written just now.
        self.input = tf.constant(self.source)

    def result(self):
        return self.output.numpy().astype(np.int64)


class InTensorFlow(method.Contestant):
    """A library whose ``reduce(op, count, dtype)`` gives a function from tensor to tensor."""

    def make(self, size, dtype, op, mode):
        if mode != "out":
            return None
        case = Case(size, dtype, self.rank, self.reduce(op))
        case.call()  # traces the function
        return case

    def reduce(self, op):
        raise NotImplementedError

    def start(self):
        self.maximum = tf.function(
            self.reduce("max"), input_signature=[tf.TensorSpec([1], tf.float32)], autograph=False
        )

    def barrier(self):
        self.largest(0.0)

    def largest(self, value):
        return float(self.maximum(tf.constant([value], tf.float32)).numpy()[0])
