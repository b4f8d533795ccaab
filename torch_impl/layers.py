"""PyTorch's layers from the numbers of `common.model.layers`."""

from typing import Any

from torch import Tensor, nn

from common.config import ModelConfig
from common.model import layers as kinds
from common.model.specs import LayerRow
from torch_impl.exchange import GroupExchange
from torch_impl.parts import ColumnsDense, Gather, RowsDense, SplitConvolution


def native_layer(row: LayerRow, config: ModelConfig, *, exchange: GroupExchange | None = None) -> nn.Module:
    """Return the layer of a row.

    Args:
        exchange: of the ranks that hold the pieces of a layer; None: no layer is split.
    """
    layer, size = row.layer, row.input_shape[0]
    pieces: dict[str, Any] = {"exchange": exchange, "name": layer.name}
    match layer:
        case kinds.Convolution():
            window: dict[str, Any] = {"stride": layer.stride, "padding": layer.padding, "bias": layer.bias}
            if layer.split == "outputs":
                return SplitConvolution(size, layer.filters, layer.kernel, **window, **pieces)
            return nn.Conv2d(size, layer.filters, layer.kernel, **window)
        case kinds.Dense(split="none"):
            return nn.Linear(size, layer.units, bias=layer.bias)
        case kinds.Dense():
            kind = ColumnsDense if layer.split == "outputs" else RowsDense
            return kind(size, layer.units, bias=layer.bias, **pieces)
        case kinds.GatherParts():
            return Gather(**pieces)
        case kinds.MaxPooling():
            return nn.MaxPool2d(layer.kernel, stride=layer.stride, padding=layer.padding)
        case kinds.BatchNorm():
            return nn.BatchNorm2d(size, eps=layer.epsilon, momentum=1 - layer.decay)
        case kinds.Dropout():
            return (nn.Dropout2d if layer.whole_channels else nn.Dropout)(layer.rate if config.dropout else 0.0)
        case kinds.Activation():
            return nn.ReLU() if layer.function == "relu" else nn.Sigmoid()
    without_numbers = {kinds.Flatten: nn.Flatten, kinds.GlobalMean: GlobalMean, kinds.Add: Add}
    return without_numbers[type(layer)]()


class GlobalMean(nn.Module):
    """The mean over height and width."""

    def forward(self, images: Tensor) -> Tensor:
        """Return (batch, channels)."""
        return images.mean(dim=(2, 3))


class Add(nn.Module):
    """The sum of the outputs of two layers."""

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Return the sum, of the shape of both."""
        return first + second
