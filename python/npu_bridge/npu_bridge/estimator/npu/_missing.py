"""Classes that the installed TensorFlow does not have: what uses them says so when it is used, not when imported."""

import tensorflow as tf


class Missing:
    """The base of classes whose own base is not there."""

    _problem = ""

    def __new__(cls, *args, **kwargs):
        raise NotImplementedError(f"{cls.__name__}: TensorFlow {tf.__version__} {cls._problem}")


def estimator_class(name):
    """TensorFlow's class of this name from `tf.estimator`, as of 1.x, or a `Missing`."""
    problem = (
        "has no Estimator: install TensorFlow 2.15 or older with tensorflow_estimator, or train in a "
        "tf.train.MonitoredTrainingSession or with Keras"
    )
    try:
        return getattr(tf.compat.v1.estimator, name)
    except (AttributeError, ImportError):
        return type(name, (Missing,), {"_problem": problem})


def keras_callback():
    """The base of callbacks of Keras, or a `Missing`."""
    try:
        return tf.keras.callbacks.Callback
    # TensorFlow 2.16 and newer ask themselves for Keras without end where it is not installed.
    except (AttributeError, ImportError, RecursionError):
        problem = "finds no Keras: install the keras that belongs to it"
        return type("Callback", (Missing,), {"_problem": problem})
