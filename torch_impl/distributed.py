"""The Horovod steps in PyTorch: init, pin, wrap, broadcast; averaged BatchNorm statistics."""

from pathlib import Path

import horovod.torch as hvd
import torch
from torch import nn

from common.config import DeviceConfig
from common.distributed.communicator import Communicator, join, threads_per_rank
from common.distributed.pinning import choose_gpu
from common.utils.cores import usable_cores


def init(*, timeline: bool = False) -> Communicator:
    """Join the other processes of this run; one process alone is a run of one rank.

    Args:
        timeline: whether `start_timeline` will be called.
    """
    return join(hvd, timeline=timeline)


def pin_device(config: DeviceConfig, comm: Communicator) -> tuple[torch.device, int]:
    """Give this rank its own GPU, or its share of the cores; return the device and the number of threads.

    Raises:
        UserError: a GPU is asked for and there is none for every rank of a host; on all ranks.
    """
    threads = threads_per_rank(config.threads, cores=usable_cores(), local_size=comm.local_size)
    with comm.propagate_errors("pinning the device"):
        torch.set_num_threads(threads)
        gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
        gpu = choose_gpu(gpus, config=config, local_rank=comm.local_rank, local_size=comm.local_size)
        if gpu is not None:
            torch.cuda.set_device(torch.device(gpu))
    return torch.device(gpu or "cpu"), threads


def wrap_optimizer(
    optimizer: torch.optim.Optimizer, *, model: nn.Module, config: DeviceConfig, comm: Communicator
) -> torch.optim.Optimizer:
    """Return the optimizer with gradients averaged over ranks before each update; itself where there is one rank."""
    if comm.size == 1:
        return optimizer
    return hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if config.compression == "fp16" else hvd.Compression.none,
        op=hvd.Average,
        groups=1 if config.gradient_groups == "one" else None,
    )


def wait_for_all_ranks() -> None:
    """Return when every rank has come here: a sum of one number, as TensorFlow's Horovod has no barrier."""
    hvd.allreduce(torch.zeros(1), op=hvd.Sum, name="barrier")


def average_gradients(model: nn.Module, *, config: DeviceConfig) -> None:
    """Average the gradients over the ranks as the optimizer of `wrap_optimizer` does with all in one group."""
    compression = hvd.Compression.fp16 if config.compression == "fp16" else hvd.Compression.none
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    small, contexts = zip(*map(compression.compress, gradients), strict=True)
    averages = hvd.grouped_allreduce(small, op=hvd.Average, name="gradients")
    for gradient, average, context in zip(gradients, averages, contexts, strict=True):
        gradient.copy_(compression.decompress(average, context))


def broadcast_state(model: nn.Module, optimizer: torch.optim.Optimizer, *, comm: Communicator) -> None:
    """Give all ranks the weights, BatchNorm statistics and optimizer state of rank 0.

    Not by `hvd.broadcast_optimizer_state`: where there is no state yet it makes some by a step with zero gradients,
    which counts as Adam's first and lets AdamW shrink the weights. No state means all zeros: nothing is to be sent.
    """
    if comm.size > 1:
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        state = [
            (f"{name}.{slot}", value)
            for name, parameter in model.named_parameters()
            for slot, value in sorted(optimizer.state.get(parameter, {}).items())
            if isinstance(value, torch.Tensor)
        ]
        hvd.broadcast_parameters(state, root_rank=0)


def average_batch_norm(model: nn.Module, *, comm: Communicator) -> None:
    """Average the running means and variances over ranks, in one grouped allreduce."""
    statistics = [buffer for name, buffer in model.named_buffers() if name.endswith(("running_mean", "running_var"))]
    if comm.size > 1 and statistics:
        hvd.grouped_allreduce_(statistics, op=hvd.Average, name="batch_norm")


def start_timeline(file: Path) -> None:
    """Let Horovod write what it does from now on, as trace events; every rank calls it, the first one writes."""
    hvd.start_timeline(str(file))


def stop_timeline() -> None:
    """End the timeline's file."""
    hvd.stop_timeline()


def peak_device_memory(device: torch.device) -> int | None:
    """Return the most bytes that tensors have taken on this rank's GPU; None on a CPU."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all its work, before a clock is read."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
