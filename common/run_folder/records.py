"""The run folder: written atomically by rank 0, validated on reading.

    runs/<name>/run.json             everything but the series (schema: `RunRecord`)
                epochs.jsonl         one line per epoch (`EpochRecord`)
                weights.safetensors  final weights, framework-neutral
                checkpoints/         resume from here (`common.run_folder.checkpoints`)
                power.csv            power over time (`common.run_folder.power_file`), of metered runs (`--energy`)
                timeline.json            Horovod's, as trace events (`--horovod-timeline`)
                events.out.tfevents.run   the numbers of epochs.jsonl for TensorBoard (`--tensorboard`)

Fields end in their unit; times are the slowest rank's, losses and accuracies sums over all ranks divided by counts.
A value that could not be measured is `{"not_recorded": "the reason"}`; a loss that diverged is NaN. `python -m common
schema` prints the JSON Schema. Unknown fields are errors; a setting that is missing in `config` had its default.
"""

import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from common.config import Config
from common.json_records import Record, RecordFile
from common.measurement.energy import EnergyRecord
from common.measurement.interference import Interference
from common.measurement.step_profile import StepProfile
from common.run_folder.environment import Environment, tuning_of
from common.run_folder.sharing import MeasuredGroups, SharingRecord
from common.run_folder.values import NotRecorded, OneDNNInForce, RankCount, Seconds, Timestamp, WholeNumber
from common.run_folder.world_changes import ElasticRecord
from common.utils.process_state import ENDED, process_state

RUN_FILE = "run.json"
EPOCHS_FILE = "epochs.jsonl"
WEIGHTS_FILE = "weights.safetensors"
TIMELINE_FILE = "timeline.json"
STALE_HEARTBEAT_SECONDS = 60.0

RunState = Literal["running", "finished", "failed", "interrupted", "killed"]


@dataclass(frozen=True, kw_only=True)
class World(Record):
    """The ranks of the run: number, hosts, controller, devices."""

    size: RankCount  # of ranks that hold data
    local_size: RankCount
    servers: WholeNumber = 0  # processes beside them that hold parameters
    parts: RankCount = 1  # ranks that hold one copy of the model together
    hosts: list[str]
    controller: str  # mpi, gloo or none; ddp (PyTorch's DistributedDataParallel) in imported runs
    threads_per_rank: int | NotRecorded
    cores: int
    oversubscribed: bool  # more threads than cores: the times of the run are not compared
    devices: list[str]  # of each rank
    gpus: list[str | None] | None = None  # model of each rank's GPU, None on a CPU; None: unknown, as in old records
    onednn: list[OneDNNInForce | None] | None = None  # whether each rank computes with it, None on a GPU; None: unknown
    launcher: str | None = None  # horovodrun, mpirun, srun or none; None: unknown
    pinned_memory: bool | NotRecorded | None = None  # of batches on their way to the GPU; None: unknown
    at_once: RankCount = 1  # runs that were made side by side, this one included: its times compare with such runs only

    @property
    def processes(self) -> int:
        """Ranks and servers."""
        return self.size + self.servers

    @property
    def on_cpu(self) -> bool:
        """Whether no rank used a GPU."""
        return all(device == "cpu" for device in self.devices)


@dataclass(frozen=True, kw_only=True)
class DataRecord(Record):
    """The data set as used in the run."""

    name: str
    training_samples: WholeNumber
    validation_samples: WholeNumber
    test_samples: WholeNumber
    dropped_samples_per_epoch: WholeNumber
    global_batch_size: WholeNumber
    steps_per_epoch: WholeNumber
    image_shape: tuple[int, int, int]  # height, width, channels
    class_names: list[str]
    mean: list[float]
    standard_deviation: list[float]
    batch_sizes: list[WholeNumber] | None = None  # of each rank in an update; None: equal, as in old records


@dataclass(frozen=True, kw_only=True)
class ModelRecord(Record):
    """The model."""

    name: str
    outputs: int
    parameters: WholeNumber
    multiply_adds_per_image: WholeNumber
    forecast_bytes: list[WholeNumber] | None = None  # of training, for each rank of a copy; None: unknown


@dataclass(frozen=True, kw_only=True)
class Hashes(Record):
    """Two runs with the same initial weights and sample order have equal hashes of them."""

    initial_weights: str | NotRecorded
    sample_order: str | NotRecorded
    final_weights: str | NotRecorded | None = None


