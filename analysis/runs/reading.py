"""Many run folders, read at once: what cannot be used is named and left out."""

import gc
import math
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.runs.index import EpochsIndex, stamp_of
from common.config import Config
from common.errors import UserError
from common.measurement.step_profile import StepProfile
from common.run_folder.records import (
    EPOCHS_FILE,
    RUN_FILE,
    DataRecord,
    EpochRecord,
    ModelRecord,
    NotRecorded,
    RunRecord,
    State,
    Totals,
    World,
    read_epochs,
    read_record,
    state_of,
)
from common.run_folder.set_aside import SET_ASIDE

FIGURES = [name for name in EpochRecord.__annotations__ if name not in ("epoch", "weights_hash")]
_ROW = attrgetter(*FIGURES)
PUBLISHED_FOLDER = "published:"  # of published results, which are on no disk
IN_A_PLACE = ("prepared", "images")  # data sets whose names are paths
RENAMED_SITES = {"thesis-003": "thesis-machine"}  # names in run folders of earlier versions -> names of today
_MANY = 1000
_DEEPEST = 3  # folders of folders of runs


@dataclass(frozen=True)
class StudiedRun:
    """One run as comparisons see it. What is not known is NaN, or "unknown" where words stand.

    Attributes:
        figures: (fields, epochs) float64, see `series`.
    """

    folder: Path
    record: RunRecord
    state: State
    figures: NDArray[np.float64] = field(repr=False, compare=False)

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.name

    @property
    def origin(self) -> str:
        """Measured, imported or published."""
        return self.record.origin

    @property
    def published_in(self) -> str:
        """Document and place of a result that `--published` has added; empty for what stands in a run folder."""
        return self.folder.parent.name if self.folder.parts[0] == PUBLISHED_FOLDER else ""

    @property
    def framework(self) -> str:
        """Keras or torch, or another of a published result."""
        return self.record.framework

    @property
    def model(self) -> str:
        """Name of the model."""
        model = self.record.model
        return model.name if isinstance(model, ModelRecord) else "unknown"

    @property
    def dataset(self) -> str:
        """Name of the data set; of one in a file or folder without the way there, which is another at every site."""
        data = self.record.data
        if not isinstance(data, DataRecord):
            return "unknown"
        kind, colon, path = data.name.partition(":")
        return f"{kind}:{Path(path).name}" if colon and kind in IN_A_PLACE else data.name

    @property
    def ranks(self) -> int:
        """Number of processes; 0: not known."""
        return self.record.world.size if isinstance(self.record.world, World) else 0

    @property
    def site(self) -> str:
        """Where it ran, a name of the table of sites."""
        return RENAMED_SITES.get(self.record.site, self.record.site)

    @property
    def device(self) -> str:
        """Kind of its devices: cpu, gpu, or both of a hybrid run."""
        devices = self.record.world.devices if isinstance(self.record.world, World) else []
        return " and ".join(sorted({"cpu" if device == "cpu" else "gpu" for device in devices})) or "unknown"

    @property
    def global_batch(self) -> int:
        """Images of an update over all ranks; 0: not known."""
        return self.record.data.global_batch_size if isinstance(self.record.data, DataRecord) else 0

    @property
    def image_size(self) -> str:
        """Width x height of an image in pixels, as in 197x148."""
        data = self.record.data
        return f"{data.image_shape[1]}x{data.image_shape[0]}" if isinstance(data, DataRecord) else "unknown"

    @property
    def config(self) -> Config | None:
        """All settings; None where they are not recorded."""
        return self.record.config if isinstance(self.record.config, Config) else None

    @property
    def seed(self) -> int | None:
        """Its seed; None where it is not recorded."""
        return self.config.training.seed if self.config else None

    @property
    def timed(self) -> bool:
        """Whether its times may be compared: it is finished, took time, and was neither metered nor profiled."""
        profiled = isinstance(self.record.profile, StepProfile)
        return self.state == "finished" and self.training_seconds != 0 and not self.metered and not profiled

    @property
    def metered(self) -> bool:
        """Whether it measured energy."""
        return self.record.energy is not None

    def total(self, name: str) -> float:
        """Return a field of `common.run_folder.records.Totals`; NaN where it is not known."""
        return _number(getattr(self.record.totals, name)) if isinstance(self.record.totals, Totals) else math.nan

    @property
    def training_seconds(self) -> float:
        """Of all epochs."""
        return self.total("training_seconds")

    @property
    def total_seconds(self) -> float:
        """T = train + validation + test, as in the thesis. A part that the source counts within another is 0 here."""
        rest = [self.total(name) for name in ("validation_seconds", "test_seconds")]
        return self.training_seconds + sum(seconds for seconds in rest if not math.isnan(seconds))

    @property
    def images_per_second(self) -> float:
        """Training images of all ranks / training seconds."""
        return self.total("images_per_second")

    @property
    def epoch_seconds(self) -> float:
        """Training seconds of an epoch, mean over all epochs."""
        epochs = self.total("epochs")
        return self.training_seconds / epochs if epochs > 0 else math.nan

    @property
    def steady_epoch_seconds(self) -> float:
        """Training seconds of an epoch, mean over all but the first; NaN with one epoch."""
        epochs = self.total("epochs")
        return (self.training_seconds - self.total("first_epoch_seconds")) / (epochs - 1) if epochs > 1 else math.nan

    @property
    def accuracy(self) -> float:
        """On the test samples; where they were not used, on the validation samples after the last epoch."""
        test = self.total("test_accuracy")
        if not math.isnan(test):
            return test
        validation = self.series("validation_accuracy")
        return float(validation[-1]) if len(validation) else math.nan

    def series(self, name: str) -> NDArray[np.float64]:
        """Return a field of `EpochRecord` over the epochs: (epochs,) float64, NaN where it is not known."""
        return self.figures[FIGURES.index(name)]

    def seconds_to(self, accuracy: float | None) -> float:
        """Return training and validation seconds until an epoch's validation accuracy reached this; NaN if none did.

        None: until it reached the target that the run itself had.
        """
        if accuracy is None:
            return self.total("seconds_to_target")
        reached = np.flatnonzero(self.series("validation_accuracy") >= accuracy)
        if len(reached) == 0:
            return math.nan
        spent = self.series("training_seconds") + np.nan_to_num(self.series("validation_seconds"))
        return float(spent[: reached[0] + 1].sum())


