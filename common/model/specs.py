"""Model specs: layers as plain numbers, and the layer table, weights, parameter count and FLOPs that follow.

The two `models.py` are written natively from these numbers. Images are (channels, height, width) here, weights have
PyTorch's names and layout: convolution (out, in, height, width), dense (out, in), flatten in channel-height-width
order.
"""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from tabulate import tabulate

from common.errors import UserError

Shape = tuple[int, ...]
# What a rank holds of a layer that is split over the ranks of a copy of the model: some of its outputs, from all of its
# inputs; or all outputs from some of its inputs, which are then added up over the ranks.
Split = Literal["none", "outputs", "inputs"]


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer. `source` is the name of its input layer, "" for the previous one."""

    name: str
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class Convolution(Layer):
    """2-D convolution with a square kernel and `padding` zeros on each side."""

    filters: int
    kernel: int
    stride: int = 1
    padding: int = 0
    bias: bool = True
    split: Split = "none"


@dataclass(frozen=True, kw_only=True)
class MaxPooling(Layer):
    """Maximum over squares; `padding` on each side is minus infinity."""

    kernel: int
    stride: int
    padding: int = 0


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
class GatherParts(Layer):
    """The channels of all ranks of a copy of the model, in the order of ranks."""


@dataclass(frozen=True, kw_only=True)
class Add(Layer):
    """Sum of this layer's source and the `shortcut` layer."""

    shortcut: str


@dataclass(frozen=True)
class WeightSpec:
    """One array of a model: name in the weights file, shape, distribution of the initial values."""

    name: str
    shape: Shape
    initializer: Literal["uniform_fan_in", "normal_fan_out", "zeros", "ones"]
    fan: int
    trainable: bool = True


@dataclass(frozen=True)
class LayerRow:
    """A layer with the shapes that follow from the input: one row of the layer table."""

    layer: Layer
    input_shape: Shape
    output_shape: Shape
    weights: tuple[WeightSpec, ...]

    @property
    def parameters(self) -> int:
        """Number of trainable values."""
        return sum(math.prod(weight.shape) for weight in self.weights if weight.trainable)

    @property
    def multiply_adds(self) -> int:
        """Multiply-accumulate operations of the forward pass of one image (convolution and dense layers only)."""
        if isinstance(self.layer, Convolution):
            positions = math.prod(self.output_shape[1:])
            return positions * math.prod(self.weights[0].shape)
        return math.prod(self.weights[0].shape) if isinstance(self.layer, Dense) else 0


@dataclass(frozen=True)
class ModelSpec:
    """A model for one input shape and number of outputs, or the part of it that one rank of a copy holds."""

    name: str
    input_shape: Shape  # (channels, height, width); of a part also (units,)
    outputs: int
    rows: tuple[LayerRow, ...]
    is_part: bool = False

    def __getitem__(self, name: str) -> Layer:
        return next(row.layer for row in self.rows if row.layer.name == name)

    def holds(self, kind: type[Layer]) -> bool:
        """Return whether the model has layers of a kind."""
        return any(isinstance(row.layer, kind) for row in self.rows)

    def has_layer(self, name: str) -> bool:
        """Return whether the model has a layer of this name."""
        return any(row.layer.name == name for row in self.rows)

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        """All arrays, trainable or not, in the order of the layers."""
        return tuple(weight for row in self.rows for weight in row.weights)

    @property
    def parameters(self) -> int:
        """Number of trainable values."""
        return sum(row.parameters for row in self.rows)

    @property
    def multiply_adds(self) -> int:
        """Multiply-accumulate operations of one image, forward; a training step costs about three times that."""
        return sum(row.multiply_adds for row in self.rows)


def _mlp(outputs: int) -> Iterator[Layer]:
    """The thesis, table 3.1: 784 - 192 sigmoid - 10."""
    yield Flatten(name="flatten")
    yield Dense(name="fc1", units=192)
    yield Activation(name="sigmoid1", function="sigmoid")
    yield Dense(name="fc2", units=outputs)


def _cnn(outputs: int) -> Iterator[Layer]:
    """The notebook's network, that of PyTorch's MNIST example of 2017."""
    yield Convolution(name="conv1", filters=10, kernel=5)
    yield MaxPooling(name="pool1", kernel=2, stride=2)
    yield Activation(name="relu1", function="relu")
    yield Convolution(name="conv2", filters=20, kernel=5)
    yield Dropout(name="dropout2", rate=0.5, whole_channels=True)
    yield MaxPooling(name="pool2", kernel=2, stride=2)
    yield Activation(name="relu2", function="relu")
    yield Flatten(name="flatten")
    yield Dense(name="fc1", units=50)
    yield Activation(name="relu3", function="relu")
    yield Dropout(name="dropout3", rate=0.5)
    yield Dense(name="fc2", units=outputs)


