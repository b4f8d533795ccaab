"""The Horovod steps in PyTorch: init, pin, wrap, broadcast; averaged BatchNorm statistics; ranks that come and go."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import DistError

from common.config import Config, DeviceConfig
from common.distributed.communicator import Communicator
from common.distributed.core_sharing import threads_per_rank
from common.distributed.horovod_module import horovod_module, lost_rank_errors
from common.distributed.joining import join_ranks
from common.distributed.pinning import check_own_gpu, choose_gpu
from common.errors import UserError
from common.measurement.exchange_meter import ExchangeMeter
from common.run.elastic import Hooks
from common.run.world import RankDevice
from common.utils.freed_memory import keep_freed_memory
from torch_impl.onednn import onednn_is_on, use_onednn

hvd = horovod_module("horovod.torch")


def init(settings: Config | UserError | None = None) -> Communicator:
    """Join the other processes of this run; one process alone is a run of one rank.

    Args:
        settings: of the run; an error waits until all ranks can receive it.
    """
    return join_ranks(hvd, settings)


def pin_device(config: DeviceConfig, comm: Communicator, *, onednn: str | None = None) -> tuple[torch.device, int]:
    """Give this rank its own GPU, or its share of the cores; return the device and the number of threads.

    Args:
        onednn: whether it computes, as `--onednn`; None: nothing is computed.

    Raises:
        UserError: a GPU is asked for and there is none for every rank of a host, or oneDNN is not as asked for;
            on all ranks.
    """
    threads = threads_per_rank(config.threads, share=comm.cores)
    with comm.propagate_errors("pinning the device"):
        keep_freed_memory()
        torch.set_num_threads(threads)
        if onednn is not None:
            use_onednn(onednn)
        _set_tf32(config.tf32)
        cudnn: Any = torch.backends.cudnn
        cudnn.benchmark, cudnn.deterministic = config.cudnn_benchmark, not config.cudnn_benchmark
        gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
        gpu = choose_gpu(gpus, config=config, local_rank=comm.local_rank, local_size=comm.local_size)
        if gpu is not None:
            torch.cuda.set_device(torch.device(gpu))
            _add_in_one_order(not config.cudnn_benchmark)
    check_own_gpu(None if gpu is None else gpus.index(gpu), config=config, comm=comm)
    return torch.device(gpu or "cpu"), threads


def _set_tf32(is_on: bool) -> None:
    """Turn TF32 on or off in the earlier and in the later form of the switch, of which torch.compile reads both.

    PyTorch raises an error where one is read that does not agree with the other.
    """
    products: Any = torch.backends.cuda.matmul
    cudnn: Any = torch.backends.cudnn  # PyTorch's types lack `conv`
    products.allow_tf32 = cudnn.allow_tf32 = is_on
    for part in (products, cudnn, cudnn.conv, cudnn.rnn):
        part.fp32_precision = "tf32" if is_on else "ieee"


def _add_in_one_order(is_on: bool) -> None:
    """Let all kernels of a GPU add in the same order each time; those that cannot print a warning.

    This is `torch.use_deterministic_algorithms` without its import of the compiler, which takes a second and 150 MB.
    """
    torch.set_deterministic_debug_mode("warn" if is_on else "default")
    deterministic: Any = torch.utils.deterministic
    deterministic.fill_uninitialized_memory = False  # which takes time, and finds mistakes only
    if is_on:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts


def wrap_optimizer(
    optimizer: torch.optim.Optimizer, *, model: nn.Module, config: DeviceConfig, meter: ExchangeMeter
) -> Any:
    """Return Horovod's optimizer, which starts to average gradients over the ranks when they are there."""
    return hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=_of_gradients(config, meter),
        op=hvd.Average,
        backward_passes_per_step=config.backward_passes_per_step,
        groups=config.groups,
    )


def rejoin(settings: Config) -> Communicator:
    """Leave Horovod and join it again, with the ranks that are there then."""
    hvd.shutdown()
    return init(settings)


def is_lost_rank(error: BaseException) -> bool:
    """Return whether an exchange has failed: one of Horovod, or of PyTorch's own, of which Gloo's has no type."""
    if isinstance(error, (*lost_rank_errors(), DistError)):
        return True
    return isinstance(error, RuntimeError) and "gloo" in str(error).lower()


HOOKS = Hooks(horovod=hvd, rejoin=rejoin, is_lost_rank=is_lost_rank)


def wait_for_all_ranks() -> None:
    """Return when every rank has called it: a sum of one number, as TensorFlow's Horovod has no barrier."""
    hvd.allreduce(torch.zeros(1), op=hvd.Sum, name="barrier")


def average_in_place(
    values: Sequence[Tensor],
    *,
    name: str,
    config: DeviceConfig,
    weight: float = 1.0,
    group: Any = None,
    meter: ExchangeMeter | None = None,
) -> None:
    """Replace tensors by their averages over the ranks, in one grouped all-reduce of their own type.

    Args:
        name: of the operation; the same on all ranks.
        weight: of this rank; the mean over ranks is 1.
        group: Horovod's process set of the ranks; None: all.
    """
    weighted = values if weight == 1 else [value * weight for value in values]
    averages = _average(weighted, _uncompressed(config, meter), name=name, group=group)
    for tensor, average in zip(values, averages, strict=True):
        tensor.copy_(average)


def average_gradients(
    gradients: Sequence[Tensor], *, config: DeviceConfig, group: Any = None, meter: ExchangeMeter | None = None
) -> None:
    """Replace gradients by their averages, as the optimizer of `wrap_optimizer` does with all in one group."""
    averages = _average(gradients, _of_gradients(config, meter), name="gradients", group=group)
    for gradient, average in zip(gradients, averages, strict=True):
        gradient.copy_(average)


