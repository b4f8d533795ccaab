"""What the workers of a run exchanged in their updates: counted, and by the formula of their strategy."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from common.config import Config, Groups
from common.json_records import Record
from common.run_folder.values import NotRecorded, Seconds, WholeNumber


@dataclass(frozen=True, kw_only=True)
class WorkerShare(Record):
    """What one worker did since its last start.

    Attributes:
        batch_size: its part of a global batch, in images.
        images: that it trained on.
        updates: batches that it handed over the gradients of, even where `--push-every` sums several into one message.
        sent_bytes, received_bytes: per update: what it hands to its messages (to Horovod, MPI) and gets back, as
            counted where they are made; not what gives all ranks the first weights, or weights for an evaluation.
        exchange_seconds: spent in these messages, waiting for others included.
    """

    batch_size: WholeNumber
    images: WholeNumber
    updates: WholeNumber
    sent_bytes: float | NotRecorded
    received_bytes: float | NotRecorded
    exchange_seconds: Seconds | NotRecorded


@dataclass(frozen=True, kw_only=True)
class MeasuredGroups(Record):
    """What `--gradient-groups auto` chose.

    Attributes:
        chosen: the value that the run trains with.
        milliseconds: value -> time of an update, the median of the slowest rank; empty: one rank, nothing measured.
    """

    chosen: Groups
    milliseconds: dict[Groups, float] = field(default_factory=dict)


def with_measured(config: Config, groups: MeasuredGroups | None) -> Config:
    """Return the settings with what was measured in place of `--gradient-groups auto`, as a repetition has them."""
    return replace(config, device=replace(config.device, gradient_groups=groups.chosen)) if groups else config


@dataclass(frozen=True, kw_only=True)
class PassRecord(Record):
    """When a stage computed a pass of a microbatch in the last update: seconds since the first pass of any stage.

    Clocks of several hosts differ, so times of stages of other hosts are only roughly comparable.
    """

    is_forward: bool
    microbatch: WholeNumber
    start: float
    end: float


@dataclass(frozen=True, kw_only=True)
class StageRecord(Record):
    """One stage of a pipeline.

    Attributes:
        first_layer, last_layer: of the model.
        multiply_adds: of one image, forward.
        held_microbatches: the most whose activations it held at once.
        waiting_seconds: for activations and gradients of other stages, their way included.
    """

    first_layer: str
    last_layer: str
    parameters: WholeNumber
    multiply_adds: WholeNumber
    held_microbatches: WholeNumber
    waiting_seconds: Seconds
    passes: list[PassRecord]


@dataclass(frozen=True, kw_only=True)
class SharingRecord(Record):
    """How the workers of a run shared their work; a worker's part has one entry in `workers`.

    Attributes:
        servers: ranks or threads that held parameters for the workers.
        formula: of the bytes on the wire, per update and worker.
        formula_bytes: its value: of a ring, what each rank sends (it receives as much); of servers, what a worker sends
            and receives.
        staleness: updates between a fetch and its push -> number of pushes; None: no update can be stale.
        clock_lead: the most steps that a worker was ahead of the slowest; None: not bounded.
        pipeline: the stages of the first copy of the model; None: no pipeline.
    """

    workers: list[WorkerShare]
    servers: WholeNumber = 0
    formula: str
    formula_bytes: float
    staleness: dict[str, WholeNumber] | None = None
    clock_lead: WholeNumber | None = None
    pipeline: list[StageRecord] | None = None


def join_shares(parts: Sequence[SharingRecord]) -> SharingRecord:
    """Return the record of all workers from their parts, given in the order of ranks."""
    stages = [stage for part in parts for stage in part.pipeline or []]
    counts = [Counter(part.staleness) for part in parts if part.staleness is not None]
    leads = [part.clock_lead for part in parts if part.clock_lead is not None]
    staleness = sum(counts, Counter()) if counts else None
    return replace(
        parts[0],
        workers=[worker for part in parts for worker in part.workers],
        staleness=None if staleness is None else {str(lag): staleness[lag] for lag in sorted(staleness, key=int)},
        clock_lead=max(leads, default=None),
        pipeline=_from_first_pass(stages) if stages else None,
    )


def _from_first_pass(stages: Sequence[StageRecord]) -> list[StageRecord]:
    """Return the stages with times that count from the first pass of any."""
    first = min((one.start for stage in stages for one in stage.passes), default=0.0)
    return [
        replace(stage, passes=[replace(one, start=one.start - first, end=one.end - first) for one in stage.passes])
        for stage in stages
    ]


def without_seconds(record: SharingRecord, *, reason: str) -> SharingRecord:
    """Return the record without the times of exchanges."""
    workers = [replace(worker, exchange_seconds=NotRecorded(reason)) for worker in record.workers]
    return replace(record, workers=workers)
