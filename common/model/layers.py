"""The kinds of layers as plain numbers, with the shapes of their outputs and their weights.

Images are (channels, height, width), weights have PyTorch's names and layout: convolution (out, in, height, width),
dense (out, in), flatten in channel-height-width order. A new kind also needs a case in both `layers.py` that build
native layers, and in `common/trained/onnx_model.py`.
"""

import math
from dataclasses import dataclass
from typing import Literal

Shape = tuple[int, ...]
# What a rank holds of a layer that is split over the ranks of a copy of the model: some of its outputs, from all of its
# inputs; or all outputs from some of its inputs, which are then added up over the ranks.
Split = Literal["none", "outputs", "inputs"]


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer. `inputs` are the names of the layers whose outputs it reads; none: the layer before it."""

    name: str
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SlidingWindow(Layer):
    """A square that moves over its images, with `padding` more pixels on each side."""

    kernel: int
    stride: int = 1
    padding: int = 0


@dataclass(frozen=True, kw_only=True)
class Convolution(SlidingWindow):
    """2-D convolution; the padding is zeros."""

    filters: int
    bias: bool = True
    split: Split = "none"


@dataclass(frozen=True, kw_only=True)
class MaxPooling(SlidingWindow):
    """Maximum over squares; the padding is minus infinity."""


@dataclass(frozen=True, kw_only=True)
class BatchNorm(Layer):
    """Batch normalization per channel; running = decay x running + (1 - decay) x batch, variance unbiased."""

    decay: float = 0.9
    epsilon: float = 1e-5


@dataclass(frozen=True, kw_only=True)
class Activation(Layer):
    """relu or sigmoid."""

    function: Literal["relu", "sigmoid"]


@dataclass(frozen=True, kw_only=True)
class Dropout(Layer):
    """Set to zero with probability `rate` in training, the rest scaled by 1 / (1 - rate)."""

    rate: float
    whole_channels: bool = False


@dataclass(frozen=True, kw_only=True)
class GlobalMean(Layer):
    """Mean over height and width."""


@dataclass(frozen=True, kw_only=True)
class Flatten(Layer):
    """All values of a sample, in channel-height-width order."""


@dataclass(frozen=True, kw_only=True)
class Dense(Layer):
    """Fully connected layer."""

    units: int
    bias: bool = True
    split: Split = "none"


@dataclass(frozen=True, kw_only=True)
class Add(Layer):
    """Sum of the outputs of two layers."""


@dataclass(frozen=True, kw_only=True)
class GatherParts(Layer):
    """The channels of all ranks of a copy of the model, in the order of ranks."""

    ranks: int


@dataclass(frozen=True)
class WeightSpec:
    """One array of a model: name in the weights file, shape, distribution of the initial values."""

    name: str
    shape: Shape
    initializer: Literal["uniform_fan_in", "normal_fan_out", "zeros", "ones"]
    fan: int = 1
    trainable: bool = True


def output_shape(layer: Layer, shape: Shape) -> Shape:
    """Return the shape of a layer's outputs for that of its inputs, both of one image."""
    match layer:
        case SlidingWindow():
            sides = ((side + 2 * layer.padding - layer.kernel) // layer.stride + 1 for side in shape[1:])
            return (layer.filters if isinstance(layer, Convolution) else shape[0], *sides)
        case GlobalMean():
            return shape[:1]
        case Flatten():
            return (math.prod(shape),)
        case Dense():
            return (layer.units,)
        case GatherParts():
            return (layer.ranks * shape[0], *shape[1:])
        case _:
            return shape


def weights_of(layer: Layer, shape: Shape) -> tuple[WeightSpec, ...]:
    """Return the arrays of a layer for inputs of this shape; the kernel of a convolution or dense layer is the first.

    Initial weights follow torchvision for ResNet, elsewhere torch.nn's defaults: uniform within 1 / sqrt(fan-in).
    Dense layers without bias are drawn like ResNet's convolutions, so that deep models of them can learn.
    """
    name = layer.name
    kernel: Shape
    match layer:
        case BatchNorm():
            return (
                WeightSpec(f"{name}.weight", shape[:1], "ones"),
                WeightSpec(f"{name}.bias", shape[:1], "zeros"),
                WeightSpec(f"{name}.running_mean", shape[:1], "zeros", trainable=False),
                WeightSpec(f"{name}.running_var", shape[:1], "ones", trainable=False),
            )
        case Convolution():
            kernel = (layer.filters, shape[0], layer.kernel, layer.kernel)
        case Dense():
            kernel = (layer.units, *shape)
        case _:
            return ()
    if not layer.bias:
        return (WeightSpec(f"{name}.weight", kernel, "normal_fan_out", kernel[0] * math.prod(kernel[2:])),)
    fan_in = math.prod(kernel[1:])
    return (
        WeightSpec(f"{name}.weight", kernel, "uniform_fan_in", fan_in),
        WeightSpec(f"{name}.bias", kernel[:1], "uniform_fan_in", fan_in),
    )
