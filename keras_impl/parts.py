"""Layers of which each rank of a copy of the model holds a piece (`--strategy split`)."""

from typing import Any

import keras
import tensorflow as tf
from keras import layers

from keras_impl.exchange import GroupExchange


class SplitConvolution(layers.Conv2D):
    """This rank's filters of a convolution."""

    def __init__(self, *arguments: Any, exchange: GroupExchange, name: str, **named: Any) -> None:
        super().__init__(*arguments, name=name, **named)
        self.exchange = exchange

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return this rank's channels."""
        return super().call(self.exchange.copy(inputs, name=self.name))


class ColumnsDense(layers.Dense):
    """This rank's units of a dense layer."""

    def __init__(self, *arguments: Any, exchange: GroupExchange, name: str, **named: Any) -> None:
        super().__init__(*arguments, name=name, **named)
        self.exchange = exchange

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return the outputs of this rank's units."""
        return super().call(self.exchange.copy(inputs, name=self.name))


class RowsDense(ColumnsDense):
    """All units of a dense layer, of which each rank has the weights of some inputs."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return all outputs, the sum over the ranks."""
        total = self.exchange.sum(tf.matmul(inputs, self.kernel), name=self.name)
        return total + self.bias if self.use_bias else total


class Gather(layers.Layer):
    """The channels of all ranks."""

    def __init__(self, *, exchange: GroupExchange, name: str) -> None:
        super().__init__(name=name)
        self.exchange = exchange

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return the channels of all ranks, where layers have their channels."""
        if keras.config.image_data_format() == "channels_last":
            return self.exchange.gather(inputs, name=self.name)
        channels_last = tf.transpose(inputs, (0, 2, 3, 1))
        return tf.transpose(self.exchange.gather(channels_last, name=self.name), (0, 3, 1, 2))
