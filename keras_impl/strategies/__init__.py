"""How the ranks share the work of a batch (`--strategy`): a file each, with what it does otherwise than `Strategy`.

Not here: the arithmetic and the messages, which both frameworks have in common (`common/strategies` and others).
"""

from pathlib import Path

import numpy as np

from common.distributed.communicator import Communicator
from common.run.epoch import Trial
from common.task.task import Task
from keras_impl.data import ShardedData
from keras_impl.models import build_model, set_precision_and_layout
from keras_impl.optimizers import build_optimizer
from keras_impl.strategies.adasum import Adasum
from keras_impl.strategies.allreduce import AllReduce
from keras_impl.strategies.averaging import Averaging
from keras_impl.strategies.layers import Layers
from keras_impl.strategies.native import Native
from keras_impl.strategies.profiled import Profiled
from keras_impl.strategies.server import Server
from keras_impl.strategies.split import Split
from keras_impl.strategies.strategy import Strategy
from keras_impl.strategies.topk import TopK


def build_strategy(
    task: Task, *, comm: Communicator, device: str, step: int = 0, folder: Path | None = None
) -> Strategy:
    """Return the strategy that the settings name.

    Args:
        step: updates of the run that were done before it was resumed.
        folder: of the run, on rank 0; None on the others.
    """
    config = task.config.strategy
    if config.strategy == "server":
        return Server(task, comm=comm, device=device, step=step, folder=folder)
    if task.config.parts.count > 1:
        return (Layers if task.config.parts.stages else Split)(task, comm=comm, device=device)
    if config.strategy == "native":
        return Native(task, comm=comm, device=device)
    if task.config.record.profile:
        return Profiled(task, comm=comm, device=device)
    if config.topk:  # one rank compresses, too
        return TopK(task, comm=comm, device=device)
    if comm.size == 1:
        return Strategy(task, comm=comm, device=device)
    if config.strategy == "averaging":
        return Averaging(task, comm=comm, device=device)
    return (Adasum if config.adasum else AllReduce)(task, comm=comm, device=device)


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
