"""Callbacks for Keras: the broadcast of a model's variables from one rank."""

import foldcast
import tensorflow as tf

from npu_bridge.estimator.npu._missing import keras_callback
from npu_bridge.estimator.npu.npu_hook import broadcast_variables, checked_root

__all__ = ["NPUBroadcastGlobalVariablesCallback", "npu_callbacks_append"]

_v1 = tf.compat.v1


class NPUBroadcastGlobalVariablesCallback(keras_callback()):
    """Gives the model's weights and the optimizer's variables the values of rank `root_rank` when training begins.

    Those that are made only in the first batch follow at its end. All ranks need the callback, on the same model. In a
    world of one it does nothing.
    """

    def __init__(self, root_rank):
        super().__init__()
        self._root = checked_root("NPUBroadcastGlobalVariablesCallback", root_rank)
        self._done = None

    def on_train_begin(self, logs=None):
        """The broadcast of what is there."""
        self._done = 0
        self._broadcast()

    def on_train_batch_end(self, batch, logs=None):
        """The broadcast of everything once more, if the first batch has made variables."""
        if self._done is not None:
            self._broadcast()
            self._done = None

    # Keras of TensorFlow 1.15 calls it by this name too.
    def on_batch_end(self, batch, logs=None):
        """As `on_train_batch_end`."""
        self.on_train_batch_end(batch, logs)

    def _broadcast(self):
        variables = _variables_of(self.model)
        if foldcast.size() == 1 or len(variables) == self._done:
            return
        self._done = len(variables)
        if not variables:
            return
        if tf.executing_eagerly():
            broadcast_variables(variables, self._root)
            return
        session = _v1.keras.backend.get_session()
        with session.graph.as_default():
            session.run(broadcast_variables(variables, self._root))


def _variables_of(model):
    """The weights, and what the optimizer keeps. The state of random numbers stays each rank's own."""
    optimizer = getattr(model, "optimizer", None)
    # A method in Keras 2, a property in Keras 3; an optimizer of TensorFlow 1.x in Keras has none.
    kept = getattr(optimizer, "variables", ())
    return list(model.weights) + list(kept() if callable(kept) else kept)


def npu_callbacks_append(callbacks_list=None):
    """Appends the broadcast from rank 0 to `callbacks_list`, or to a new list, and returns the list."""
    callbacks = callbacks_list if isinstance(callbacks_list, list) else list(callbacks_list or [])
    callbacks.append(NPUBroadcastGlobalVariablesCallback(0))
    return callbacks
