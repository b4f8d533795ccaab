"""A planted straggler (`--slow`) in PyTorch: the last gradient arrives late, and with it every exchange."""

import time

from torch import Tensor, nn

from common.config import Straggler
from common.strategies.straggler import Slowdown, slowdown_of
from torch_impl.data import ShardedData
from torch_impl.distributed import synchronize


class LateGradient(Slowdown):
    """Sleeps in the backward pass before its last gradient is added, for only then does anything exchange them all.

    Args:
        model: all of whose parameters have a gradient in every pass.
    """

    def __init__(self, straggler: Straggler, *, seed: int, model: nn.Module, data: ShardedData) -> None:
        super().__init__(straggler, seed=seed)
        self._device = data.device
        self._missing = 0
        self._gradients = len(list(model.parameters())) * data.share.passes
        for parameter in model.parameters():
            parameter.register_hook(self._arrived)

    def start(self) -> None:
        """Start an update."""
        self._missing, self._started = self._gradients, time.time()

    def _arrived(self, gradient: Tensor) -> None:
        self._missing -= 1
        if self._missing == 0:
            synchronize(self._device)
            self.computed(self._started)


def planted_slowdown(data: ShardedData, model: nn.Module) -> LateGradient | None:
    """Return what slows this rank down; None: nothing."""
    slowdown = slowdown_of(data.task, rank=data.comm.rank)
    return LateGradient(slowdown.straggler, seed=slowdown.seed, model=model, data=data) if slowdown else None
