"""How the ranks share the work of a batch (`--strategy`): a file each, with what it does otherwise than `Strategy`.

Not here: the arithmetic and the messages, which both frameworks have in common (`common/strategies` and others).
"""

from pathlib import Path

from common.distributed.communicator import Communicator
from common.task.task import Task
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
