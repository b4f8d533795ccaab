"""This rank's part of the record of what workers exchanged, with the formula of the wire beside the count."""

import math

import numpy as np

from common.config import StrategyConfig
from common.distributed.communicator import Communicator
from common.measurement.exchange_meter import ExchangeMeter
from common.model.layers import Convolution, Dense, GatherParts
from common.parameter_server.schedule import Schedule
from common.pipeline.links import Links
from common.pipeline.schedule import most_held
from common.run_folder.sharing import PassRecord, SharingRecord, StageRecord, WorkerShare
from common.run_folder.values import NotRecorded
from common.task.task import Task

ADASUM = "recursive halving: 2 (N-1)/N S"  # Maleki et al., arXiv 2006.02924
RING = "ring: 2 (N-1)/N S"  # Patarasuk and Yuan, J. Parallel Distrib. Comput. 69 (2009), doi 10.1016/j.jpdc.2008.09.002


def ring_record(task: Task, meter: ExchangeMeter, *, rank: int) -> SharingRecord | None:
    """Return the part of this rank, one of N, which averaged S bytes of gradients or weights by all-reduce.

    None where it is the only one, and for `--profile`, whose steps exchange gradients themselves.
    """
    if task.copies == 1 or task.config.record.profile:
        return None
    every = task.averaging.interval if task.config.strategy.strategy == "averaging" else 1
    sent = 2 * (task.copies - 1) / task.copies * averaged_bytes(task) / every
    return SharingRecord(
        workers=[worker_share(task, meter, rank=rank)],
        formula=ADASUM if task.config.strategy.adasum else RING + (f" / {every}" if every > 1 else ""),
        formula_bytes=sent,
    )


def sparse_record(task: Task, meter: ExchangeMeter, *, rank: int) -> SharingRecord | None:
    """Return the part of this rank, one of N, which sent P bytes of entries of gradients, each with its place.

    None where it is the only one.
    """
    if task.copies == 1:
        return None
    entries = sum(
        kept_entries(task.config.strategy, math.prod(weight.shape)) for weight in task.spec.weights if weight.trainable
    )
    sent = entries * (np.dtype(task.config.model.dtype).itemsize + np.dtype(np.int32).itemsize)
    return SharingRecord(
        workers=[worker_share(task, meter, rank=rank)],
        formula="ring: (N-1) P",
        formula_bytes=(task.copies - 1) * sent,
    )


def kept_entries(strategy: StrategyConfig, size: int) -> int:
    """Return how many entries of a gradient of this size are sent with `--topk`."""
    assert strategy.topk
    return max(1, round(strategy.topk * size))


def native_record(task: Task, *, rank: int, updates: int, sent_bytes: float | NotRecorded) -> SharingRecord | None:
    """Return the part of this rank, whose framework averaged the gradients; None where it is the only one.

    Args:
        updates: since the last start.
        sent_bytes: handed to the framework's all-reduce per update and worker.
    """
    if task.copies == 1:
        return None
    replicas = task.config.strategy.replicas or 1
    samples = task.shares[rank].samples
    worker = WorkerShare(
        batch_size=samples,
        images=samples * updates,
        updates=updates,
        sent_bytes=sent_bytes,
        received_bytes=sent_bytes,
        exchange_seconds=NotRecorded("gradients are exchanged while others are computed"),
    )
    formula_bytes = 2 * (task.copies - 1) / task.copies * averaged_bytes(task)
    return SharingRecord(workers=[worker] * replicas, formula=RING, formula_bytes=formula_bytes)


def server_record(
    task: Task, meter: ExchangeMeter, *, rank: int, servers: int, schedule: Schedule | None
) -> SharingRecord:
    """Return the part of this worker, which sent gradients of S bytes to servers and fetched weights from them.

    Args:
        schedule: of an asynchronous run, on rank 0.
    """
    strategy = task.config.strategy
    size = task.spec.parameters * np.dtype(task.config.model.dtype).itemsize
    rare = strategy.push_every > 1 or strategy.fetch_every > 1
    is_bounded = schedule is not None and strategy.staleness != "none"
    return SharingRecord(
        workers=[worker_share(task, meter, rank=rank)],
        servers=servers,
        formula=f"server: S / {strategy.push_every} + S / {strategy.fetch_every}" if rare else "server: 2 S",
        formula_bytes=size / strategy.push_every + size / strategy.fetch_every,
        staleness=schedule.staleness_histogram() if schedule else None,
        clock_lead=schedule.most_ahead(task.copies) if schedule and is_bounded else None,
    )


