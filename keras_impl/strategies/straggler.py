"""A planted straggler (`--slow`) in TensorFlow: the gradients arrive late, and with them every exchange."""

from collections.abc import Sequence

import tensorflow as tf

from common.strategies.straggler import Slowdown


def timed_from_here(images: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the time (seconds since 1970) and the images, with which nothing is computed before it."""
    started = tf.timestamp()
    with tf.control_dependencies([started]):
        return started, tf.identity(images)


def late(gradients: Sequence[tf.Tensor], slowdown: Slowdown, *, started: tf.Tensor) -> list[tf.Tensor]:
    """Return the gradients of an update, some time after the last of them was computed."""
    # A value of each, for a device has computed what the host can read.
    computed = tf.stack([tf.cast(tf.reshape(gradient, [-1])[0], tf.float64) for gradient in gradients])
    slept = tf.numpy_function(slowdown.computed, [started, computed], [])
    with tf.control_dependencies([slept]):
        return [tf.identity(gradient) for gradient in gradients]
