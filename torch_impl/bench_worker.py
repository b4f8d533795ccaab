"""The ranks of `python -m launch bench` in PyTorch: bare loops, our trainer, and our loop on DDP and on bare MPI.

`keras_impl/bench_worker.py` is its twin.
"""

import itertools
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch_impl  # isort: skip  # noqa: F401 - before PyTorch: switches to the environment that has it
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from common.checks.bench_turns import (
    MEMORY_BATCHES,
    BareAverage,
    ExchangeTimes,
    Train,
    constant_rates,
    measure,
    read_settings,
    trained_epochs,
    with_steps,
)
from common.config import DeviceConfig
from common.distributed.communicator import Communicator
from common.distributed.joining import join_mpi
from common.run.program import exit_rank
from common.task.task import Task
from torch_impl import distributed
from torch_impl.data import Batches, ShardedData
from torch_impl.onednn import onednn_is_on
from torch_impl.strategies import build_strategy, trial_of
from torch_impl.strategies.allreduce import AllReduce
from torch_impl.strategies.native import join_ranks
from torch_impl.strategies.strategy import Strategy


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    settings = read_settings(arguments)
    # Horovod's thread would take part in every message of MPI, and hold up a bare one.
    comm = join_mpi() if "np2_mpi" in settings.contestants else distributed.init()
    if "np2_ddp" in settings.contestants:
        join_ranks(comm, backend="gloo")
    device, _ = distributed.pin_device(DeviceConfig(threads=settings.threads), comm, onednn=settings.onednn)
    measure(settings, comm=comm, build=partial(build_contestant, device=device), onednn=onednn_is_on())
    return 0


def build_contestant(name: str, task: Task, comm: Communicator, times: ExchangeTimes, *, device: torch.device) -> Train:
    """Return what trains an epoch of so many steps on this rank."""
    strategy: Strategy
    if name == "np2_ddp":
        strategy = _Ddp(task, comm=comm, device=device)
    elif name == "np2_mpi":
        strategy = _BareMpi(task, comm=comm, device=device, meter=times)
    elif name == "np2":
        strategy = AllReduce(task, comm=comm, device=device, meter=times)
    else:  # the times of np2_each overlap
        strategy = build_strategy(task, comm=comm, device=device)
    trial = trial_of(strategy, learning_rates=constant_rates(task))
    if name.startswith("bare"):
        return bare_loop(strategy, trial.batches, with_sums=name != "bare", makes_batches=name == "bare_batches")
    strategy.broadcast(from_checkpoint=False)
    return trained_epochs(strategy, trial.batches)


class _Ddp(Strategy):
    """PyTorch's `DistributedDataParallel`, as it is by default."""

    def wrap(self, model: nn.Module, optimizer: torch.optim.Optimizer, *, learning_rates: np.ndarray) -> None:
        """Take the optimizer, and the model in PyTorch's."""
        super().wrap(model, optimizer, learning_rates=learning_rates)
        self.model = DistributedDataParallel(model)


class _BareMpi(Strategy):
    """Gradients are averaged by bare MPI after the last of them."""

    def wrap(self, model: nn.Module, optimizer: torch.optim.Optimizer, *, learning_rates: np.ndarray) -> None:
        """Take model and optimizer, and make room for all gradients."""
        super().wrap(model, optimizer, learning_rates=learning_rates)
        self._average_of = BareAverage([weight.shape for weight in model.parameters()], times=self.meter)

    def before_update(self) -> None:
        """Average the gradients."""
        gradients = self.gradients()
        averages = self._average_of(*(gradient.numpy() for gradient in gradients))
        for gradient, average in zip(gradients, averages, strict=True):
            gradient.copy_(torch.from_numpy(average))


def bare_loop(strategy: Strategy, data: Any, *, with_sums: bool, makes_batches: bool) -> Train:
    """Return a plain loop: forward, loss, backward, step, on batches that are in memory.

    Args:
        with_sums: whether it also sums losses and correct answers, as every trainer that reports them has to.
        makes_batches: whether it also makes each batch from the pixels of its samples, as every trainer has to.
    """

    def made(epoch: int, steps: int) -> Batches:
        task = with_steps(data.task, size=1, epoch=epoch, steps=steps)
        stacks = ShardedData(task, comm=data.comm, device=data.device).training(epoch, most=1)
        return ((images[0], labels[0]) for images, labels in stacks)

    model, optimizer = strategy.model, strategy.optimizer
    batches = list(made(1, min(MEMORY_BATCHES, data.task.steps_per_epoch)))

    def train(epoch: int, steps: int) -> float:
        model.train()
        loss_sum, correct = torch.zeros((), device=data.device), torch.zeros((), dtype=torch.int64, device=data.device)
        distributed.synchronize(data.device)
        started = time.perf_counter()
        in_memory = itertools.islice(itertools.cycle(batches), steps)
        for images, labels in made(epoch, steps) if makes_batches else in_memory:
            optimizer.zero_grad()
            outputs = model(images)
            loss = F.cross_entropy(outputs, labels)
            loss.backward()
            optimizer.step()
            if with_sums:
                loss_sum += loss.detach() * len(labels)
                correct += (outputs.argmax(1) == labels).sum()
        distributed.synchronize(data.device)
        return time.perf_counter() - started

    return train


if __name__ == "__main__":
    exit_rank(main())
