"""PyTorch's layers from the numbers of `common.model.specs`."""

from typing import TypeVar

from torch import nn

from common.model import specs as model_specs
from common.model.specs import ModelSpec

LayerType = TypeVar("LayerType", bound=model_specs.Layer)


def numbers(spec: ModelSpec, name: str, kind: type[LayerType]) -> LayerType:
    """Return the numbers of a layer of this kind."""
    layer = spec[name]
    assert isinstance(layer, kind)
    return layer


def convolution(spec: ModelSpec, name: str) -> nn.Conv2d:
    """Return a convolution."""
    layer = numbers(spec, name, model_specs.Convolution)
    return nn.Conv2d(
        _input_size(spec, name),
        layer.filters,
        layer.kernel,
        stride=layer.stride,
        padding=layer.padding,
        bias=layer.bias,
    )


def max_pooling(spec: ModelSpec, name: str) -> nn.MaxPool2d:
    """Return a max pooling."""
    layer = numbers(spec, name, model_specs.MaxPooling)
    return nn.MaxPool2d(layer.kernel, stride=layer.stride, padding=layer.padding)


def batch_norm(spec: ModelSpec, name: str) -> nn.BatchNorm2d:
    """Return a batch normalization."""
    layer = numbers(spec, name, model_specs.BatchNorm)
    return nn.BatchNorm2d(_input_size(spec, name), eps=layer.epsilon, momentum=1 - layer.decay)


def dense(spec: ModelSpec, name: str) -> nn.Linear:
    """Return a dense layer."""
    layer = numbers(spec, name, model_specs.Dense)
    return nn.Linear(_input_size(spec, name), layer.units, bias=layer.bias)


def _input_size(spec: ModelSpec, name: str) -> int:
    return next(row.input_shape[0] for row in spec.rows if row.layer.name == name)
