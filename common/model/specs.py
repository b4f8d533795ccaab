"""Model specs: layers as plain numbers in their places, and the shapes, parameter counts and FLOPs that follow.

`model_spec` has the models of this project; `spec_of_layers` makes one of any other layers. What builds the models,
`models.py` of both framework folders, reads the spec alone.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from tabulate import tabulate

from common.errors import UserError
from common.model.layers import (
    Activation,
    Add,
    BatchNorm,
    Convolution,
    Dense,
    Dropout,
    Flatten,
    GlobalMean,
    Layer,
    MaxPooling,
    Shape,
    SlidingWindow,
    WeightSpec,
    output_shape,
    weights_of,
)

Result = TypeVar("Result")


@dataclass(frozen=True)
class LayerRow:
    """A layer in its place in a model: one row of the layer table.

    Attributes:
        inputs: names of the layers whose outputs it reads; "": the images.
    """

    layer: Layer
    inputs: tuple[str, ...]
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
        if not isinstance(self.layer, Convolution | Dense):
            return 0
        return math.prod(self.output_shape[1:]) * math.prod(self.weights[0].shape)


@dataclass(frozen=True)
class ModelSpec:
    """A model for one input shape and number of outputs, or the part of it that one rank of a copy holds.

    Attributes:
        input_shape: (channels, height, width); of a part also (units,).
        torchvision: name of the model there, if PyTorch runs that in place of one built from the rows.
    """

    name: str
    input_shape: Shape
    outputs: int
    rows: tuple[LayerRow, ...]
    torchvision: str = ""

    def walk(self, inputs: Result, compute: Callable[..., Result]) -> Result:
        """Return the result of the last layer.

        Args:
            inputs: in place of the images, or of what a part of the model gets from the part before.
            compute: from a row and the results of the layers that it reads to its own result, of any kind.
        """
        results: dict[str, Result] = {}
        for row in self.rows:
            results[row.layer.name] = compute(row, *(results.get(name, inputs) for name in row.inputs))
        return results[self.rows[-1].layer.name]

    def holds(self, kind: type[Layer]) -> bool:
        """Return whether the model has layers of a kind."""
        return any(isinstance(row.layer, kind) for row in self.rows)

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
                name=f"{name}.conv1", inputs=(source,), filters=filters, kernel=3, stride=stride, padding=1, bias=False
            )
            yield BatchNorm(name=f"{name}.bn1")
            yield Activation(name=f"{name}.relu1", function="relu")
            yield Convolution(name=f"{name}.conv2", filters=filters, kernel=3, padding=1, bias=False)
            yield BatchNorm(name=f"{name}.bn2")
            shortcut = source
            if stride != 1 or channels != filters:
                shortcut = f"{name}.downsample.1"
                yield Convolution(
                    name=f"{name}.downsample.0", inputs=(source,), filters=filters, kernel=1, stride=stride, bias=False
                )
                yield BatchNorm(name=shortcut)
            yield Add(name=f"{name}.add", inputs=(f"{name}.bn2", shortcut))
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
_IN_TORCHVISION = ("resnet34",)
_SIZED = re.compile(r"deep:([1-9]\d{0,2})x([1-9]\d{0,4})")


def is_model_name(name: str) -> bool:
    """Return whether there is such a model: one of `MODEL_NAMES`, or "deep:8x1024" for 8 layers of 1,024 units."""
    return name in _MODELS or _SIZED.fullmatch(name) is not None


def _layers_of(name: str, outputs: int) -> Iterator[Layer]:
    sized = _SIZED.fullmatch(name)
    return _deep(outputs, *map(int, sized.groups())) if sized else _MODELS[name](outputs)


def model_spec(name: str, *, input_shape: Shape, outputs: int) -> ModelSpec:
    """Return a model of this project; `input_shape`: (channels, height, width).

    Raises:
        UserError: the images are too small for the layers.
    """
    spec = spec_of_layers(name, _layers_of(name, outputs), input_shape=input_shape, outputs=outputs)
    return replace(spec, torchvision=name if name in _IN_TORCHVISION else "")


def spec_of_layers(name: str, layers: Iterable[Layer], *, input_shape: Shape, outputs: int) -> ModelSpec:
    """Return a model of these layers, of which each comes after those that it reads.

    Raises:
        UserError: the images are too small for the layers.
    """
    rows: list[LayerRow] = []
    shapes, previous = {"": input_shape}, ""
    for layer in layers:
        inputs = layer.inputs or (previous,)
        shape = shapes[inputs[0]]
        row = LayerRow(layer, inputs, shape, output_shape(layer, shape), weights_of(layer, shape))
        if min(row.output_shape) < 1:
            channels, height, width = input_shape
            raise UserError(
                f"the images are too small for {name}: nothing remains after its layer {layer.name}. "
                f"Received: {height} x {width} pixels, {channels} channels. Use larger images or another model"
            )
        rows.append(row)
        shapes[layer.name], previous = row.output_shape, layer.name
    return ModelSpec(name, input_shape, outputs, tuple(rows))


def layer_table(spec: ModelSpec) -> str:
    """Return the layer table as text: layer, type, parameters, output shape, weights shape, padding, stride."""
    headings = ["layer", "type", "parameters", "output shape", "weights shape", "padding", "stride"]
    rows = [["input", "Input", "0", _text(spec.input_shape), "", "", ""]]
    for row in spec.rows:
        layer = row.layer
        kind = layer.function if isinstance(layer, Activation) else type(layer).__name__
        kernel = _text(row.weights[0].shape) if row.weights else ""
        window = [str(layer.padding), str(layer.stride)] if isinstance(layer, SlidingWindow) else ["", ""]
        rows.append([layer.name, kind, f"{row.parameters:,}", _text(row.output_shape), kernel, *window])
    table = tabulate(rows, headings, disable_numparse=True)
    millions = f"{spec.multiply_adds / 1e6:,.3f} M"
    return f"{table}\n{spec.name}: {spec.parameters:,} parameters, {millions} multiply-adds per image"


def _text(shape: Shape) -> str:
    return " x ".join(str(side) for side in shape)
