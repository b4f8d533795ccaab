"""`--strategy split`: each rank holds a piece of every layer."""

import torch

from common.distributed.communicator import Communicator
from common.run_folder.sharing import SharingRecord
from common.strategies.sharing import split_record
from common.task.task import Task
from torch_impl.exchange import GroupExchange
from torch_impl.strategies.model_parallel import ModelParallel


class Split(ModelParallel):
    """Each rank computes all batches of its copy of the model."""

    def __init__(self, task: Task, *, comm: Communicator, device: torch.device) -> None:
        super().__init__(task, comm=comm, device=device)
        self.exchange = GroupExchange(comm, config=task.config.device, meter=self.meter)

    def exchanged(self) -> SharingRecord | None:
        """Return what this rank exchanged in its updates."""
        return split_record(self.task, self.meter, comm=self.comm)
