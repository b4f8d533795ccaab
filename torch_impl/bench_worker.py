"""The ranks of `python -m launch bench` in PyTorch: bare loops, our trainer, and our loop on DDP and on bare MPI.

`keras_impl/bench_worker.py` is its twin.
"""

import itertools
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch_impl  # isort: skip  # noqa: F401 - before PyTorch: switches to the environment that has it
import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from common.checks.bench_turns import (
    MEMORY_BATCHES,
    BareAverage,
    ExchangeTimes,
    Train,
    constant_rates,
    measure,
    read_settings,
    task_of,
    trainer_epochs,
    with_steps,
)
from common.config import DeviceConfig
from common.distributed.communicator import Communicator
from common.distributed.mpi import join_mpi
from common.measurement.timing import Phases
from common.run.program import exit_rank
from common.task.task import Task
from torch_impl import distributed, native
from torch_impl.data import Batches, ShardedData
from torch_impl.loop import Trainer
from torch_impl.models import build_model
from torch_impl.onednn import onednn_is_on
from torch_impl.optimizers import build_optimizer
from torch_impl.state import TrainingState


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    settings = read_settings(arguments)
    # Horovod's thread would take part in every message of MPI, and hold up a bare one.
    comm = join_mpi() if "np2_mpi" in settings.contestants else distributed.init()
    if "np2_ddp" in settings.contestants:
        native.join_ranks(comm, backend="gloo")
    device, _ = distributed.pin_device(DeviceConfig(threads=settings.threads), comm, onednn=settings.onednn)
    measure(settings, comm=comm, build=partial(build_contestant, device=device), onednn=onednn_is_on())
    return 0


def build_contestant(name: str, task: Task, comm: Communicator, times: ExchangeTimes, *, device: torch.device) -> Train:
    """Return what trains an epoch of so many steps on this rank."""
    task, rates = task_of(name, task), constant_rates(task)
    model = build_model(task.spec, task.config.model).to(device)
    optimizer = build_optimizer(model, task.config, learning_rates=rates)
    state = TrainingState(model, optimizer, spec=task.spec, config=task.config)
    state.restore(task.first_weights)
    data = ShardedData(task, comm=comm, device=device)
    if name.startswith("bare"):
        return bare_loop(state, data, with_sums=name != "bare", makes_batches=name == "bare_batches")
    if name == "np2_ddp":
        state.model = DistributedDataParallel(model)
    elif name == "np2_mpi":
        average_by_mpi(optimizer, times)
    else:
        meter = times if name == "np2" else None  # those of np2_each overlap
        state.optimizer = distributed.wrap_optimizer(optimizer, model=model, config=task.config, comm=comm, meter=meter)
        distributed.broadcast_state(state, comm=comm)
    return trainer_epochs(Trainer(state, data, learning_rates=rates, phases=Phases()))


def average_by_mpi(optimizer: torch.optim.Optimizer, times: ExchangeTimes) -> None:
    """Let each step average the gradients by bare MPI."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    average_of = BareAverage([weight.shape for weight in weights], times=times)

    def average(*_: Any) -> None:
        for weight, mean in zip(weights, average_of(*(weight.grad.numpy() for weight in weights)), strict=True):
            weight.grad.copy_(torch.from_numpy(mean))

    optimizer.register_step_pre_hook(average)


def bare_loop(state: TrainingState, data: ShardedData, *, with_sums: bool, makes_batches: bool) -> Train:
    """Return a plain loop: forward, loss, backward, step, on batches that are in memory.

    Args:
        with_sums: whether it also sums losses and correct answers, as every trainer that reports them has to.
        makes_batches: whether it also makes each batch from the pixels of its samples, as every trainer has to.
    """

    def made(epoch: int, steps: int) -> Batches:
        task = with_steps(data.task, size=1, epoch=epoch, steps=steps)
        return ShardedData(task, comm=data.comm, device=data.device).training(epoch, most=1)

    batches = list(made(1, min(MEMORY_BATCHES, data.task.steps_per_epoch)))

    def train(epoch: int, steps: int) -> float:
        state.model.train()
        loss_sum, correct = torch.zeros((), device=data.device), torch.zeros((), dtype=torch.int64, device=data.device)
        distributed.synchronize(data.device)
        started = time.perf_counter()
        in_memory = itertools.islice(itertools.cycle(batches), steps)
        for images, labels in made(epoch, steps) if makes_batches else in_memory:
            state.optimizer.zero_grad()
            outputs = state.model(images)
            loss = F.cross_entropy(outputs, labels)
            loss.backward()
            state.optimizer.step()
            if with_sums:
                loss_sum += loss.detach() * len(labels)
                correct += (outputs.argmax(1) == labels).sum()
        distributed.synchronize(data.device)
        return time.perf_counter() - started

    return train


if __name__ == "__main__":
    code = main()
    exit_rank(code)
    sys.exit(code)
