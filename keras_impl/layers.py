"""Keras' layers from the numbers of `common.model.specs`."""

from typing import Any, TypeVar

import keras
from keras import layers

from common.model import specs as model_specs
from common.model.specs import ModelSpec
from keras_impl.batch_norm import BatchNormalization

LayerType = TypeVar("LayerType", bound=model_specs.Layer)


def numbers(spec: ModelSpec, name: str, kind: type[LayerType]) -> LayerType:
    """Return the numbers of a layer of this kind."""
    layer = spec[name]
    assert isinstance(layer, kind)
    return layer


def convolution(spec: ModelSpec, name: str, *, kind: type[layers.Conv2D] = layers.Conv2D, **more: Any) -> layers.Conv2D:
    """Return a convolution, without the padding of its inputs.

    Args:
        kind: of the layer, made with `more` arguments.
    """
    layer = numbers(spec, name, model_specs.Convolution)
    return kind(
        layer.filters, layer.kernel, strides=layer.stride, padding="valid", use_bias=layer.bias, name=name, **more
    )


def max_pooling(spec: ModelSpec, name: str) -> layers.MaxPooling2D:
    """Return a max pooling, without the padding of its inputs."""
    layer = numbers(spec, name, model_specs.MaxPooling)
    return layers.MaxPooling2D(layer.kernel, strides=layer.stride, padding="valid", name=name)


def padded(spec: ModelSpec, name: str, inputs: Any) -> Any:
    """Pad by the spec, the same on all sides: "same" would pad one side only at stride 2.

    Zeros serve the max pooling too: it comes after a ReLU, so no zero can win over a larger value.
    """
    layer = spec[name]
    assert isinstance(layer, model_specs.Convolution | model_specs.MaxPooling)
    return layers.ZeroPadding2D(layer.padding, name=f"{name}.padding")(inputs)


def batch_norm(spec: ModelSpec, name: str) -> BatchNormalization:
    """Return a batch normalization."""
    layer = numbers(spec, name, model_specs.BatchNorm)
    axis = 1 if keras.config.image_data_format() == "channels_first" else -1
    return BatchNormalization(axis=axis, momentum=layer.decay, epsilon=layer.epsilon, name=name)


def dense(spec: ModelSpec, name: str, *, kind: type[layers.Dense] = layers.Dense, **more: Any) -> layers.Dense:
    """Return a dense layer of a kind, made with `more` arguments."""
    layer = numbers(spec, name, model_specs.Dense)
    return kind(layer.units, use_bias=layer.bias, name=name, **more)
