"""A Keras model, moved by the usual replacements: the session, the optimizer, the callbacks."""

import numpy as np
import tensorflow as tf
from npu_bridge.npu_init import (
    close_session,
    get_npu_rank_id,
    get_npu_rank_size,
    npu_callbacks_append,
    npu_distributed_optimizer_wrapper,
    set_keras_session_npu_config,
)


def main():
    npu_keras_sess = set_keras_session_npu_config(config=None)
    rank, size = get_npu_rank_id(), get_npu_rank_size()
    random = np.random.RandomState(rank)
    x = random.standard_normal((128, 5)).astype(np.float32)
    y = x.sum(1, keepdims=True)

    model = tf.keras.Sequential(
        [tf.keras.layers.Dense(16, activation="relu"), tf.keras.layers.Dropout(0.1), tf.keras.layers.Dense(1)]
    )
    optimizer = npu_distributed_optimizer_wrapper(tf.keras.optimizers.Adam(0.01))
    model.compile(optimizer=optimizer, loss="mse")
    model.build((None, 5))
    callbacks = [tf.keras.callbacks.TerminateOnNaN()]
    history = model.fit(x, y, batch_size=32, epochs=12, verbose=0, callbacks=npu_callbacks_append(callbacks))
    losses = history.history["loss"]
    assert losses[-1] < 0.5 * losses[0], losses
    total = sum(float(np.sum(weight)) for weight in model.get_weights())
    close_session(npu_keras_sess)
    print("rank %d of %d: variables %s" % (rank, size, total.hex()))


if __name__ == "__main__":
    main()
