"""Steps in separate parts, to see where their time goes (`--profile`, `--profile-layers`).

They compute what those of all-reduce compute.
"""

import numpy as np
import torch
from torch import Tensor, nn

from common.distributed.communicator import Communicator
from common.measurement.step_profile import Profiler
from common.task.rank_batches import RankBatches
from common.task.task import Task
from torch_impl.distributed import average_gradients, wait_for_all_ranks
from torch_impl.models import layer_parts
from torch_impl.strategies.strategy import Strategy


class Profiled(Strategy):
    """Has a plain optimizer and averages the gradients itself, all at once, after the last of them."""

    profiler: Profiler

    def __init__(self, task: Task, *, comm: Communicator, device: torch.device) -> None:
        super().__init__(task, comm=comm, device=device)
        self.profiler = Profiler(synchronize=self.synchronize)

    def wrap(self, model: nn.Module, optimizer: torch.optim.Optimizer, *, learning_rates: np.ndarray) -> None:
        """Take the optimizer, and the model in the parts that are timed."""
        super().wrap(model, optimizer, learning_rates=learning_rates)
        by_layer = self.config.record.profile_layers
        self._parts = layer_parts(model, self.spec) if by_layer else [("", model)]
        self._loss_name = "loss" if by_layer else ""

    def rehearse(self, batches: RankBatches, epoch: int) -> None:
        """Train on the first batch of an epoch and undo it, as `Strategy.rehearse`; the profile does not count it."""
        with self.profiler.undone():
            super().rehearse(batches, epoch)

    def passes(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Add the gradients of a batch, part by part; return outputs and losses."""
        lap = self.profiler.lap
        lap("forward")  # what came before the first layer
        passes: list[tuple[str, Tensor, Tensor]] = []
        hidden = images
        for name, part in self._parts:
            inputs = hidden.detach().requires_grad_(bool(passes))
            hidden = part(inputs)
            passes.append((name, inputs, hidden))
            lap("forward", layer=name)
        outputs = hidden.detach().requires_grad_()
        losses = self.losses(outputs, labels)
        lap("forward", layer=self._loss_name)
        losses.backward(self.loss_gradient(losses))
        gradient = outputs.grad
        lap("backward", layer=self._loss_name)
        for name, inputs, hidden in reversed(passes):
            hidden.backward(gradient)
            gradient = inputs.grad
            lap("backward", layer=name)
        return outputs.detach(), losses.detach()

    def before_update(self) -> None:
        """Average the gradients."""
        if self.comm.size == 1:
            return
        wait_for_all_ranks()
        self.profiler.lap("waiting")
        average_gradients(self.gradients(), config=self.config.device)
        self.profiler.lap("allreduce")

    def apply(self) -> None:
        """Let the optimizer update the weights."""
        super().apply()
        self.profiler.lap("optimizer")
