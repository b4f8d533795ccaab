"""PyTorch's own strategies (`--strategy native`)."""

import atexit
import os
import warnings
from collections.abc import Iterator

import numpy as np
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from common.distributed.addresses import interface_of, own_address
from common.distributed.communicator import Communicator
from common.run_folder.sharing import SharingRecord
from common.strategies.sharing import native_record
from torch_impl.strategies.strategy import Strategy


class Native(Strategy):
    """PyTorch averages the gradients over the ranks, in buckets, while it computes them."""

    def wrap(self, model: nn.Module, optimizer: Optimizer, *, learning_rates: np.ndarray) -> None:
        """Take the optimizer, and the model in `DistributedDataParallel`.

        Without its default that rank 0's statistics of BatchNorm replace those of all ranks at every step: they are
        averaged at the end of an epoch, as by every strategy.
        """
        super().wrap(model, optimizer, learning_rates=learning_rates)
        # A kernel of one channel has the same memory in both layouts, whose strides differ in name only.
        warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
        if not dist.is_initialized():
            join_ranks(self.comm, backend="nccl" if self.device.type == "cuda" else "gloo")
        ranks = DistributedDataParallel(model, forward_sync_buffers=False)
        ranks.register_comm_hook(dist.group.WORLD, self._average)
        self.model = ranks

    def rehearsals(self) -> Iterator[None]:
        """Yield for each update to be rehearsed, then undo what these changed of this strategy."""
        with self.meter.undone():
            yield
            yield  # in which `DistributedDataParallel` makes its buckets anew, in the order of the gradients before

    def exchanged(self) -> SharingRecord | None:
        """Return what this rank exchanged in its updates."""
        updates = self.meter.updates
        sent_bytes = self.meter.sent_bytes / max(updates, 1)
        return native_record(self.task, rank=self.comm.rank, updates=updates, sent_bytes=sent_bytes)

    def _average(self, group: dist.ProcessGroup, bucket: dist.GradBucket) -> Future[Tensor]:
        """Average a bucket as `DistributedDataParallel` does without a hook, and count its bytes."""
        self.meter.send(bucket.buffer().nbytes)
        return allreduce_hook(group, bucket)


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
