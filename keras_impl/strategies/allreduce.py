"""`--strategy allreduce`: gradients are averaged before every update."""

import keras

from common.distributed.communicator import Communicator
from common.run_folder.sharing import SharingRecord
from common.strategies.sharing import ring_record
from common.task.task import Task
from keras_impl import distributed
from keras_impl.strategies.metered import Metered


class AllReduce(Metered):
    """All ranks hold the same weights at all times."""

    def __init__(self, task: Task, *, comm: Communicator, device: str) -> None:
        times = task.measured_config.device.gradient_groups == "one"  # else they overlap
        super().__init__(task, comm=comm, device=device, times=times)

    def wrap(self, model: keras.Model, optimizer: keras.optimizers.Optimizer) -> None:
        """Take the model, and the optimizer with gradients averaged before each update."""
        config = self.task.measured_config
        super().wrap(model, distributed.wrap_optimizer(optimizer, config=config, meter=self.meter))

    def exchanged(self) -> SharingRecord | None:
        """Return what this rank exchanged in its updates."""
        return ring_record(self.task, self.meter.read(), rank=self.comm.rank)
