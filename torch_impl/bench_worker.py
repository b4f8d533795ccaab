"""The ranks of `python -m launch bench` in PyTorch: a bare loop, our trainer, and our loop on DistributedDataParallel.

`keras_impl/bench_worker.py` is its twin.
"""

import itertools
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from common.checks.bench_turns import MEMORY_BATCHES, Train, measure, read_settings, with_steps
from common.distributed.communicator import Communicator
from common.measurement.timing import Phases
from common.training.entry_point import exit_rank
from common.training.run_setup import RunSetup
from torch_impl import distributed
from torch_impl.data import training_data
from torch_impl.loop import Trainer
from torch_impl.models import build_model
from torch_impl.optimizers import build_optimizer
from torch_impl.weights import load_weights


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    settings = read_settings(arguments)
    comm = ddp_ranks() if "np2_ddp" in settings.contestants else distributed.init()
    measure(settings, comm=comm, build=build_contestant)
    return 0


def build_contestant(name: str, setup: RunSetup, comm: Communicator) -> Train:
    """Return what trains an epoch of so many steps on this rank.

    Args:
        name: of `common.checks.bench_turns.CONTESTANTS`.
        setup: data, model and settings.
        comm: the ranks that train.
    """
    if name == "np2_each":
        config = setup.config
        config = replace(config, device=replace(config.device, gradient_groups="each"))
        setup = replace(setup, config=config)
    device, _ = distributed.pin_device(setup.config.device, comm)
    model = build_model(setup.spec, setup.config.model)
    load_weights(model, setup.first_weights, spec=setup.spec)
    model.to(device)
    optimizer = build_optimizer(model, setup.config.optimizer, learning_rate=setup.config.optimizer.learning_rate)
    if name == "bare":
        return bare_loop(model, optimizer, setup=setup, comm=comm, device=device)
    if name == "np2_ddp":
        return trainer_epochs(DistributedDataParallel(model), optimizer, setup=setup, comm=comm, device=device)
    optimizer = distributed.wrap_optimizer(optimizer, model=model, config=setup.config.device, comm=comm)
    distributed.broadcast_state(model, optimizer, comm=comm)
    return trainer_epochs(model, optimizer, setup=setup, comm=comm, device=device)


def bare_loop(
    model: nn.Module, optimizer: torch.optim.Optimizer, *, setup: RunSetup, comm: Communicator, device: torch.device
) -> Train:
    """Return the least that trains: forward, loss, backward, step on batches that lie in memory."""
    some = with_steps(setup, size=1, steps=min(MEMORY_BATCHES, setup.steps_per_epoch))
    batches = list(training_data(some, epoch=1, comm=comm, device=device))

    def train(epoch: int, steps: int) -> float:
        model.train()
        distributed.synchronize(device)
        started = time.perf_counter()
        for images, labels in itertools.islice(itertools.cycle(batches), steps):
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()
        distributed.synchronize(device)
        return time.perf_counter() - started

    return train


def trainer_epochs(
    model: nn.Module, optimizer: torch.optim.Optimizer, *, setup: RunSetup, comm: Communicator, device: torch.device
) -> Train:
    """Return the epochs of our trainer, fed by its own data path."""
    trainer = Trainer(model, optimizer, config=setup.config, device=device, phases=Phases())

    def train(epoch: int, steps: int) -> float:
        some = with_steps(setup, size=comm.size, steps=steps)
        _, seconds, _ = trainer.train_epoch(
            training_data(some, epoch=epoch, comm=comm, device=device),
            learning_rates=np.full(steps, setup.config.optimizer.learning_rate),
            advance=lambda _: None,
        )
        return seconds

    return train


def ddp_ranks() -> Communicator:
    """Join the other processes that torchrun started, over Gloo."""
    torch.distributed.init_process_group("gloo")
    size = torch.distributed.get_world_size()

    def allgather(value: object) -> list[object]:
        values: list[object] = [None] * size
        torch.distributed.all_gather_object(values, value)
        return values

    return Communicator(
        rank=torch.distributed.get_rank(),
        size=size,
        local_rank=int(os.environ["LOCAL_RANK"]),
        local_size=int(os.environ["LOCAL_WORLD_SIZE"]),
        controller="gloo",
        allgather=allgather,
    )


if __name__ == "__main__":
    code = main()
    exit_rank(code)
    sys.exit(code)