def _simplecnn(outputs: int) -> Iterator[Layer]:
    """PyDTNN's simplecnn."""
    yield Convolution(name="conv1", filters=4, kernel=3)
    yield Activation(name="relu1", function="relu")
    yield Convolution(name="conv2", filters=8, kernel=3)
    yield Activation(name="relu2", function="relu")
    yield MaxPooling(name="pool1", kernel=2, stride=2)
    yield Flatten(name="flatten")
    yield Dense(name="fc1", units=128)
    yield Activation(name="relu3", function="relu")
    yield Dense(name="fc2", units=outputs)


RESNET34_BLOCKS = (3, 4, 6, 3)
RESNET34_FILTERS = (64, 128, 256, 512)


def _resnet34(outputs: int) -> Iterator[Layer]:
    """ResNet-34 (He et al., 2015) as in torchvision; the thesis uses one gray channel."""
    yield Convolution(name="conv1", filters=64, kernel=7, stride=2, padding=3, bias=False)
    yield BatchNorm(name="bn1")
    yield Activation(name="relu", function="relu")
    yield MaxPooling(name="maxpool", kernel=3, stride=2, padding=1)
    source, channels = "maxpool", RESNET34_FILTERS[0]
    for stage, (blocks, filters) in enumerate(zip(RESNET34_BLOCKS, RESNET34_FILTERS, strict=True), start=1):
        for block in range(blocks):
            name = f"layer{stage}.{block}"
            stride = 2 if stage > 1 and block == 0 else 1
            yield Convolution(
                name=f"{name}.conv1", source=source, filters=filters, kernel=3, stride=stride, padding=1, bias=False
            )
            yield BatchNorm(name=f"{name}.bn1")
            yield Activation(name=f"{name}.relu1", function="relu")
            yield Convolution(name=f"{name}.conv2", filters=filters, kernel=3, padding=1, bias=False)
            yield BatchNorm(name=f"{name}.bn2")
            shortcut = source
            if stride != 1 or channels != filters:
                shortcut = f"{name}.downsample.1"
                yield Convolution(
                    name=f"{name}.downsample.0", source=source, filters=filters, kernel=1, stride=stride, bias=False
                )
                yield BatchNorm(name=shortcut)
            yield Add(name=f"{name}.add", source=f"{name}.bn2", shortcut=shortcut)
            source, channels = f"{name}.relu2", filters
            yield Activation(name=source, function="relu")
    yield GlobalMean(name="avgpool")
    yield Dense(name="fc", units=outputs)


def _dense500(outputs: int) -> Iterator[Layer]:
    """The article: 500 inputs - 256 hidden units; it does not specify the output layer."""
    yield Flatten(name="flatten")
    yield Dense(name="fc1", units=256)
    yield Activation(name="relu1", function="relu")
    yield Dense(name="fc2", units=outputs)


DEEP_SIZE = (4, 128)  # layers, units of each


def _deep(outputs: int, depth: int = DEEP_SIZE[0], width: int = DEEP_SIZE[1]) -> Iterator[Layer]:
    """Equal dense layers, for studies of memory and of pipelines: as many and as wide as asked for."""
    yield Flatten(name="flatten")
    for number in range(1, depth + 1):
        yield Dense(name=f"fc{number}", units=width, bias=False)
        yield Activation(name=f"relu{number}", function="relu")
    yield Dense(name=f"fc{depth + 1}", units=outputs)


_MODELS: dict[str, Callable[..., Iterator[Layer]]] = {
    "mlp": _mlp,
    "cnn": _cnn,
    "simplecnn": _simplecnn,
    "resnet34": _resnet34,
    "dense500": _dense500,
    "deep": _deep,
}
MODEL_NAMES = tuple(_MODELS)
_SIZED = re.compile(r"deep:([1-9]\d{0,2})x([1-9]\d{0,4})")


def is_model_name(name: str) -> bool:
    """Return whether there is such a model: one of `MODEL_NAMES`, or "deep:8x1024" for 8 layers of 1,024 units."""
    return name in _MODELS or _SIZED.fullmatch(name) is not None


def _layers_of(name: str, outputs: int) -> Iterator[Layer]:
    sized = _SIZED.fullmatch(name)
    return _deep(outputs, *map(int, sized.groups())) if sized else _MODELS[name](outputs)


