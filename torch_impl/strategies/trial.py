"""Training whose weights are thrown away: by it ranks measure how fast they train, before they do."""

import numpy as np
import torch

from common.distributed.communicator import Communicator
from common.run.epoch import Trial
from common.task.task import Task
from torch_impl.data import ShardedData
from torch_impl.models import build_model
from torch_impl.optimizers import build_optimizer
from torch_impl.strategies.allreduce import AllReduce
from torch_impl.strategies.strategy import Strategy


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
