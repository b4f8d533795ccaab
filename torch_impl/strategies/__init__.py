"""How the ranks share the work of a batch (`--strategy`): a file each, all with the same methods."""

from pathlib import Path

import numpy as np
import torch

from common.distributed.communicator import Communicator
from common.run.epoch import Trial
from common.task.task import Task
from torch_impl.data import ShardedData
from torch_impl.models import build_model
from torch_impl.optimizers import build_optimizer
from torch_impl.strategies.adasum import Adasum
from torch_impl.strategies.allreduce import AllReduce
from torch_impl.strategies.averaging import Averaging
from torch_impl.strategies.layers import Layers
from torch_impl.strategies.native import Native
from torch_impl.strategies.profiled import Profiled
from torch_impl.strategies.server import Server
from torch_impl.strategies.split import Split
from torch_impl.strategies.strategy import Strategy
from torch_impl.strategies.topk import TopK


def build_strategy(
    task: Task, *, comm: Communicator, device: torch.device, step: int = 0, folder: Path | None = None
) -> Strategy:
    """Return the strategy that the settings name; where it would exchange nothing, that of one process alone.

    Args:
        step: updates of the run that were done before it was resumed.
        folder: of the run, on rank 0; None on the others.
    """
    config = task.config
    named = config.strategy.strategy
    if named == "server":
        return Server(task, comm=comm, device=device, step=step, folder=folder)
    if named == "native":
        kind: type[Strategy] = Native
    elif config.record.profile:
        kind = Profiled
    elif config.parts.count > 1:
        kind = Layers if config.parts.stages else Split
    elif config.strategy.topk:  # one rank compresses, too
        kind = TopK
    elif comm.size == 1:
        kind = Strategy
    elif named == "averaging":
        kind = Averaging
    else:
        kind = Adasum if config.strategy.adasum else AllReduce
    return kind(task, comm=comm, device=device)


def trial(task: Task, *, comm: Communicator, device: torch.device, exchanges: bool) -> Trial:
    """Return the training of a copy of the model, rehearsed.

    Args:
        exchanges: whether the ranks average their gradients; otherwise each trains alone.
    """
    strategy = (AllReduce if exchanges else Strategy)(task, comm=comm, device=device)
    tried = trial_of(strategy, learning_rates=task.scaled_learning_rates())
    strategy.rehearse(tried.batches, 1)
    return tried


def trial_of(strategy: Strategy, *, learning_rates: np.ndarray) -> Trial:
    """Return the training of a model with the task's first weights by a new strategy.

    Args:
        learning_rates: one for each update; the last one holds for all after it.
    """
    task, device = strategy.task, strategy.device
    model = build_model(strategy.spec, task.config.model).to(device)
    optimizer = build_optimizer(model, task.config, learning_rates=learning_rates)
    strategy.wrap(model, optimizer, learning_rates=learning_rates)
    strategy.load(task.first_weights)
    return Trial(task, strategy, ShardedData(task, comm=strategy.comm, device=device))
