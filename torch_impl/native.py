"""PyTorch's own strategies (`--strategy native`)."""

import atexit
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from common.data.batches import Draw
from common.distributed.communicator import Communicator
from common.distributed.exchange_meter import ExchangeMeter
from common.distributed.rendezvous import interface_of, own_address
from common.run_folder.checkpoints import PartialEpoch
from common.run_folder.sharing import SharingRecord
from common.strategies.sharing import native_record
from common.task.task import Task
from torch_impl import distributed
from torch_impl.exchange import GroupExchange
from torch_impl.loop import Trainer
from torch_impl.state import TrainingState


class Native:
    """PyTorch averages the gradients over the ranks, in buckets, while it computes them."""

    exchange: GroupExchange | None = None
    trainer_class: Callable[..., Trainer] = Trainer
    draw: Draw | None = None

    def __init__(self, task: Task, *, comm: Communicator) -> None:
        self.task = task
        self.comm = comm
        self.meter = ExchangeMeter()

    def wrap_model(self, model: nn.Module) -> nn.Module:
        """Return the model in `DistributedDataParallel`.

        Without its default that rank 0's statistics of BatchNorm replace those of all ranks at every step: they are
        averaged at the end of an epoch, as by every strategy.
        """
        # A kernel of one channel has the same memory in both layouts, whose strides differ in name only.
        warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
        if not dist.is_initialized():
            join_ranks(self.comm, backend="nccl" if next(model.parameters()).is_cuda else "gloo")
        ranks = DistributedDataParallel(model, forward_sync_buffers=False)
        ranks.register_comm_hook(dist.group.WORLD, self._average)
        return ranks

    def wrap_optimizer(self, optimizer: Optimizer, *, model: nn.Module) -> Optimizer:
        """Return the optimizer: the model averages the gradients."""
        optimizer.register_step_post_hook(self._count)
        return optimizer

    def broadcast_state(self, state: TrainingState) -> None:
        """Give all ranks the weights and the optimizer state of rank 0."""
        distributed.broadcast_state(state, comm=self.comm)

    def rehearsals(self) -> Iterator[None]:
        """Yield for each update to be rehearsed, then undo what these changed of this strategy."""
        with self.meter.undone():
            yield
            yield  # in which `DistributedDataParallel` makes its buckets anew, in the order of the gradients before

    def end_epoch(self, state: TrainingState, epoch: int) -> PartialEpoch:
        """Average BatchNorm's statistics, the only weights that are each rank's own."""
        distributed.average_batch_norm(state, comm=self.comm)
        return PartialEpoch()

    def sharing(self) -> SharingRecord | None:
        """Return what this rank exchanged in its updates."""
        updates = self.meter.updates
        sent_bytes = self.meter.sent_bytes / max(updates, 1)
        return native_record(self.task, rank=self.comm.rank, updates=updates, sent_bytes=sent_bytes)

    def _average(self, group: dist.ProcessGroup, bucket: dist.GradBucket) -> Future[Tensor]:
        """Average a bucket as `DistributedDataParallel` does without a hook, and count its bytes."""
        self.meter.send(bucket.buffer().nbytes)
        return allreduce_hook(group, bucket)

    def _count(self, *_: Any) -> None:
        self.meter.updates += 1


def join_ranks(comm: Communicator, *, backend: str) -> None:
    """Let the ranks find each other through a store of rank 0, at a port that the system chooses."""
    own = own_address(comm)
    address = comm.broadcast(own)
    if backend == "gloo":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface_of(own))
    store = dist.TCPStore(address, 0, comm.size, is_master=True, wait_for_workers=False) if comm.rank == 0 else None
    port = comm.broadcast(store.port if store else None)
    store = store or dist.TCPStore(address, port, comm.size, is_master=False)
    dist.init_process_group(backend, store=store, rank=comm.rank, world_size=comm.size)
    atexit.register(dist.destroy_process_group)
