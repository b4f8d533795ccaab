"""`--strategy allreduce`: gradients are averaged before every update."""

from typing import Any

import numpy as np
import torch
from torch import nn

from torch_impl import distributed
from torch_impl.strategies.strategy import Strategy


class AllReduce(Strategy):
    """Horovod averages the gradients while others are computed: all ranks hold the same weights at all times."""

    optimizer: Any  # Horovod's

    def wrap(self, model: nn.Module, optimizer: torch.optim.Optimizer, *, learning_rates: np.ndarray) -> None:
        """Take the model, and the optimizer with Horovod's hooks on its gradients."""
        config = self.task.measured_config.device
        optimizer = distributed.wrap_optimizer(optimizer, model=model, config=config, meter=self.meter)
        super().wrap(model, optimizer, learning_rates=learning_rates)

    def before_update(self) -> None:
        """Wait for the averages; not in `apply`: an overflow on one rank makes all ranks skip the same update."""
        with self.meter.timed():
            self.optimizer.synchronize()

    def apply(self) -> None:
        """Let the optimizer update the weights, unless gradients overflow."""
        with self.optimizer.skip_synchronize():
            super().apply()