@dataclass(frozen=True, kw_only=True)
class Status(Record):
    """The state of the run."""

    state: RunState
    host: str
    process: int
    started_at: Timestamp
    heartbeat_at: Timestamp
    ended_at: Timestamp | None = None
    message: str | None = None
    resumed_after_epochs: list[int] = field(default_factory=list)
    resumed_after_steps: list[int] = field(default_factory=list)  # updates of all epochs; empty in old records
    slurm_job: str | None = None  # under Slurm: job ID and number of requeues, as "1234.0"


@dataclass(frozen=True, kw_only=True)
class Totals(Record):
    """Sums over the whole run, including the parts before a resume; start-up is not training time."""

    epochs: WholeNumber
    steps: WholeNumber | NotRecorded
    startup_seconds: Seconds | NotRecorded  # of the last start, up to the first update
    training_seconds: Seconds | NotRecorded
    validation_seconds: Seconds | NotRecorded
    test_seconds: Seconds | NotRecorded
    images_per_second: float | NotRecorded | None  # training images of all epochs / training_seconds
    test_loss: float | NotRecorded | None
    test_accuracy: float | NotRecorded | None
    # If --target-accuracy was reached: epochs, and seconds of training and validation, up to that point.
    epochs_to_target: int | NotRecorded | None = None
    seconds_to_target: Seconds | NotRecorded | None = None
    data_wait_seconds: Seconds | NotRecorded | None = None  # part of training_seconds; the slowest rank's of each epoch
    # The first epoch may be slower; the steady state is that of the epochs after it.
    first_epoch_seconds: Seconds | NotRecorded | None = None  # of training
    steady_images_per_second: float | NotRecorded | None = None  # None with one epoch
    # Of the last start, before `startup_seconds`: see `common.run_folder.start_times`.
    queue_seconds: float | NotRecorded | None = None  # None: no queue
    launch_seconds: float | NotRecorded | None = (
        None  # from the starting command to the process of rank 0; None: unknown
    )


@dataclass(frozen=True, kw_only=True)
class Evaluation(Record):
    """Means over the test samples."""

    loss: float | None
    accuracy: float | None


@dataclass(frozen=True, kw_only=True)
class RunRecord(Record):
    """`run.json`."""

    schema_version: Literal[1]
    origin: Literal["measured", "imported", "published"]
    framework: str
    config: Config | NotRecorded
    environment: Environment | NotRecorded
    site: str
    world: World | NotRecorded
    data: DataRecord | NotRecorded
    model: ModelRecord | NotRecorded
    hashes: Hashes | NotRecorded
    status: Status | NotRecorded
    initial_test: Evaluation | NotRecorded | None = None  # before training, with --evaluate-first
    totals: Totals | NotRecorded | None = None
    isolation: Interference | NotRecorded | None = None
    energy: EnergyRecord | NotRecorded | None = None  # with --energy; the times of such a run are not compared
    profile: StepProfile | None = None  # with --profile; the times of such a run are not compared
    groups: MeasuredGroups | None = None  # with --gradient-groups auto
    sharing: SharingRecord | None = None  # None: one worker, not finished, with --profile, in old records
    elastic: ElasticRecord | None = None  # with --elastic; `world` is that of the first start

    @property
    def over_mpi(self) -> bool:
        """Whether the ranks communicate by Open MPI."""
        return isinstance(self.world, World) and self.world.controller == "mpi"

    @property
    def tuning(self) -> dict[str, str]:
        """The tuning variables that are not a run's own: name -> value."""
        if not isinstance(self.environment, Environment):
            return {}
        parts = self.world.parts if isinstance(self.world, World) else 1
        return tuning_of(self.environment, mpi=self.over_mpi, parts=parts)


@dataclass(frozen=True, kw_only=True)
class EpochRecord(Record):
    """One line of `epochs.jsonl`. Epochs count from 1."""

    epoch: WholeNumber
    steps: WholeNumber
    learning_rate: float | NotRecorded  # of the last step
    training_loss: float | NotRecorded | None
    training_accuracy: float | NotRecorded | None
    validation_loss: float | NotRecorded | None
    validation_accuracy: float | NotRecorded | None
    training_seconds: Seconds | NotRecorded  # including the wait for data
    data_wait_seconds: (
        Seconds | NotRecorded
    )  # part of training_seconds; in PyTorch on a CPU it includes making the batches
    validation_seconds: Seconds | NotRecorded
    # After the epoch: waiting for ranks, comparing weights, writing; and the pauses for checkpoints inside it.
    checkpoint_seconds: Seconds | NotRecorded
    images_per_second: float | NotRecorded | None  # images of all ranks / training_seconds
    weights_hash: str | NotRecorded


