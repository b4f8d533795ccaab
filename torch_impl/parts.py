"""Layers of which each rank of a copy of the model holds a piece (`--strategy split`)."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from torch_impl.exchange import GroupExchange


class SplitLayer(nn.Module):
    """A layer whose inputs all ranks have."""

    def __init__(self, *arguments: Any, exchange: GroupExchange, name: str, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.exchange, self.name = exchange, name

    def forward(self, inputs: Tensor) -> Tensor:
        """Return what this rank's piece of the layer makes of them."""
        outputs: Tensor = super().forward(self.exchange.copy(inputs, name=self.name))
        return outputs


class SplitConvolution(SplitLayer, nn.Conv2d):
    """This rank's filters of a convolution."""


class ColumnsDense(SplitLayer, nn.Linear):
    """This rank's units of a dense layer."""


class RowsDense(SplitLayer, nn.Linear):
    """All units of a dense layer, of which each rank has the weights of some inputs."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return all outputs, the sum over the ranks."""
        total = self.exchange.sum(F.linear(inputs, self.weight), name=self.name)
        return total if self.bias is None else total + self.bias


class Gather(SplitLayer):
    """The channels of all ranks."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the channels of all ranks, (batch, channels, height, width)."""
        return self.exchange.gather(inputs, name=self.name)
