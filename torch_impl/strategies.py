"""How the ranks share the work of a batch (`--strategy`): one class per strategy, all with the same methods."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from common.data.batches import Draw
from common.distributed.communicator import Communicator
from common.distributed.exchange_meter import ExchangeMeter
from common.run.checkpointer import own_state
from common.run_folder.checkpoints import PartialEpoch
from common.run_folder.sharing import SharingRecord
from common.strategies.sharing import ring_record
from common.task.task import Task
from torch_impl import distributed
from torch_impl.exchange import GroupExchange
from torch_impl.loop import Trainer
from torch_impl.model_parallel import Layers, Split
from torch_impl.native import Native
from torch_impl.server import Server
from torch_impl.state import SLOTS, TrainingState


class Strategy(Protocol):
    """What the trainer asks of every strategy."""

    trainer_class: Callable[..., Trainer] = Trainer
    draw: Draw | None = None  # what it computes of a segment of the run, where it does not take its part of each step
    exchange: GroupExchange | None = None  # of the ranks that hold pieces of the same layers

    def wrap_model(self, model: nn.Module) -> nn.Module:
        """Return the model that computes."""
        return model

    def wrap_optimizer(self, optimizer: torch.optim.Optimizer, *, model: nn.Module) -> torch.optim.Optimizer:
        """Return the optimizer with what ranks share before and after each update."""

    def broadcast_state(self, state: TrainingState) -> None:
        """Give all ranks the weights and the optimizer state of rank 0."""

    def rehearsals(self) -> Iterator[None]:
        """Yield for each update to be rehearsed, then undo what these changed of this strategy."""

    def end_epoch(self, state: TrainingState, epoch: int) -> PartialEpoch:
        """Give all ranks the same weights, for evaluation and record.

        Returns:
            What this rank alone starts the next epoch with.
        """

    def sharing(self) -> SharingRecord | None:
        """Return what this rank exchanged in its updates; None: nothing that can be told."""


def build_strategy(task: Task, *, comm: Communicator, step: int, folder: Path | None = None) -> Strategy:
    """Return the strategy that the settings name.

    Args:
        step: updates of the run that were done before it was resumed.
        folder: of the run, on rank 0; None on the others.
    """
    if task.config.strategy.strategy == "server":
        return Server(task, comm=comm, step=step, folder=folder)
    if task.config.strategy.strategy == "averaging":
        return Averaging(task, comm=comm, step=step)
    if task.config.strategy.strategy == "native":
        return Native(task, comm=comm)
    if task.config.parts.count > 1:
        return (Layers if task.config.parts.stages else Split)(task, comm=comm)
    return (Adasum if task.config.strategy.adasum else AllReduce)(task, comm=comm)


class AllReduce(Strategy):
    """Gradients are averaged before every update, so that all ranks hold the same weights at all times."""

    def __init__(self, task: Task, *, comm: Communicator) -> None:
        self.task = task
        self.comm = comm
        self.meter = ExchangeMeter()

    def wrap_optimizer(self, optimizer: torch.optim.Optimizer, *, model: nn.Module) -> torch.optim.Optimizer:
        """Return Horovod's optimizer."""
        config = self.task.measured_config
        return distributed.wrap_optimizer(optimizer, model=model, config=config, comm=self.comm, meter=self.meter)

    def broadcast_state(self, state: TrainingState) -> None:
        """Give all ranks the weights and the optimizer state of rank 0."""
        distributed.broadcast_state(state, comm=self.comm)

    def rehearsals(self) -> Iterator[None]:
        """Yield for each update to be rehearsed, then undo what these changed of this strategy."""
        with self.meter.undone():
            yield

    def end_epoch(self, state: TrainingState, epoch: int) -> PartialEpoch:
        """Average BatchNorm's statistics, the only weights that are each rank's own."""
        distributed.average_batch_norm(state, comm=self.comm, weight=self.task.shares[self.comm.rank].weight)
        return PartialEpoch()

    def sharing(self) -> SharingRecord | None:
        """Return what this rank exchanged in its updates; None: nothing that can be told."""
        return ring_record(self.task, self.meter, rank=self.comm.rank)


