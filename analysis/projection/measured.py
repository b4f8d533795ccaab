"""Steps that were measured: the settings and times of runs, cell by cell, as the fit needs them."""

import math
from dataclasses import dataclass

import numpy as np

from analysis.projection.work import FLOAT32, Operation, step_operations
from analysis.runs.cells import Cell, cells_of
from analysis.runs.table import RunRow, Selection, curve, runs_in
from common.config import Config
from common.model.specs import ModelSpec, model_spec
from common.run_folder.environment import Environment
from common.run_folder.records import DataRecord, ModelRecord, World


@dataclass(frozen=True, kw_only=True)
class MeasuredStep:
    """A cell: runs that differ in their seed alone.

    Attributes:
        image: channels, height, width.
        batch: images per step and rank.
        threads: of each rank.
        seconds: of a step, of each run: the median over its epochs, so that a first one with some warm-up does not
            count.
    """

    framework: str
    model: str
    image: tuple[int, int, int]
    outputs: int
    optimizer: str
    batch: int
    ranks: int
    threads: int
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median over the runs."""
        return float(np.median(self.seconds))

    @property
    def spec(self) -> ModelSpec:
        """Layers of the model."""
        return model_spec(self.model, input_shape=self.image, outputs=self.outputs)

    @property
    def gradient_bytes(self) -> int:
        """Bytes of all gradients."""
        return FLOAT32 * self.spec.parameters

    def operations(self) -> tuple[Operation, ...]:
        """Return what a rank does in a step."""
        return step_operations(self.spec, batch=self.batch, optimizer=self.optimizer)


def measured_steps(selection: Selection) -> tuple[dict[str, list[MeasuredStep]], list[str]]:
    """Return machine -> its cells that a fit can use, and in words which runs it cannot."""
    found: dict[str, list[MeasuredStep]] = {}
    left_out: list[str] = []
    for cell in cells_of(selection.runs[selection.runs["timed"]]):
        reason = _why_not(cell.first)
        if reason:
            left_out.append(f"{cell.name}: not used: {reason}")
        else:
            found.setdefault(_machine(cell.first), []).append(_step(cell, selection))
    return found, left_out


def _why_not(run: RunRow) -> str | None:
    record = run.record
    known = isinstance(record.config, Config), isinstance(record.data, DataRecord), isinstance(record.world, World)
    if not (all(known) and isinstance(record.environment, Environment) and isinstance(record.model, ModelRecord)):
        return "settings, data, ranks or machine are not recorded"
    if record.config.device.mixed_precision != "none" or record.config.model.dtype != "float32":
        return "not in float32"
    if record.config.device.compression != "none":
        return "its gradients are compressed"
    if not record.world.on_cpu:
        return "not on a CPU"
    if record.world.oversubscribed or len(set(record.world.hosts)) > 1:
        return "more threads than cores, or more than one host"
    return None


def _machine(run: RunRow) -> str:
    """Return the name of what ran, as `measured_peaks` and projections name it."""
    environment = run.record.environment
    return f"{environment.processor}, {environment.cores} cores"


def _step(cell: Cell, selection: Selection) -> MeasuredStep:
    record = cell.first.record
    height, width, channels = record.data.image_shape
    medians = []
    for run in runs_in(cell.runs):
        seconds = curve(selection.epochs, run, "training_seconds") / curve(selection.epochs, run, "steps")
        medians.append(float(np.median(seconds)))
    return MeasuredStep(
        framework=record.framework,
        model=record.model.name,
        image=(channels, height, width),
        outputs=record.model.outputs,
        optimizer=record.config.optimizer.optimizer,
        batch=record.config.training.batch_size,
        ranks=record.world.size,
        threads=record.world.threads_per_rank,
        seconds=tuple(value for value in medians if math.isfinite(value)),
    )