def gather(
    tensors: Mapping[str, Tensor], *, config: DeviceConfig, group: Any = None, meter: ExchangeMeter | None = None
) -> list[Tensor]:
    """Return tensors with the entries of all ranks along their first axis, the only one that Horovod knows.

    Args:
        tensors: by the names of the operations, which are the same on all ranks.
    """
    hook, gathered = _uncompressed(config, meter), []
    with hook.meter.timed():
        for name, own in tensors.items():
            sent, context = hook.compress(own)
            entries = hvd.allgather(sent, name=name, process_set=group or hvd.global_process_set)
            gathered.append(hook.decompress(entries, context))
    return gathered


def combine_updates(updates: Sequence[Tensor], *, meter: ExchangeMeter) -> list[Tensor]:
    """Return what Adasum makes of the updates of all ranks, tensor by tensor, in host memory.

    Two of them, a and b, become (1 - ab / 2aa) a + (1 - ab / 2bb) b; with more ranks, pairs of neighbors, then pairs of
    pairs (Maleki et al., arXiv 2006.02924).
    """
    return _average(updates, _Counted(hvd.Compression.none, meter, through_host=True), name="updates", op=hvd.Adasum)


def broadcast_state(
    model: nn.Module, optimizer: torch.optim.Optimizer, *, config: DeviceConfig, comm: Communicator
) -> None:
    """Give all ranks the weights, BatchNorm statistics and optimizer state of rank 0, or of the first with their part.

    Not by `hvd.broadcast_optimizer_state`: without a state it creates one by a step with zero gradients, which counts
    as Adam's first and lets AdamW shrink the weights. No state means all zeros: there is nothing to send.
    """
    if comm.copies == 1:
        return
    slots = [
        (f"{name}.{slot}", value)
        for name, parameter in model.named_parameters()
        for slot, value in sorted(optimizer.state.get(parameter, {}).items())
        if isinstance(value, Tensor)
    ]
    names, tensors = zip(*model.state_dict().items(), *slots, strict=True)
    sent = [tensor.to("cpu", copy=True) for tensor in tensors] if config.share_gpu else tensors
    if comm.parts == 1:
        hvd.broadcast_parameters(list(zip(names, sent, strict=True)), root_rank=0)
    else:
        for name, tensor in zip(names, sent, strict=True):
            hvd.broadcast_(tensor, root_rank=comm.part, name=name, process_set=comm.part_group)
    for tensor, received in zip(tensors, sent, strict=True):
        tensor.copy_(received)


def average_batch_norm(model: nn.Module, *, config: DeviceConfig, comm: Communicator, weight: float) -> None:
    """Average the running means and variances over ranks, in one grouped all-reduce.

    Args:
        weight: of this rank; the mean over ranks is 1.
    """
    buffers = model.named_buffers()
    statistics = [buffer for name, buffer in buffers if name.endswith(("running_mean", "running_var"))]
    if comm.world is not None:
        for statistic in statistics:
            total = comm.sum(weight * statistic.cpu().numpy())
            statistic.copy_(torch.from_numpy(total / comm.size))
    elif comm.copies > 1 and statistics:
        group = comm.part_group if comm.parts > 1 else None
        average_in_place(statistics, name="batch_norm", config=config, weight=weight, group=group)


def gpu_model(device: torch.device) -> str | None:
    """Return the model of this rank's GPU, as CUDA names it; None on a CPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else None


def rank_device(device: torch.device, *, threads: int) -> RankDevice:
    """Return what this rank computes with, as the record shows it."""
    return RankDevice(
        name=str(device),
        gpu=gpu_model(device),
        threads=threads,
        onednn=onednn_is_on(),
        peak_memory=lambda: peak_device_memory(device),
    )


def peak_device_memory(device: torch.device) -> int | None:
    """Return the most bytes that tensors have occupied on this rank's GPU; None on a CPU."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished all its work, before a clock is read."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class _Counted:
    """Horovod's hook for compression, which counts the bytes that are handed to Horovod and got back.

    Args:
        through_host: whether tensors are exchanged in host memory, as for a shared GPU, which NCCL refuses.
    """

    def __init__(self, compression: Any, meter: ExchangeMeter | None, *, through_host: bool) -> None:
        self._compression, self._through_host = compression, through_host
        self.meter = meter or ExchangeMeter()

    def compress(self, tensor: Tensor) -> tuple[Tensor, Any]:
        small, context = self._compression.compress(tensor)
        if self._through_host:
            small = small.to("cpu", copy=True)
        self.meter.send(small.nbytes)
        return small, (context, tensor.device)

    def decompress(self, tensor: Tensor, context: Any) -> Tensor:
        self.meter.received_bytes += tensor.nbytes
        inner, device = context
        original: Tensor = self._compression.decompress(tensor.to(device) if self._through_host else tensor, inner)
        return original


def _of_gradients(config: DeviceConfig, meter: ExchangeMeter | None) -> _Counted:
    compression = hvd.Compression.fp16 if config.compression == "fp16" else hvd.Compression.none
    return _Counted(compression, meter, through_host=config.share_gpu)


def _uncompressed(config: DeviceConfig, meter: ExchangeMeter | None) -> _Counted:
    return _Counted(hvd.Compression.none, meter, through_host=config.share_gpu)


def _average(
    tensors: Sequence[Tensor], hook: _Counted, *, name: str, group: Any = None, op: Any = None
) -> list[Tensor]:
    with hook.meter.timed():
        small, contexts = zip(*map(hook.compress, tensors), strict=True)
        averages = hvd.grouped_allreduce(
            small, op=hvd.Average if op is None else op, name=name, process_set=group or hvd.global_process_set
        )
        return [hook.decompress(average, context) for average, context in zip(averages, contexts, strict=True)]
