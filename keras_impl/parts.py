"""Layers of which each rank of a copy of the model holds a piece (`--strategy split`)."""

from typing import Any

import keras
import tensorflow as tf
from keras import layers

from keras_impl.exchange import GroupExchange


class SplitLayer(layers.Layer):
    """A layer whose inputs all ranks have."""

    def __init__(self, *arguments: Any, exchange: GroupExchange, name: str, **named: Any) -> None:
        super().__init__(*arguments, name=name, **named)
        self.exchange = exchange

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return what this rank's piece of the layer makes of them."""
        return super().call(self.exchange.copy(inputs, name=self.name))


class SplitConvolution(SplitLayer, layers.Conv2D):
    """This rank's filters of a convolution."""


class ColumnsDense(SplitLayer, layers.Dense):
    """This rank's units of a dense layer."""


class RowsDense(SplitLayer, layers.Dense):
    """All units of a dense layer, of which each rank has the weights of some inputs."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return all outputs, the sum over the ranks."""
        total = self.exchange.sum(tf.matmul(inputs, self.kernel), name=self.name)
        return total + self.bias if self.use_bias else total


class Gather(SplitLayer):
    """The channels of all ranks."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return the channels of all ranks, where layers have their channels."""
        if keras.config.image_data_format() == "channels_last":
            return self.exchange.gather(inputs, name=self.name)
        channels_last = tf.transpose(inputs, (0, 2, 3, 1))
        return tf.transpose(self.exchange.gather(channels_last, name=self.name), (0, 3, 1, 2))
