"""Data-parallel training of a Keras model, with the loss curve of one rank that trains on the joint batches.

    foldcast run -n 4 python examples/keras_data_parallel.py

Every rank makes the same data and the same model, trains on its share of each batch and averages the gradients with
`hccl_ops.allreduce`. Afterwards each rank trains once more, alone and on whole batches, and compares the two loss
curves. Prints one line a rank; curves that differ by more than rounding are an error. Works on any number of ranks.
"""

import numpy as np
import tensorflow as tf
from hccl.manage.api import get_rank_id, get_rank_size
from npu_bridge.hccl import hccl_ops

FEATURES = 16
SHARE = 8  # samples of a batch that one rank takes
BATCHES = 10
EPOCHS = 4
TOLERANCE = 1e-5  # relative; float32 sums that are taken in another order differ by about 1e-7


class Regression(tf.keras.Model):
    """A Keras model with a training step of its own, in which `average` sees the loss and each gradient."""

    average = staticmethod(lambda tensor: tensor)

    def train_step(self, data):
        samples, targets = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(samples, training=True) - targets))
        gradients = tape.gradient(loss, self.trainable_variables)
        gradients = [self.average(gradient) for gradient in gradients]
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return {"loss": self.average(loss)}


class LossCurve(tf.keras.callbacks.Callback):
    """Keeps the loss of every batch."""

    def __init__(self):
        super().__init__()
        self.losses = []

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(float(logs["loss"]))


def average_over_ranks(tensor):
    return hccl_ops.allreduce(tensor, "sum") / get_rank_size()


def make_model():
    """The same weights each time and on every rank: the initializers are seeded."""
    inputs = tf.keras.Input((FEATURES,))
    hidden = tf.keras.layers.Dense(
        32, activation="tanh", kernel_initializer=tf.keras.initializers.GlorotUniform(seed=1)
    )(inputs)
    outputs = tf.keras.layers.Dense(1, kernel_initializer=tf.keras.initializers.GlorotUniform(seed=2))(hidden)
    model = Regression(inputs, outputs)
    # XLA has no kernel for HcomAllReduce, so Keras must not choose it.
    model.compile(optimizer=tf.keras.optimizers.SGD(learning_rate=0.05, momentum=0.9), jit_compile=False)
    return model


def make_batches(ranks):
    """The joint batches: noisy samples of a fixed function, shape (batches, samples of a batch, ...)."""
    random = np.random.RandomState(0)
    samples = random.standard_normal((BATCHES, ranks * SHARE, FEATURES)).astype(np.float32)
    noise = 0.1 * random.standard_normal((BATCHES, ranks * SHARE, 1))
    targets = np.sin(samples[..., :1] + samples[..., 1:2]) + noise
    return samples, targets.astype(np.float32)


def loss_curve(model, samples, targets):
    curve = LossCurve()
    model.fit(
        samples.reshape(-1, FEATURES),
        targets.reshape(-1, 1),
        batch_size=samples.shape[1],
        epochs=EPOCHS,
        shuffle=False,
        verbose=0,
        callbacks=[curve],
    )
    return np.array(curve.losses)


def main():
    rank, ranks = get_rank_id(), get_rank_size()
    samples, targets = make_batches(ranks)
    mine = slice(rank * SHARE, (rank + 1) * SHARE)

    model = make_model()
    model.average = average_over_ranks
    parallel = loss_curve(model, samples[:, mine], targets[:, mine])
    alone = loss_curve(make_model(), samples, targets)

    assert len(parallel) == len(alone) == EPOCHS * BATCHES, (len(parallel), len(alone))
    assert alone[-1] < 0.5 * alone[0], f"the model did not learn: loss {alone[0]} -> {alone[-1]}"
    difference = np.max(np.abs(parallel - alone) / np.abs(alone))
    assert difference <= TOLERANCE, (
        f"rank {rank} of {ranks}: the loss curves differ by {difference:.1e}, allowed is {TOLERANCE:.0e}:\n"
        f"{parallel}\n{alone}"
    )
    losses = f"loss {parallel[0]:.4f} -> {parallel[-1]:.4f}"
    agreement = f"equal to one rank's within {difference:.1e} (allowed {TOLERANCE:.0e})"
    print(f"rank {rank} of {ranks}: {len(parallel)} steps, {losses}, {agreement}", flush=True)


if __name__ == "__main__":
    main()