def pipeline_record(task: Task, links: Links, *, comm: Communicator, averages: ExchangeMeter) -> SharingRecord:
    """Return the part of this stage, one of S, which exchanged activations of A bytes per image with its neighbors.

    Args:
        averages: counts the updates, and the gradients that were averaged over copies of the model.
    """
    sides = [part.rows[-1].output_shape for part in task.partition.parts[:-1]]
    crossing = sum(math.prod(side) for side in sides) * np.dtype(task.config.model.dtype).itemsize
    part = task.partition.parts[comm.part]
    stage = StageRecord(
        first_layer=part.rows[0].layer.name,
        last_layer=part.rows[-1].layer.name,
        parameters=part.parameters,
        multiply_adds=part.multiply_adds,
        held_microbatches=most_held([span.operation for span in links.spans]),
        waiting_seconds=links.meter.seconds,
        passes=[
            PassRecord(
                is_forward=span.operation.is_forward,
                microbatch=span.operation.microbatch,
                start=span.start,
                end=span.end,
            )
            for span in links.spans
        ],
    )
    return SharingRecord(
        workers=[worker_share(task, _together(links.meter, averages), rank=comm.data_rank)],
        formula="pipeline: 2 A / S, a mean of the stages" + (f" + {RING}, of a stage" if comm.copies > 1 else ""),
        formula_bytes=2 * crossing * task.shares[comm.data_rank].samples / comm.parts + _ring_of_parts(task, comm),
        pipeline=[stage] if comm.data_rank == 0 else [],
    )


def split_record(task: Task, meter: ExchangeMeter, *, comm: Communicator) -> SharingRecord:
    """Return the part of this rank, one of R that hold pieces of the same layers.

    A layer that is split by its outputs has the gradient of its inputs summed over the ranks, one that is split by its
    inputs its outputs: all-reduces of A bytes. Channels of P bytes of each rank are gathered.
    """
    part = task.partition.parts[comm.part]
    summed = gathered = 0
    for number, row in enumerate(part.rows):
        is_first = not any(before.weights for before in part.rows[:number])  # the images have no gradient
        if isinstance(row.layer, GatherParts):
            gathered += math.prod(row.input_shape)
        elif isinstance(row.layer, Dense | Convolution) and row.layer.split == "inputs":
            summed += math.prod(row.output_shape)
        elif isinstance(row.layer, Dense | Convolution) and row.layer.split == "outputs" and not is_first:
            summed += math.prod(row.input_shape)
    values = 2 * (comm.parts - 1) / comm.parts * summed + (comm.parts - 1) * gathered
    sent = values * task.shares[comm.data_rank].samples * np.dtype(task.config.model.dtype).itemsize
    return SharingRecord(
        workers=[worker_share(task, meter, rank=comm.data_rank)],
        formula="rings: 2 (R-1)/R A + (R-1) P" + (f" + {RING}, of a part" if comm.copies > 1 else ""),
        formula_bytes=sent + _ring_of_parts(task, comm),
    )


def _together(inside: ExchangeMeter, averages: ExchangeMeter) -> ExchangeMeter:
    """Return what was exchanged inside a copy of the model and between copies."""
    return ExchangeMeter(
        updates=averages.updates,
        sent_bytes=inside.sent_bytes + averages.sent_bytes,
        received_bytes=inside.received_bytes + averages.received_bytes,
        seconds=inside.seconds + averages.seconds,
    )


def _ring_of_parts(task: Task, comm: Communicator) -> float:
    """Return the bytes that a rank sends in the average of gradients over copies, a mean of the parts."""
    parameters = sum(part.parameters for part in task.partition.parts) / comm.parts
    return 2 * (comm.copies - 1) / comm.copies * parameters * np.dtype(task.config.model.dtype).itemsize


def worker_share(task: Task, meter: ExchangeMeter, *, rank: int) -> WorkerShare:
    """Return what this worker did, as its meter counted it."""
    overlap = task.measured_config.device.gradient_groups != "one"
    return WorkerShare(
        batch_size=task.shares[rank].samples,
        images=task.shares[rank].samples * meter.updates,
        updates=meter.updates,
        sent_bytes=meter.sent_bytes / max(meter.updates, 1),
        received_bytes=meter.received_bytes / max(meter.updates, 1),
        exchange_seconds=NotRecorded("the exchanges of several groups overlap") if overlap else meter.seconds,
    )


def averaged_bytes(task: Task) -> int:
    """Return the bytes that one all-reduce averages: of gradients as they are sent; or of weights and states."""
    config, spec = task.config, task.spec
    value_bytes = np.dtype(config.model.dtype).itemsize
    if config.strategy.strategy != "averaging":
        return spec.parameters * (2 if config.device.compression == "fp16" else value_bytes)
    weights = sum(math.prod(weight.shape) for weight in spec.weights)
    averaged = config.optimizer.slots if config.strategy.average_state else 0
    return (weights + averaged * spec.parameters) * value_bytes
