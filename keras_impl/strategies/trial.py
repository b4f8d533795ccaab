"""Training whose weights are thrown away, by which ranks measure how fast they train before they do."""

import numpy as np

from common.distributed.communicator import Communicator
from common.run.epoch import Trial
from common.task.task import Task
from keras_impl.data import ShardedData
from keras_impl.models import build_model, set_precision_and_layout
from keras_impl.optimizers import build_optimizer
from keras_impl.strategies.allreduce import AllReduce
from keras_impl.strategies.strategy import Strategy


def trial(task: Task, *, comm: Communicator, device: str, exchanges: bool) -> Trial:
    """Return the training of a copy of the model, rehearsed.

    Args:
        exchanges: whether the ranks average their gradients; otherwise each trains alone.
    """
    set_precision_and_layout(task.config)
    strategy = (AllReduce if exchanges else Strategy)(task, comm=comm, device=device)
    tried = trial_of(strategy, learning_rates=task.scaled_learning_rates())
    strategy.rehearse(tried.batches, 1)
    return tried


def trial_of(strategy: Strategy, *, learning_rates: np.ndarray) -> Trial:
    """Return the training of a model with the task's first weights by a new strategy.

    Args:
        learning_rates: one for each update; the last one holds for all after it.
    """
    task = strategy.task
    model = build_model(strategy.spec, task.config.model)
    strategy.wrap(model, build_optimizer(model, task.config, learning_rates=learning_rates))
    strategy.load(task.first_weights)
    return Trial(task, strategy, ShardedData(task, comm=strategy.comm, device=strategy.device))
