"""The Horovod steps in tf.keras: init, pin, wrap, broadcast; averaged BatchNorm statistics; ranks that come and go."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

from common.config import Config, DeviceConfig
from common.distributed.communicator import Communicator
from common.distributed.core_sharing import threads_per_rank
from common.distributed.horovod_module import horovod_module, lost_rank_errors
from common.distributed.joining import join_ranks
from common.distributed.pinning import check_own_gpu, choose_gpu
from common.errors import UserError
from common.model.specs import ModelSpec
from common.run.elastic import Hooks
from common.run.world import RankDevice
from common.run_folder.records import NotRecorded
from common.utils.freed_memory import keep_freed_memory
from keras_impl.exchange_meter import ExchangeMeter
from keras_impl.onednn import onednn_is_on, use_onednn
from keras_impl.weights import weight_maps

hvd = horovod_module("horovod.tensorflow")
horovod_keras3 = horovod_module("keras_impl.horovod_keras3")
gradient_exchange = horovod_module("keras_impl.horovod_keras3.exchange")

_HOST = "/cpu:0"


def init(settings: Config | UserError | None = None) -> Communicator:
    """Join the other processes of this run; one process alone is a run of one rank.

    Args:
        settings: of the run; an error waits until all ranks can receive it.
    """
    comm = join_ranks(hvd, settings)
    if comm.size == 1 or comm.world is not None:
        return comm

    def allgather(value: Any) -> list[Any]:
        with tf.device(_HOST):  # objects are in host memory; PyTorch's Horovod keeps them there, too
            return comm.allgather(value)

    return replace(comm, allgather=allgather)


def pin_device(config: DeviceConfig, comm: Communicator, *, onednn: str | None = None) -> tuple[str, int]:
    """Give this rank its own GPU, or its share of the cores; return the device and the number of threads.

    Args:
        onednn: whether it computes, as `--onednn`; None: nothing is computed.

    Raises:
        UserError: a GPU is asked for and there is none for every rank of a host, or oneDNN is not as asked for, or
            channels first on a CPU; on all ranks.
    """
    # A process that goes on with other ranks keeps its number, which TensorFlow cannot change any more.
    before = tf.config.threading.get_intra_op_parallelism_threads()
    threads = before or threads_per_rank(config.threads, share=comm.cores)
    # TensorFlow reads all of this only once, before its first operation: also before the first sum over ranks.
    with comm.propagate_errors("pinning the device"):
        keep_freed_memory()
        if onednn is not None:
            use_onednn(onednn)
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)
        tf.config.experimental.enable_tensor_float_32_execution(config.tf32)
        os.environ["TF_CUDNN_USE_AUTOTUNE"] = "1" if config.cudnn_benchmark else "0"
        gpus = tf.config.list_physical_devices("GPU")
        replicas, local_size = comm.replicas, comm.local_size * comm.replicas
        if config.device != "cpu" and 1 <= len(gpus) < replicas:
            raise UserError(
                f"each replica needs its own GPU. Received: --replicas {replicas}, {len(gpus)} GPUs. Give fewer "
                "--replicas, or --device cpu"
            )
        chosen = [
            choose_gpu(gpus, config=config, local_rank=comm.local_rank * replicas + number, local_size=local_size)
            for number in range(replicas)
        ]
        gpu = chosen[0]
        if gpu is None and not config.channels_last:
            raise UserError(
                "TensorFlow's kernels for CPUs need channels last. Received: --no-channels-last and no GPU. "
                "Leave it out, or use torch"
            )
        if gpu is not None:
            os.environ["TF_CUDNN_DETERMINISTIC"] = "0" if config.cudnn_benchmark else "1"
            if not config.cudnn_benchmark:
                tf.config.experimental.enable_op_determinism()  # also of what is not cuDNN's, such as the loss
            for one in chosen:
                tf.config.experimental.set_memory_growth(one, True)
            # Else TensorFlow chooses on GPUs: in float32 it turns channels last into channels first.
            tf.config.optimizer.set_experimental_options({"layout_optimizer": False})
        elif replicas > 1:
            (cpu,) = tf.config.list_physical_devices("CPU")
            tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
        tf.config.set_visible_devices([] if gpu is None else chosen, "GPU")
    check_own_gpu(None if gpu is None else gpus.index(gpu), config=config, comm=comm)
    return "cpu" if gpu is None else gpu.name.removeprefix("/physical_device:"), threads


def wrap_optimizer(
    optimizer: keras.optimizers.Optimizer, *, config: DeviceConfig, meter: ExchangeMeter
) -> keras.optimizers.Optimizer:
    """Return the optimizer with gradients averaged over the ranks before each update."""
    return horovod_keras3.DistributedOptimizer(
        optimizer,
        compression=config.compression,
        groups=config.groups,
        device=exchange_device(config),
        meter=meter,
    )


def rejoin(settings: Config) -> Communicator:
    """Leave Horovod and join it again, with the ranks that are there then."""
    hvd.shutdown()
    # Ranks match operations by name: those of a model that is built again have to be those of a new rank's first.
    keras.utils.clear_session()
    gradient_exchange.name_anew()
    return init(settings)


def is_lost_rank(error: BaseException) -> bool:
    """Return whether an exchange has failed: of TensorFlow's own, or of Horovod, which it reports as unknown."""
    if isinstance(error, (*lost_rank_errors(), tf.errors.UnavailableError)):
        return True
    # The message is Horovod's, or that of Gloo below it.
    words = str(error).lower()
    return isinstance(error, tf.errors.UnknownError) and ("horovod" in words or "gloo" in words)


