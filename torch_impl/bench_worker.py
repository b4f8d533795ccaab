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
from common.distributed.ranks import Ranks
from common.measurement.timing import Phases
from common.training.entry_point import leave
from common.training.run_setup import Experiment
from torch_impl import distributed
from torch_impl.data import training_data
from torch_impl.loop import Trainer
from torch_impl.models import build_model
from torch_impl.optimizers import build_optimizer
from torch_impl.weights import load_weights


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    settings = read_settings(arguments)
    ranks = ddp_ranks() if "np2_ddp" in settings.contestants else distributed.init()
    measure(settings, ranks=ranks, build=build_contestant)
    return 0


def build_contestant(name: str, experiment: Experiment, ranks: Ranks) -> Train:
    """Return what trains an epoch of so many steps on this rank.

    Args:
        name: of `common.checks.bench_turns.CONTESTANTS`.
        experiment: data, model and settings.
        ranks: those that train.
    """
    if name == "np2_each":
        config = experiment.config
        config = replace(config, device=replace(config.device, gradient_groups="each"))
        experiment = replace(experiment, config=config)
    device, _ = distributed.pin_device(experiment.config.device, ranks)
    model = build_model(experiment.spec, experiment.config.model)
    load_weights(model, experiment.first_weights, spec=experiment.spec)
    model.to(device)
    optimizer = build_optimizer(
        model, experiment.config.optimizer, learning_rate=experiment.config.optimizer.learning_rate
    )
    if name == "bare":
        return bare_loop(model, optimizer, experiment=experiment, ranks=ranks, device=device)
    if name == "np2_ddp":
        return trainer_epochs(
            DistributedDataParallel(model), optimizer, experiment=experiment, ranks=ranks, device=device
        )
    optimizer = distributed.wrap_optimizer(optimizer, model=model, config=experiment.config.device, ranks=ranks)
    distributed.broadcast_state(model, optimizer, ranks=ranks)
    return trainer_epochs(model, optimizer, experiment=experiment, ranks=ranks, device=device)


def bare_loop(
    model: nn.Module, optimizer: torch.optim.Optimizer, *, experiment: Experiment, ranks: Ranks, device: torch.device
) -> Train:
    """Return the least that trains: forward, loss, backward, step on batches that lie in memory."""
    some = with_steps(experiment, size=1, steps=min(MEMORY_BATCHES, experiment.steps_per_epoch))
    batches = list(training_data(some, epoch=1, ranks=ranks, device=device))

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
    model: nn.Module, optimizer: torch.optim.Optimizer, *, experiment: Experiment, ranks: Ranks, device: torch.device
) -> Train:
    """Return the epochs of our trainer, fed by its own data path."""
    trainer = Trainer(model, optimizer, config=experiment.config, device=device, phases=Phases())

    def train(epoch: int, steps: int) -> float:
        some = with_steps(experiment, size=ranks.size, steps=steps)
        _, seconds, _ = trainer.train_epoch(
            training_data(some, epoch=epoch, ranks=ranks, device=device),
            learning_rates=np.full(steps, experiment.config.optimizer.learning_rate),
            advance=lambda _: None,
        )
        return seconds

    return train


def ddp_ranks() -> Ranks:
    """Join the other processes that torchrun started, over Gloo."""
    torch.distributed.init_process_group("gloo")
    size = torch.distributed.get_world_size()

    def allgather(value: object) -> list[object]:
        values: list[object] = [None] * size
        torch.distributed.all_gather_object(values, value)
        return values

    return Ranks(
        rank=torch.distributed.get_rank(),
        size=size,
        local_rank=int(os.environ["LOCAL_RANK"]),
        local_size=int(os.environ["LOCAL_WORLD_SIZE"]),
        controller="gloo",
        allgather=allgather,
    )


if __name__ == "__main__":
    code = main()
    leave(code)
    sys.exit(code)