class Adasum(AllReduce):
    """Each rank updates its own weights, and what these updates are combined to gives all the same weights again."""

    def wrap_optimizer(self, optimizer: torch.optim.Optimizer, *, model: nn.Module) -> torch.optim.Optimizer:
        """Return the optimizer, which exchanges each update."""
        self._weights = [weight.detach() for weight in model.parameters()]
        optimizer.register_step_pre_hook(self._before_update)
        optimizer.register_step_post_hook(self._after_update)
        return optimizer

    def end_epoch(self, state: TrainingState, epoch: int) -> PartialEpoch:
        """Average BatchNorm's statistics; return this rank's own state of the optimizer, of its own gradients."""
        super().end_epoch(state, epoch)
        return own_state(self.task, state, step=self.task.steps_after(epoch))

    def _before_update(self, *_: Any) -> None:
        self._before = [weight.clone() for weight in self._weights]

    def _after_update(self, *_: Any) -> None:
        self.meter.updates += 1
        updates = [weight - before for weight, before in zip(self._weights, self._before, strict=True)]
        combined = distributed.combine_updates(updates, meter=self.meter)
        for weight, before, update in zip(self._weights, self._before, combined, strict=True):
            weight.copy_(before + update)


class Averaging(Strategy):
    """Each rank updates its own weights, which are averaged at the end of every interval."""

    def __init__(self, task: Task, *, comm: Communicator, step: int) -> None:
        self.task = task
        self.comm = comm
        self.meter = ExchangeMeter()
        self._step = step

    def wrap_optimizer(self, optimizer: torch.optim.Optimizer, *, model: nn.Module) -> torch.optim.Optimizer:
        """Return the optimizer, which averages gradients before an update (in warm-up) or weights after it."""
        self._model = model
        if self.comm.size > 1:
            optimizer.register_step_pre_hook(self._before_update)
            optimizer.register_step_post_hook(self._after_update)
        return optimizer

    def broadcast_state(self, state: TrainingState) -> None:
        """Give all ranks the weights and the optimizer state of rank 0."""
        distributed.broadcast_state(state, comm=self.comm)

    def rehearsals(self) -> Iterator[None]:
        """Yield for each update to be rehearsed, then undo what these changed of this strategy."""
        before = self._step
        with self.meter.undone():
            for step in self.task.averaging.rehearsed:
                self._step = step
                yield
        self._step = before

    def end_epoch(self, state: TrainingState, epoch: int) -> PartialEpoch:
        """Keep this rank's own weights, where they differ, and load their average.

        In the warm-up only BatchNorm's statistics differ, and their average stays, as with all-reduce.
        """
        step = self.task.steps_after(epoch)
        own = own_state(self.task, state, step=step)
        if own.weights:
            self._average(self._weights(), name="copy")
        elif self.task.averaging.is_warm_up(step):
            distributed.average_batch_norm(state, comm=self.comm, weight=self.task.shares[self.comm.rank].weight)
        return own

    def sharing(self) -> SharingRecord | None:
        """Return what this rank exchanged in its updates; None: nothing that can be told."""
        return ring_record(self.task, self.meter, rank=self.comm.rank)

    def _before_update(self, *_: Any) -> None:
        if self._step < self.task.config.strategy.warmup_allreduce:
            gradients = [weight.grad for weight in self._model.parameters() if weight.grad is not None]
            self._average(gradients, name="gradients", meter=self.meter)

    def _after_update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._step += 1
        self.meter.updates += 1
        if self.task.averaging.averages_after(self._step):
            averaged = self._weights()
            if self.task.config.strategy.average_state:
                states = [optimizer.state.get(weight, {}) for weight in self._model.parameters()]
                averaged += [state[slot] for state in states for slot in SLOTS if state.get(slot) is not None]
            self._average(averaged, name="weights", meter=self.meter)

    def _average(self, values: list[torch.Tensor], *, name: str, meter: ExchangeMeter | None = None) -> None:
        weight = self.task.shares[self.comm.rank].weight
        distributed.average_in_place(values, name=name, config=self.task.config, weight=weight, meter=meter)

    def _weights(self) -> list[torch.Tensor]:
        """Return all weights and BatchNorm statistics, without BatchNorm's count of batches."""
        return [tensor for tensor in self._model.state_dict().values() if tensor.is_floating_point()]
