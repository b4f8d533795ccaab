"""`--strategy server`: gradients go to ranks that hold the weights, and updated weights come back."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn

from common.distributed.communicator import Communicator
from common.model.weights import Weights
from common.run_folder.sharing import SharingRecord
from common.strategies.served_run import ServedRun
from common.task.task import Task
from torch_impl.strategies.strategy import Strategy


class Server(Strategy):
    """The worker's side. Its optimizer never steps: the servers have the rule and its state.

    Args:
        step: updates of the run that were done before it was resumed.
        folder: of the run, on rank 0; None on the others.
    """

    def __init__(self, task: Task, *, comm: Communicator, device: torch.device, step: int, folder: Path | None) -> None:
        super().__init__(task, comm=comm, device=device)
        self._rehearses, self._is_open = False, False
        self._served = ServedRun(task, comm=comm, first_step=step, folder=folder, load=self._load)
        self.draw = self._served.items if self._served.draws else None

    def wrap(self, model: nn.Module, optimizer: torch.optim.Optimizer, *, learning_rates: np.ndarray) -> None:
        """Take model and optimizer; weights and gradients become views of two vectors."""
        self._shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
        parameters = list(model.parameters())
        self._weights = torch.cat([parameter.detach().flatten() for parameter in parameters])
        self._gradients = torch.zeros_like(self._weights)
        sizes = [parameter.numel() for parameter in parameters]
        for parameter, weight, gradient in zip(
            parameters, self._weights.split(sizes), self._gradients.split(sizes), strict=True
        ):
            parameter.data, parameter.grad = weight.view_as(parameter), gradient.view_as(parameter)
        super().wrap(model, optimizer, learning_rates=learning_rates)

    def broadcast(self, *, from_checkpoint: bool) -> None:
        """Give the servers rank 0's weights and optimizer state, and all workers the weights."""
        super().broadcast(from_checkpoint=from_checkpoint)
        self._served.open(self._weights.cpu().numpy(), self.optimizer_state(), shapes=self._shapes)
        self._is_open = True

    def optimizer_state(self) -> Weights:
        """Return "<parameter>.<slot>" -> array, which the servers hold once they have it."""
        return self._served.optimizer_state() if self._is_open else super().optimizer_state()

    def rehearsals(self) -> Iterator[None]:
        """Yield for each update to be rehearsed, then undo what these changed of this strategy."""
        self._rehearses = True
        yield
        self._rehearses = False

    def clear_gradients(self) -> None:
        """Forget the gradients of the last update, where they are."""
        self._gradients.zero_()

    def apply(self) -> None:
        """Exchange gradients for weights."""
        gradients = self._gradients.cpu().numpy()
        # In a rehearsal in place of weights, which are about to be restored.
        self._load(gradients if self._rehearses else self._served.client.exchange(gradients))

    def exchanged(self) -> SharingRecord | None:
        """Return what this worker exchanged in its updates."""
        return self._served.sharing()

    def _load(self, weights: np.ndarray) -> None:
        self._weights.copy_(torch.from_numpy(weights))
