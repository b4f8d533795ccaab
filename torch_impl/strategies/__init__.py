"""How the ranks share the work of a batch (`--strategy`): a file each, all with the same methods."""

from pathlib import Path

import torch

from common.distributed.communicator import Communicator
from common.task.task import Task
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
