"""Layers of which each rank of a copy of the model holds a piece (`--strategy split`)."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from torch_impl.exchange import GroupExchange


class SplitConvolution(nn.Conv2d):
    """This rank's filters of a convolution."""

    def __init__(self, *arguments: Any, exchange: GroupExchange, name: str, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.exchange, self.name = exchange, name

    def forward(self, inputs: Tensor) -> Tensor:
        """Return this rank's channels."""
        return super().forward(self.exchange.copy(inputs, name=self.name))


class ColumnsDense(nn.Linear):
    """This rank's units of a dense layer."""

    def __init__(self, *arguments: Any, exchange: GroupExchange, name: str, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.exchange, self.name = exchange, name

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs of this rank's units."""
        return super().forward(self.exchange.copy(inputs, name=self.name))


class RowsDense(ColumnsDense):
    """All units of a dense layer, of which each rank has the weights of some inputs."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return all outputs, the sum over the ranks."""
        total = self.exchange.sum(F.linear(inputs, self.weight), name=self.name)
        return total if self.bias is None else total + self.bias


class Gather(nn.Module):
    """The channels of all ranks."""

    def __init__(self, *, exchange: GroupExchange, name: str) -> None:
        super().__init__()
        self.exchange, self.name = exchange, name

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the channels of all ranks, (batch, channels, height, width)."""
        return self.exchange.gather(inputs, name=self.name)