@dataclass(frozen=True)
class Selection:
    """What a command works on.

    Attributes:
        runs: those that can be read and have come to an end or are under way, sorted by folder.
        left_out: a line for each folder that is no use, and why.
        published: the documents whose results stand among the runs.
    """

    runs: list[StudiedRun]
    left_out: list[str]
    published: Sequence[str] = ()


def read_runs(paths: Iterable[Path | str]) -> Selection:
    """Read run folders and folders of run folders.

    Raises:
        UserError: a path does not exist, or there is not one run in any of them.
    """
    folders = [Path(path) for path in paths]
    inside = {path: _run_folders(path) for path in folders}
    # A run that is named in two ways is one run.
    unique: dict[str, Path] = {}
    for folder in (folder for of_path in inside.values() for folder in of_path):
        unique.setdefault(os.path.realpath(folder), folder)
    runs, left_out = [], []
    indexes: dict[Path, EpochsIndex] = {}
    gc.disable()  # it would look through the objects of thousands of runs again and again: a third of the time
    try:
        for folder in unique.values():
            parent = folder.parent
            if parent not in indexes:
                indexes[parent] = EpochsIndex(parent, fields=FIGURES)
            try:
                runs.append(read_studied_run(folder, index=indexes[parent]))
            except UserError as error:
                left_out.append(f"left out: {error}")
    finally:
        gc.enable()
    if len(runs) >= _MANY:
        gc.freeze()  # nor look through them while they are compared
    for index in indexes.values():
        index.save()
    if not runs:
        reason = left_out[0] if left_out else f"no {RUN_FILE} in {', '.join(str(path) for path in folders)}"
        raise UserError(
            f"there are no runs to look at. Received: {reason}. Name run folders, or folders that hold some"
        )
    left_out += [f"left out: no {RUN_FILE} in {path}" for path, of_path in inside.items() if not of_path]
    return Selection(runs, left_out)


def read_studied_run(folder: Path, *, index: EpochsIndex) -> StudiedRun:
    """Read and validate a run folder; its epochs only if the index does not know them.

    Raises:
        UserError: no run folder, or one that does not follow the schema.
    """
    record = read_record(folder)
    stamp = stamp_of(folder)
    figures = index.figures(folder, stamp)
    if figures is None:
        figures = _figures(read_epochs(folder))
        index.add(folder, stamp, figures)
    return StudiedRun(folder, record, state_of(record), figures)


def _figures(epochs: Sequence[EpochRecord]) -> NDArray[np.float64]:
    """Return numbers alone, (fields, epochs): those of thousands of runs are in memory at once."""
    rows = [_ROW(epoch) for epoch in epochs]
    try:
        figures = np.array(rows, dtype=np.float64)  # None becomes NaN
    except TypeError:  # for what was not recorded
        figures = np.array([[_number(value) for value in row] for row in rows])
    return figures.reshape(-1, len(FIGURES)).T


def _run_folders(path: Path, depth: int = 0) -> Sequence[Path]:
    """Return the run folders in a path, itself included, in order of their names, numbers by their value."""
    if not path.is_dir():
        raise UserError(f"there is no such folder. Received: {path}. Name folders with runs")
    if (path / RUN_FILE).exists() or (path / EPOCHS_FILE).exists():
        return [path]
    if depth == _DEEPEST:
        return []
    inside = sorted(
        (one for one in path.iterdir() if one.is_dir() and not one.name.startswith(".") and not _is_aside(one)),
        key=lambda one: _natural(one.name),
    )
    return [folder for one in inside for folder in _run_folders(one, depth + 1)]


def _is_aside(folder: Path) -> bool:
    """Return whether a folder stands for no run of a study: what a failed one left, or the rerun of `launch verify`."""
    rerun = re.fullmatch(r"(.+)-verify(-[0-9]+)?", folder.name)
    return folder.name == SET_ASIDE or (rerun is not None and folder.with_name(rerun[1]).exists())


def _natural(name: str) -> list[int | str]:
    """Return a key that sorts r2 before r10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"([0-9]+)", name)]


def _number(value: Any) -> float:
    return math.nan if value is None or isinstance(value, NotRecorded) else float(value)
