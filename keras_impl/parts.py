"""The part of a model that one rank holds, layer by layer from its spec (`--strategy layers`, `split`)."""

from typing import Any

import keras
import tensorflow as tf
from keras import layers

from common.model import specs as model_specs
from common.model.partition import part_name, single_layers
from common.model.specs import Layer, ModelSpec
from keras_impl.exchange import GroupExchange
from keras_impl.layers import batch_norm, convolution, dense, max_pooling, padded


def layer_parts(model: Any, spec: ModelSpec) -> list[tuple[str, Any]]:
    """Return (name, part) of the layers of a model, with its weights."""
    parts, inputs = [], model.input
    for of_part in single_layers(spec):
        outputs = model.get_layer(of_part.rows[-1].layer.name).output
        parts.append((part_name(of_part), keras.Model(inputs, outputs)))
        inputs = outputs
    return parts


def part_of_model(spec: ModelSpec, inputs: Any, *, exchange: GroupExchange | None) -> Any:
    """Return the outputs of some of the layers of a model, or of a piece of each.

    Args:
        exchange: of the ranks that hold the pieces of a layer; None: no layer is split.
    """
    of_layers: dict[str, Any] = {}
    hidden = inputs
    for row in spec.rows:
        layer = row.layer
        # What is not known by its name came from the stage before.
        source = of_layers.get(layer.source, inputs) if layer.source else hidden
        if isinstance(layer, model_specs.Add):
            hidden = layers.Add(name=layer.name)([source, of_layers.get(layer.shortcut, inputs)])
        else:
            hidden = _apply(spec, layer, source, exchange=exchange)
        of_layers[layer.name] = hidden
    return hidden


def _apply(spec: ModelSpec, layer: Layer, inputs: Any, *, exchange: GroupExchange | None) -> Any:
    if isinstance(layer, model_specs.Convolution | model_specs.MaxPooling) and layer.padding:
        inputs = padded(spec, layer.name, inputs)
    return _layer(spec, layer, exchange=exchange)(inputs)


def _layer(spec: ModelSpec, layer: Layer, *, exchange: GroupExchange | None) -> layers.Layer:
    name = layer.name
    if isinstance(layer, model_specs.Convolution):
        if layer.split == "outputs":
            return convolution(spec, name, kind=SplitConvolution, exchange=exchange)
        return convolution(spec, name)
    if isinstance(layer, model_specs.Dense):
        if layer.split != "none":
            return dense(spec, name, kind=ColumnsDense if layer.split == "outputs" else RowsDense, exchange=exchange)
        return dense(spec, name)
    if isinstance(layer, model_specs.MaxPooling):
        return max_pooling(spec, name)
    if isinstance(layer, model_specs.BatchNorm):
        return batch_norm(spec, name)
    if isinstance(layer, model_specs.Dropout):
        return (layers.SpatialDropout2D if layer.whole_channels else layers.Dropout)(layer.rate, name=name)
    if isinstance(layer, model_specs.Activation):
        return layers.ReLU(name=name) if layer.function == "relu" else layers.Activation("sigmoid", name=name)
    if isinstance(layer, model_specs.GatherParts):
        assert exchange
        return Gather(exchange, name=name)
    kinds_without_numbers = {
        model_specs.Flatten: layers.Flatten,
        model_specs.GlobalMean: layers.GlobalAveragePooling2D,
    }
    return kinds_without_numbers[type(layer)](name=name)


class SplitConvolution(layers.Conv2D):
    """This rank's filters of a convolution."""

    def __init__(self, *arguments: Any, exchange: GroupExchange, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.exchange = exchange

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return this rank's channels."""
        return super().call(self.exchange.copy(inputs, name=self.name))


class ColumnsDense(layers.Dense):
    """This rank's units of a dense layer."""

    def __init__(self, *arguments: Any, exchange: GroupExchange, **named: Any) -> None:
        super().__init__(*arguments, **named)
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

    def __init__(self, exchange: GroupExchange, **named: Any) -> None:
        super().__init__(**named)
        self.exchange = exchange

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return the channels of all ranks, (batch, height, width, channels)."""
        return self.exchange.gather(inputs, name=self.name)