HOOKS = Hooks(horovod=hvd, rejoin=rejoin, is_lost_rank=is_lost_rank)


def wait_for_all_ranks() -> None:
    """Return when every rank has called it: a sum of one number, as TensorFlow's Horovod has no barrier."""
    with tf.device(_HOST):
        hvd.allreduce(tf.zeros(1), op=hvd.Sum, name="barrier")


def average_in_place(
    values: Sequence[Any],
    *,
    name: str,
    config: DeviceConfig,
    weight: float = 1.0,
    group: Any = None,
    meter: ExchangeMeter | None = None,
) -> None:
    """Replace variables by their averages over the ranks, in one grouped all-reduce of their own type.

    Args:
        name: of the operation; the same on all ranks.
        weight: of this rank; the mean over ranks is 1.
        group: Horovod's process set of the ranks; None: all.
    """
    exchange = gradient_exchange.GradientExchange(
        name=name, process_set=group or hvd.global_process_set, device=exchange_device(config), meter=meter
    )
    tensors = [tf.convert_to_tensor(variable.value) for variable in values]
    averages = exchange(tensors if weight == 1 else [tensor * weight for tensor in tensors], values)
    for variable, average in zip(values, averages, strict=True):
        variable.assign(average)


def average_gradients(
    gradients: Sequence[tf.Tensor], *, config: DeviceConfig, group: Any = None, meter: ExchangeMeter | None = None
) -> list[tf.Tensor]:
    """Average gradients over the ranks as the optimizer of `wrap_optimizer` does with all in one group."""
    exchange = gradient_exchange.GradientExchange(
        name="gradients",
        compression=config.compression,
        process_set=group or hvd.global_process_set,
        device=exchange_device(config),
        meter=meter,
    )
    return exchange(gradients, gradients)  # none of them is of a local variable


def gather(
    tensors: Mapping[str, tf.Tensor], *, config: DeviceConfig, group: Any = None, meter: ExchangeMeter | None = None
) -> list[tf.Tensor]:
    """Return tensors with the entries of all ranks along their first axis, the only one that Horovod knows.

    Args:
        tensors: by the names of the operations, which are the same on all ranks.
    """
    ranks = group or hvd.global_process_set

    def exchange(own: list[Any], compression: Any) -> list[Any]:
        gathered = []
        for name, tensor in zip(tensors, own, strict=True):
            sent, context = compression.compress(tensor)
            with tf.device(exchange_device(config)):
                entries = hvd.allgather(sent, name=name, process_set=ranks, ignore_name_scope=True)
            entries.set_shape((ranks.size() * tensor.shape[0], *tensor.shape[1:]))
            gathered.append(compression.decompress(entries, context))
        return gathered

    own, none = list(tensors.values()), hvd.Compression.none
    return meter.measure(exchange, own, none) if meter else exchange(own, none)


