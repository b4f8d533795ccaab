"""Keras' layers from the numbers of `common.model.layers`."""

from typing import Any

import keras
from keras import layers

from common.config import ModelConfig
from common.model import layers as kinds
from common.model.specs import LayerRow
from keras_impl.batch_norm import BatchNormalization
from keras_impl.exchange import GroupExchange
from keras_impl.parts import ColumnsDense, Gather, RowsDense, SplitConvolution


def native_layer(row: LayerRow, config: ModelConfig, *, exchange: GroupExchange | None = None) -> layers.Layer:
    """Return the layer of a row, without the padding of its inputs.

    Args:
        exchange: of the ranks that hold the pieces of a layer; None: no layer is split.
    """
    layer, name = row.layer, row.layer.name
    pieces: dict[str, Any] = {"exchange": exchange, "name": name}
    match layer:
        case kinds.Convolution():
            window: dict[str, Any] = {"strides": layer.stride, "padding": "valid", "use_bias": layer.bias}
            if layer.split == "outputs":
                return SplitConvolution(layer.filters, layer.kernel, **window, **pieces)
            return layers.Conv2D(layer.filters, layer.kernel, **window, name=name)
        case kinds.Dense(split="none"):
            return layers.Dense(layer.units, use_bias=layer.bias, name=name)
        case kinds.Dense():
            kind = ColumnsDense if layer.split == "outputs" else RowsDense
            return kind(layer.units, use_bias=layer.bias, **pieces)
        case kinds.GatherParts():
            return Gather(**pieces)
        case kinds.MaxPooling():
            return layers.MaxPooling2D(layer.kernel, strides=layer.stride, padding="valid", name=name)
        case kinds.BatchNorm():
            axis = 1 if keras.config.image_data_format() == "channels_first" else -1
            return BatchNormalization(axis=axis, momentum=layer.decay, epsilon=layer.epsilon, name=name)
        case kinds.Dropout():
            kind = layers.SpatialDropout2D if layer.whole_channels else layers.Dropout
            return kind(layer.rate if config.dropout else 0.0, name=name)
        case kinds.Activation():
            return layers.ReLU(name=name) if layer.function == "relu" else layers.Activation("sigmoid", name=name)
    without_numbers = {
        kinds.Flatten: layers.Flatten,
        kinds.GlobalMean: layers.GlobalAveragePooling2D,
        kinds.Add: layers.Add,
    }
    return without_numbers[type(layer)](name=name)
