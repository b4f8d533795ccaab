"""`--strategy server`: gradients go to ranks that hold the weights, and updated weights come back."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn

from common.data.batches import Draw
from common.distributed.communicator import Communicator
from common.run_folder.checkpoints import PartialEpoch
from common.run_folder.sharing import SharingRecord
from common.strategies.served_run import ServedRun
from common.task.task import Task
from torch_impl import distributed
from torch_impl.exchange import GroupExchange
from torch_impl.loop import Trainer
from torch_impl.state import TrainingState


class Server:
    """The worker's side. Its optimizer never steps: the servers have the rule and its state.

    Args:
        step: updates of the run that were done before it was resumed.
        folder: of the run, on rank 0; None on the others.
    """

    exchange: GroupExchange | None = None
    trainer_class: Callable[..., Trainer] = Trainer

    def __init__(self, task: Task, *, comm: Communicator, step: int, folder: Path | None) -> None:
        self.task = task
        self.comm = comm
        self._rehearses = False
        self._served = ServedRun(task, comm=comm, first_step=step, folder=folder, load=self._load)
        self.draw: Draw | None = self._served.items if self._served.draws else None

    def wrap_model(self, model: nn.Module) -> nn.Module:
        """Return the model that computes."""
        return model

    def wrap_optimizer(self, optimizer: torch.optim.Optimizer, *, model: nn.Module) -> torch.optim.Optimizer:
        """Return the optimizer, whose step is an exchange; weights and gradients become views of two vectors."""
        self._shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
        parameters = list(model.parameters())
        self._weights = torch.cat([parameter.detach().flatten() for parameter in parameters])
        self._gradient = torch.zeros_like(self._weights)
        sizes = [parameter.numel() for parameter in parameters]
        for parameter, weight, gradient in zip(
            parameters, self._weights.split(sizes), self._gradient.split(sizes), strict=True
        ):
            parameter.data, parameter.grad = weight.view_as(parameter), gradient.view_as(parameter)
        optimizer.zero_grad = self._clear  # type: ignore[method-assign]
        optimizer.step = self._exchange  # type: ignore[method-assign, assignment]
        return optimizer

    def broadcast_state(self, state: TrainingState) -> None:
        """Give the servers rank 0's weights and optimizer state, and all workers the weights."""
        distributed.broadcast_state(state, comm=self.comm)
        self._served.open(self._weights.cpu().numpy(), state.export_optimizer(), shapes=self._shapes)
        state.held_elsewhere = self._served.optimizer_state

    def rehearsals(self) -> Iterator[None]:
        """Yield for each update to be rehearsed, then undo what these changed of this strategy."""
        self._rehearses = True
        yield
        self._rehearses = False

    def end_epoch(self, state: TrainingState, epoch: int) -> PartialEpoch:
        """Average BatchNorm's statistics, the only weights that are each worker's own."""
        distributed.average_batch_norm(state, comm=self.comm, weight=self.task.shares[self.comm.rank].weight)
        return PartialEpoch()

    def sharing(self) -> SharingRecord | None:
        """Return what this worker exchanged in its updates."""
        return self._served.sharing()

    def _clear(self, set_to_none: bool = False) -> None:
        self._gradient.zero_()

    def _exchange(self) -> None:
        gradient = self._gradient.cpu().numpy()
        # In a rehearsal in place of weights, which are about to be restored.
        self._load(gradient if self._rehearses else self._served.client.exchange(gradient))

    def _load(self, weights: np.ndarray) -> None:
        self._weights.copy_(torch.from_numpy(weights))
