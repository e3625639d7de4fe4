"""The Session that scripts open before they ask for their rank, and its end."""

import tensorflow as tf
from tensorflow.python.client import session

from npu_bridge.config import npu_config_proto
from npu_bridge.estimator import npu_ops

__all__ = ["close_session", "init_resource", "set_keras_session_npu_config", "shutdown_resource"]


def init_resource(config=None):
    """Joins the job; returns a Session with `config` (see `npu_config_proto`) and the op that `shutdown_resource` runs.

    The Session is on the default graph, or on a graph of its own where TensorFlow executes eagerly.
    """
    graph = _graph()
    with graph.as_default():
        start = npu_ops.initialize_system()
        stop = npu_ops.shutdown_system()
    opened = session.Session(graph=graph, config=npu_config_proto(config))
    opened.run(start)
    return opened, stop


def shutdown_resource(sess, npu_shutdown):
    """Runs the op from `init_resource` in its Session. The process stays in the job: see `npu_ops.shutdown_system`."""
    sess.run(npu_shutdown)


def close_session(sess):
    """Closes `sess`."""
    sess.close()


def set_keras_session_npu_config(config=None):
    """Gives Keras a new Session with `config` (see `npu_config_proto`), and returns it: `close_session` closes it.

    Where Keras executes eagerly, and in Keras 3, which has no sessions, it is opened and Keras makes no use of it.
    """
    opened = session.Session(graph=_graph(), config=npu_config_proto(config))
    set_session = getattr(_keras_backend(), "set_session", None)
    if set_session is not None and not tf.executing_eagerly():
        set_session(opened)
    return opened


def _keras_backend():
    """The backend of the Keras that `tf.keras` is, as of 1.x; None in Keras 3."""
    try:
        return tf.compat.v1.keras.backend
    except (AttributeError, ImportError):
        return None


def _graph():
    return tf.Graph() if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