_FOLDER = {"missing": "not a run folder", "source": f"Name a folder with {RUN_FILE}"}
RUNS = RecordFile(kind=RunRecord, what="a valid record of a run", **_FOLDER)
EPOCHS = RecordFile(kind=EpochRecord, what="a valid record of epochs", **_FOLDER)


def run_folder_schema() -> dict[str, Any]:
    """Return file name -> JSON Schema of the file (of one line for `epochs.jsonl`)."""
    return {RUN_FILE: RUNS.schema(), EPOCHS_FILE: EPOCHS.schema()}


def now() -> str:
    """Return the time as UTC, ISO 8601, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def seconds_since(timestamp: str) -> float:
    """Return the seconds from an ISO 8601 time until now."""
    return (datetime.now(UTC) - datetime.fromisoformat(timestamp)).total_seconds()


def write_record(folder: Path, record: RunRecord) -> None:
    """Write `run.json`; OSError as of `RecordFile.write`."""
    RUNS.write(folder / RUN_FILE, record)


def write_epochs(folder: Path, epochs: Iterable[EpochRecord]) -> None:
    """Write `epochs.jsonl`; OSError as of `RecordFile.write`."""
    EPOCHS.write_lines(folder / EPOCHS_FILE, epochs)


@dataclass(frozen=True)
class RecordedRun:
    """The content of a run folder. `state` is "killed" for a running one with a stale heartbeat."""

    folder: Path
    record: RunRecord
    epochs: list[EpochRecord]
    state: RunState


def read_run(folder: Path | str) -> RecordedRun:
    """Read and validate a run folder.

    Raises:
        UserError: it is not a run folder, or does not follow the schema.
    """
    folder = Path(folder)
    record = read_record(folder)
    # A run may have ended between the first writing of its two files.
    has_begun = (folder / EPOCHS_FILE).exists() or state_of(record) not in ("running", "killed")
    return RecordedRun(folder, record, read_epochs(folder) if has_begun else [], state_of(record))


def read_record(folder: Path) -> RunRecord:
    """Read and validate `run.json`.

    Raises:
        UserError: there is none, or it does not follow the schema.
    """
    return RUNS.read(folder / RUN_FILE)


def read_epochs(folder: Path) -> list[EpochRecord]:
    """Read and validate `epochs.jsonl`.

    Raises:
        UserError: there is none, it does not follow the schema, or epochs are missing or duplicated.
    """
    file = folder / EPOCHS_FILE
    epochs = EPOCHS.read_lines(file)
    numbers = [epoch.epoch for epoch in epochs]
    if numbers != list(range(1, len(epochs) + 1)):
        raise EPOCHS.invalid(file, f"epochs are missing or duplicated. Received: {numbers}")
    return epochs


def state_of(record: RunRecord) -> RunState:
    """Return the state of a run; "killed" if it is recorded as running and its process is gone."""
    status = record.status
    if isinstance(status, NotRecorded):
        return "finished"
    if status.state != "running":
        return status.state
    here = status.host == socket.gethostname()
    process_is_gone = here and Path("/proc/self").exists() and process_state(status.process) in ENDED
    is_stale = seconds_since(status.heartbeat_at) > STALE_HEARTBEAT_SECONDS
    return "killed" if process_is_gone or is_stale or _was_requeued(status) else "running"


def slurm_job() -> str | None:
    """Return the Slurm job of this process in the form of `Status.slurm_job`; None elsewhere."""
    job = os.environ.get("SLURM_JOB_ID")
    return f"{job}.{os.environ.get('SLURM_RESTART_COUNT', '0')}" if job else None


def _was_requeued(status: Status) -> bool:
    """Return whether the run was started by this Slurm job before it was requeued, which ended all its processes."""
    before, ours = status.slurm_job, slurm_job()
    return before != ours and before is not None and ours is not None and before.split(".")[0] == ours.split(".")[0]