def model_spec(name: str, *, input_shape: Shape, outputs: int) -> ModelSpec:
    """Return a model with the shapes of all layers.

    Args:
        input_shape: (channels, height, width) of an image.

    Raises:
        UserError: the images are too small for the layers.
    """
    rows: list[LayerRow] = []
    shapes: dict[str, Shape] = {"": input_shape}
    for layer in _layers_of(name, outputs):
        source_shape = shapes[layer.source]
        own_shape = output_shape(layer, source_shape)
        if min(own_shape) < 1:
            channels, height, width = input_shape
            raise UserError(
                f"the images are too small for {name}: nothing remains after its layer {layer.name}. "
                f"Received: {height} x {width} pixels, {channels} channels. Use larger images or another model"
            )
        rows.append(LayerRow(layer, source_shape, own_shape, _weights(layer, source_shape)))
        shapes[layer.name] = shapes[""] = own_shape
    return ModelSpec(name, input_shape, outputs, tuple(rows))


def output_shape(layer: Layer, shape: Shape) -> Shape:
    """Return the shape of a layer's outputs for that of its inputs, both of one image."""
    if isinstance(layer, Convolution | MaxPooling):
        channels = layer.filters if isinstance(layer, Convolution) else shape[0]
        sides = ((side + 2 * layer.padding - layer.kernel) // layer.stride + 1 for side in shape[1:])
        return (channels, *sides)
    if isinstance(layer, GlobalMean):
        return (shape[0],)
    if isinstance(layer, Flatten):
        return (math.prod(shape),)
    return (layer.units,) if isinstance(layer, Dense) else shape


def _weights(layer: Layer, shape: Shape) -> tuple[WeightSpec, ...]:
    """Initial weights follow torchvision for ResNet, elsewhere torch.nn's defaults: uniform within 1 / sqrt(fan-in).

    Dense layers without bias are drawn like ResNet's convolutions, so that deep models of them can learn.
    """
    name = layer.name
    if isinstance(layer, Convolution):
        kernel_shape = (layer.filters, shape[0], layer.kernel, layer.kernel)
        if not layer.bias:
            fan_out = layer.filters * layer.kernel**2
            return (WeightSpec(f"{name}.weight", kernel_shape, "normal_fan_out", fan_out),)
        fan_in = shape[0] * layer.kernel**2
        return (
            WeightSpec(f"{name}.weight", kernel_shape, "uniform_fan_in", fan_in),
            WeightSpec(f"{name}.bias", (layer.filters,), "uniform_fan_in", fan_in),
        )
    if isinstance(layer, Dense) and not layer.bias:
        return (WeightSpec(f"{name}.weight", (layer.units, shape[0]), "normal_fan_out", layer.units),)
    if isinstance(layer, Dense):
        return (
            WeightSpec(f"{name}.weight", (layer.units, shape[0]), "uniform_fan_in", shape[0]),
            WeightSpec(f"{name}.bias", (layer.units,), "uniform_fan_in", shape[0]),
        )
    if isinstance(layer, BatchNorm):
        return (
            WeightSpec(f"{name}.weight", shape[:1], "ones", 1),
            WeightSpec(f"{name}.bias", shape[:1], "zeros", 1),
            WeightSpec(f"{name}.running_mean", shape[:1], "zeros", 1, trainable=False),
            WeightSpec(f"{name}.running_var", shape[:1], "ones", 1, trainable=False),
        )
    return ()


def layer_table(spec: ModelSpec) -> str:
    """Return the layer table as text: layer, type, parameters, output shape, weights shape, padding, stride."""
    headings = ["layer", "type", "parameters", "output shape", "weights shape", "padding", "stride"]
    rows = [("input", "Input", "0", _text(spec.input_shape), "", "", "")]
    for row in spec.rows:
        layer = row.layer
        rows.append(
            (
                layer.name,
                _type_name(layer),
                f"{row.parameters:,}",
                _text(row.output_shape),
                _text(row.weights[0].shape) if row.weights else "",
                str(layer.padding) if isinstance(layer, Convolution | MaxPooling) else "",
                str(layer.stride) if isinstance(layer, Convolution | MaxPooling) else "",
            )
        )
    table = tabulate(rows, headings, disable_numparse=True)
    millions = f"{spec.multiply_adds / 1e6:,.3f} M"
    return f"{table}\n{spec.name}: {spec.parameters:,} parameters, {millions} multiply-adds per image"


def _type_name(layer: Layer) -> str:
    return layer.function if isinstance(layer, Activation) else type(layer).__name__


def _text(shape: Shape) -> str:
    return " x ".join(str(side) for side in shape)
