"""A planted straggler (`--slow`) in PyTorch: the last gradient arrives late, and with it every exchange."""

import time

import torch
from torch import Tensor, nn

from common.config import Straggler
from common.strategies.straggler import Slowdown, slowdown_of
from common.task.task import Task
from torch_impl.distributed import synchronize


class LateGradient(Slowdown):
    """Sleeps in the backward pass before its last gradient is added, for only then does anything exchange them all.

    Args:
        model: all of whose parameters have a gradient in every pass.
        passes: of an update.
    """

    def __init__(self, straggler: Straggler, *, seed: int, model: nn.Module, passes: int, device: torch.device) -> None:
        super().__init__(straggler, seed=seed)
        self._device = device
        self._missing = 0
        self._gradients = len(list(model.parameters())) * passes
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


def planted_slowdown(task: Task, *, model: nn.Module, rank: int, device: torch.device) -> LateGradient | None:
    """Return what slows a rank down; None: nothing."""
    slowdown = slowdown_of(task, rank=rank)
    if not slowdown:
        return None
    passes = task.shares[rank].passes
    return LateGradient(slowdown.straggler, seed=slowdown.seed, model=model, passes=passes, device=device)
