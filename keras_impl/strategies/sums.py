"""What a rank sums up in an epoch."""

import tensorflow as tf

from common.measurement.metrics import Sums


class PlaceSums:
    """Sums of losses and right answers, one for each place in the batch, as all batches have one size.

    The sum within the batch is taken once, at the end.

    Args:
        places: samples of a batch.
    """

    def __init__(self, places: int) -> None:
        self.losses = tf.Variable(tf.zeros(places, tf.float64), trainable=False)
        self.correct = tf.Variable(tf.zeros(places, tf.int64), trainable=False)

    def restart(self) -> None:
        """Forget all samples."""
        self.losses.assign(tf.zeros_like(self.losses))
        self.correct.assign(tf.zeros_like(self.correct))

    def add(self, outputs: tf.Tensor, losses: tf.Tensor, labels: tf.Tensor) -> None:
        """Add those of a batch, in a graph."""
        self.losses.assign_add(tf.cast(losses, tf.float64))
        self.correct.assign_add(tf.cast(tf.argmax(outputs, axis=1) == labels, tf.int64))

    def read(self, samples: int) -> Sums:
        """Return the sums over all places, of so many samples."""
        return Sums(float(self.losses.numpy().sum()), float(self.correct.numpy().sum()), samples)
