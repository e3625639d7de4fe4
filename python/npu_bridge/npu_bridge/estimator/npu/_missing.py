"""TensorFlow's Estimator, which newer releases do not have: what uses it says so when it is used, not when imported."""

import tensorflow as tf


class MissingEstimator:
    """The base of classes that need TensorFlow's Estimator, where there is none."""

    def __new__(cls, *args, **kwargs):
        raise NotImplementedError(
            f"{cls.__name__}: TensorFlow {tf.__version__} has no Estimator: install TensorFlow 2.15 or older with "
            "tensorflow_estimator, or train in a tf.train.MonitoredTrainingSession or with Keras"
        )


def estimator_class(name):
    """TensorFlow's class of this name from `tf.estimator`, as of 1.x, or a `MissingEstimator`."""
    try:
        return getattr(tf.compat.v1.estimator, name)
    except (AttributeError, ImportError):
        return type(name, (MissingEstimator,), {})
