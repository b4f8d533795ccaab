"""Steps that were measured: the settings and times of runs, cell by cell, as the fit needs them."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.projection.work import FLOAT32, Operation, step_operations
from analysis.runs.cells import Cell, cells_of
from analysis.runs.labels import strategy_label
from analysis.runs.table import RunRow, Selection, curve
from common.config import Config
from common.model.specs import MODEL_NAMES, ModelSpec, model_spec
from common.run_folder.environment import Environment
from common.run_folder.records import DataRecord, ModelRecord, World


@dataclass(frozen=True, kw_only=True)
class MeasuredStep:
    """A cell: runs that differ in their seed alone.

    Attributes:
        image: channels, height, width.
        batch: images per step and rank.
        threads: of each rank.
        seconds: of a step, of each run: in its fastest epoch.
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
    def undisturbed(self) -> float:
        """Seconds of a step in the fastest epoch: warm-up and other processes only slow one down."""
        return min(self.seconds)

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
            found.setdefault(machine_of(cell.first), []).append(_step(cell, selection))
    return found, left_out


def step_settings(run: RunRow) -> dict[str, Any] | None:
    """Return the arguments of `project` that describe a step of a run; None where they are not known."""
    record = run.record
    if not (isinstance(record.config, Config) and isinstance(record.data, DataRecord)):
        return None
    if not isinstance(record.model, ModelRecord) or record.model.name not in MODEL_NAMES:
        return None
    height, width, channels = record.data.image_shape
    mixed = record.config.device.mixed_precision
    return {
        "model": record.model.name,
        "image": (channels, height, width),
        "outputs": record.model.outputs,
        "batch": record.config.training.batch_size,
        "framework": record.framework,
        "optimizer": record.config.optimizer.optimizer,
        "dtype": "float32" if mixed == "none" else mixed,
    }


def _why_not(run: RunRow) -> str | None:
    record, settings = run.record, step_settings(run)
    if settings is None or not isinstance(record.world, World) or not isinstance(record.environment, Environment):
        return "settings, data, ranks or machine are not recorded"
    if settings["dtype"] != "float32" or record.config.model.dtype != "float32":
        return "not in float32"
    if record.config.device.compression != "none":
        return "its gradients are compressed"
    if strategy_label(record.config) != strategy_label(Config()):
        return f"its ranks do not simply average gradients at every update ({strategy_label(record.config)})"
    if not record.world.on_cpu:
        return "not on a CPU"
    if len(set(record.world.hosts)) > 1:
        return "more than one host"
    if record.world.at_once > 1:
        return "made beside other runs"
    return None


def machine_of(run: RunRow) -> str:
    """Return the name of what ran, as `measured_peaks` and projections name it."""
    return run.record.environment.machine


def _step(cell: Cell, selection: Selection) -> MeasuredStep:
    fastest = []
    for run in cell.runs:
        seconds = curve(selection.epochs, run, "training_seconds") / curve(selection.epochs, run, "steps")
        fastest.append(float(np.min(seconds)))
    settings = step_settings(cell.first) or {}
    settings.pop("dtype")
    world = cell.first.record.world
    return MeasuredStep(
        **settings,
        ranks=world.size,
        threads=world.threads_per_rank,
        seconds=tuple(value for value in fastest if math.isfinite(value)),
    )
