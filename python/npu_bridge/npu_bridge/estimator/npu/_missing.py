"""Classes that the installed TensorFlow does not have: what uses them says so when it is used, not when imported."""

import tensorflow as tf

NO_KERAS = "finds no Keras, install the one that belongs to it"


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
        pass
    except RecursionError:  # see keras_callback
        problem = f"{NO_KERAS}: its Estimator needs it"
    return type(name, (Missing,), {"_problem": problem})


def keras_callback():
    """The base of callbacks of Keras, or a `Missing`."""
    try:
        return tf.keras.callbacks.Callback
    # TensorFlow 2.15 and newer ask themselves for Keras without end where it is not installed.
    except (AttributeError, ImportError, RecursionError):
        return type("Callback", (Missing,), {"_problem": NO_KERAS})