def combine_updates(updates: Sequence[tf.Tensor], *, meter: ExchangeMeter) -> list[tf.Tensor]:
    """Return what Adasum makes of the updates of all ranks, tensor by tensor, in host memory.

    Two of them, a and b, become (1 - ab / 2aa) a + (1 - ab / 2bb) b; with more ranks, pairs of neighbors, then pairs of
    pairs (Maleki et al., arXiv 2006.02924).
    """
    exchange = gradient_exchange.GradientExchange(name="updates", op=hvd.Adasum, groups=None, device=_HOST, meter=meter)
    return exchange(updates, updates)  # none of them is of a local variable


def broadcast_state(
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    *,
    spec: ModelSpec,
    config: DeviceConfig,
    comm: Communicator,
) -> None:
    """Give all ranks the weights, BatchNorm statistics and optimizer state of rank 0.

    Not the seeds of the dropout layers, which are variables of the model too: all ranks would draw the same masks.
    """
    if comm.copies == 1:
        return
    variables = [*(weight.variable for weight in weight_maps(model, spec).values()), *optimizer.variables]
    if comm.parts == 1 and (config.share_gpu or comm.world is not None):
        for variable, value in zip(variables, comm.broadcast([one.numpy() for one in variables]), strict=True):
            variable.assign(value)
    else:
        group = comm.part_group if comm.parts > 1 else hvd.global_process_set
        sent = [one.value for one in variables]
        if config.share_gpu:
            with tf.device(_HOST):
                sent = [tf.Variable(value) for value in sent]
        hvd.broadcast_variables(sent, root_rank=comm.part, process_set=group)
        if config.share_gpu:
            for variable, received in zip(variables, sent, strict=True):
                variable.assign(received)


def average_batch_norm(
    model: keras.Model, *, spec: ModelSpec, config: DeviceConfig, comm: Communicator, weight: float
) -> None:
    """Average the running means and variances over ranks, in one grouped all-reduce.

    Args:
        weight: of this rank; the mean over ranks is 1.
    """
    maps = weight_maps(model, spec)
    statistics = [maps[weight.name].variable for weight in spec.weights if not weight.trainable]
    if comm.world is not None:
        for statistic in statistics:
            statistic.assign(comm.sum(weight * statistic.numpy()) / comm.size)
    elif comm.copies > 1 and statistics:
        group = comm.part_group if comm.parts > 1 else None
        average_in_place(statistics, name="batch_norm", config=config, weight=weight, group=group)


def gpu_model(device: str) -> str | None:
    """Return the model of this rank's GPU, of its first where it has replicas, as CUDA names it; None on a CPU."""
    if device == "cpu":
        return None
    gpu = tf.config.get_visible_devices("GPU")[0]
    model: str | None = tf.config.experimental.get_device_details(gpu).get("device_name")
    return model


def rank_device(device: str, *, threads: int) -> RankDevice:
    """Return what this rank computes with, as the record shows it."""
    return RankDevice(
        name=device,
        gpu=gpu_model(device),
        threads=threads,
        onednn=onednn_is_on(),
        peak_memory=lambda: peak_device_memory(device),
        pinned_memory=NotRecorded("not applicable: TensorFlow copies batches to the GPU in its own way"),
    )


def peak_device_memory(device: str) -> int | None:
    """Return the most bytes that tensors have occupied on this rank's GPU, or the fullest of them; None on a CPU."""
    if device == "cpu":
        return None
    count = len(tf.config.get_visible_devices("GPU"))
    return max(int(tf.config.experimental.get_memory_info(f"GPU:{number}")["peak"]) for number in range(count))


def synchronize(device: str) -> None:
    """Wait until the device has finished all its work, before a clock is read."""
    if device != "cpu":
        tf.test.experimental.sync_devices()


def exchange_device(config: DeviceConfig) -> str:
    """Return where tensors are exchanged: in host memory for a shared GPU, which NCCL refuses; else where they are."""
    return _HOST if config.share_gpu else ""
