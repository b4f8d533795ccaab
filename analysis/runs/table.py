"""The tables of runs and of epochs: pandas frames, built once from what was read.

runs     a row per run. Index: the run's number. Columns: folder, name, record (the typed record), state, config, seed,
         metered, timed, one column per setting (`SETTING_COLUMNS`), one per field of `Totals` (float64; its `epochs`
         is `trained_epochs`), and what is derived from them (`_derived`).
epochs   a row per epoch. Columns: run (the number), epoch (from 1), and the figures of `EpochRecord` (float64).

What is not known is NaN or None, never 0; a setting that a run does not have is NaN, one that is off is None.
"""

import math
from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache, cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.runs.settings import SETTING_COLUMNS, settings_of
from common.config import Config
from common.measurement.step_profile import StepProfile
from common.run_folder.records import EpochRecord, NotRecorded, RunRecord, RunState, Totals, World

FIGURES = [one.name for one in fields(EpochRecord) if one.name not in ("epoch", "weights_hash")]
TOTALS = [one.name for one in fields(Totals)]
_FIGURES_OF = attrgetter(*FIGURES)
_TOTALS_OF = attrgetter(*TOTALS)
Derived = TypeVar("Derived")
RunRow = Any  # a row of the table of runs, as `runs_in` yields it: a named tuple of its columns, `Index` its number


@dataclass(frozen=True)
class LoadedRun:
    """A run on its way into the tables.

    Attributes:
        figures: (epochs, FIGURES) float64, NaN where they are not known.
    """

    folder: Path
    record: RunRecord
    state: RunState
    figures: NDArray[np.float64]


@dataclass(frozen=True)
class Selection:
    """What a command works on.

    Attributes:
        runs, epochs: the tables.
        left_out: a line for each folder that cannot be used, and why.
        published: the documents whose results are among the runs.
    """

    runs: pd.DataFrame
    epochs: pd.DataFrame
    left_out: Sequence[str] = ()
    published: Sequence[str] = ()

    @cached_property
    def rows(self) -> list[RunRow]:
        """The rows of the table of runs."""
        return list(runs_in(self.runs))


def select(loaded: Sequence[LoadedRun], **also: Sequence[str]) -> Selection:
    """Return the tables of these runs; `also`: further fields of the selection."""
    epochs = _epochs_table(loaded)
    return Selection(_runs_table(loaded, epochs), epochs, **also)


def runs_in(runs: pd.DataFrame) -> Iterator[RunRow]:
    """Yield the rows of the table of runs as named tuples: as pandas' `itertuples`, in a tenth of its time."""
    row = _row_type(tuple(runs.columns))
    values = runs.to_numpy(dtype=object).T.tolist()
    return map(row._make, zip(runs.index.tolist(), *values, strict=True))


@cache
def _row_type(columns: tuple[str, ...]) -> Any:
    return namedtuple("Run", ["Index", *columns])


def figures_of(epochs: Sequence[EpochRecord]) -> NDArray[np.float64]:
    """Return (epochs, FIGURES) float64: records of thousands of runs would not fit into memory."""
    return _numbers([_FIGURES_OF(epoch) for epoch in epochs], FIGURES)


def once_per_frame(derive: Callable[[pd.DataFrame], Derived]) -> Callable[[pd.DataFrame], Derived]:
    """Return the function, which keeps what it derived from the last frame: chapters ask about the same one."""
    last: list[tuple[pd.DataFrame, Derived]] = []

    def derived(frame: pd.DataFrame) -> Derived:
        if not last or last[0][0] is not frame:
            last[:] = [(frame, derive(frame))]
        return last[0][1]

    return derived


@once_per_frame
def _arrays_of(frame: pd.DataFrame) -> dict[str, NDArray[Any]]:
    return {name: frame[name].to_numpy() for name in frame}


def curve(epochs: pd.DataFrame, run: RunRow, figure: str) -> NDArray[np.float64]:
    """Return a figure of a run over its epochs: (epochs,) float64, NaN where it is not known."""
    arrays = _arrays_of(epochs)
    first, last = arrays["run"].searchsorted([run.Index, run.Index + 1])
    return arrays[figure][first:last]


def images_trained(run: RunRow) -> float:
    """Return images of all epochs and ranks; NaN where it is not known."""
    return run.steps * run.global_batch if run.global_batch else math.nan


def runs_to(selection: Selection, accuracy: float | None) -> pd.DataFrame:
    """Return the table of runs whose `seconds_to_target` are those to a validation accuracy, as a fraction.

    None: to the target that each run itself had. NaN: not reached.
    """
    if accuracy is None:
        return selection.runs
    epochs = selection.epochs
    seconds = epochs["training_seconds"] + epochs["validation_seconds"].fillna(0.0)
    spent = seconds.groupby(epochs["run"]).cumsum()
    reached = epochs[epochs["validation_accuracy"] >= accuracy].drop_duplicates("run")
    seconds_to_target = spent[reached.index].set_axis(reached["run"]).reindex(selection.runs.index)
    return selection.runs.assign(seconds_to_target=seconds_to_target)


def _numbers(values: Sequence[Sequence[Any]], names: Sequence[str]) -> NDArray[np.float64]:
    try:
        numbers = np.array(values, dtype=np.float64)  # None becomes NaN
    except TypeError:
        numbers = np.array([[np.nan if isinstance(one, NotRecorded) else one for one in row] for row in values], float)
    return numbers.reshape(-1, len(names))


def _epochs_table(loaded: Sequence[LoadedRun]) -> pd.DataFrame:
    lengths = [len(one.figures) for one in loaded]
    numbers = np.concatenate([np.empty((0, len(FIGURES))), *(one.figures for one in loaded)])
    epochs = pd.DataFrame(numbers, columns=FIGURES, copy=False)
    epochs.insert(0, "run", np.repeat(np.arange(len(loaded)), lengths))
    epochs.insert(1, "epoch", np.concatenate([np.empty(0, int), *(np.arange(1, length + 1) for length in lengths)]))
    return epochs


def _runs_table(loaded: Sequence[LoadedRun], epochs: pd.DataFrame) -> pd.DataFrame:
    records = [one.record for one in loaded]
    facts = pd.DataFrame(
        {
            "folder": [one.folder for one in loaded],
            "name": [one.folder.name for one in loaded],
            "record": records,
            "state": [one.state for one in loaded],
            "config": [record.config if isinstance(record.config, Config) else None for record in records],
            "seed": [record.config.training.seed if isinstance(record.config, Config) else None for record in records],
        },
        dtype=object,
    )
    settings = pd.DataFrame(
        [settings_of(one.folder, one.record) for one in loaded], columns=list(SETTING_COLUMNS), dtype=object
    )
    unknown = [np.nan] * len(TOTALS)
    totals = [_TOTALS_OF(record.totals) if isinstance(record.totals, Totals) else unknown for record in records]
    numbers = pd.DataFrame(_numbers(totals, TOTALS), columns=TOTALS).rename(columns={"epochs": "trained_epochs"})
    runs = pd.concat([facts, settings, numbers], axis=1)
    metered = [record.energy is not None for record in records]
    profiled = [isinstance(record.profile, StepProfile) for record in records]
    oversubscribed = [isinstance(record.world, World) and record.world.oversubscribed for record in records]
    slowed = [isinstance(one.config, Config) and one.config.balance.slows_beside_the_subject for one in records]
    marks = {"metered": metered, "profiled": profiled, "oversubscribed": oversubscribed, "slowed": slowed}
    return runs.assign(**marks, **_derived(numbers, epochs)).assign(
        # Whether its times may be compared: finished, took time, neither metered nor profiled, no more threads than
        # cores, no GPU shared by ranks, no straggler planted unless that is the subject.
        timed=lambda table: (
            (table["state"] == "finished")
            & (table["training_seconds"] > 0)
            & ~table["metered"]
            & ~table["profiled"]
            & ~table["oversubscribed"]
            & ~table["share_gpu"].eq(True)
            & ~table["slowed"]
        )
    )


def _derived(totals: pd.DataFrame, epochs: pd.DataFrame) -> dict[str, pd.Series]:
    """Return further columns of the table of runs, float64, in seconds unless something else is said.

    total_seconds: training + validation + test; a part that the source counts within another is 0 here.
    paid_seconds: these, start-up and writing checkpoints, for which a node is paid.
    epoch_seconds, validation_epoch_seconds: of training and of validation per epoch, mean over all epochs.
    paid_epoch_seconds: of both and of checkpoints.
    steady_epoch_seconds: of training per epoch, mean over all but the first; NaN with one epoch.
    accuracy: as a fraction, on the test samples; where those were not used, on the validation samples after the last
        epoch.
    last_, best_validation_accuracy: over the epochs that validated.
    last_training_loss: of the last epoch.
    recorded_epochs: rows of the table of epochs.
    """
    training, validation = totals["training_seconds"], totals["validation_seconds"]
    trained = totals["trained_epochs"].where(totals["trained_epochs"] > 0)
    later = (trained - 1).where(trained > 1)
    total = training + (validation.fillna(0.0) + totals["test_seconds"].fillna(0.0))
    by_run = epochs.groupby("run")
    checkpoints = by_run["checkpoint_seconds"].sum().reindex(totals.index, fill_value=0.0)  # NaN: not recorded
    last = epochs.drop_duplicates("run", keep="last").set_index("run").reindex(totals.index)
    return {
        "total_seconds": total,
        "paid_seconds": total + totals["startup_seconds"].fillna(0.0) + checkpoints,
        "epoch_seconds": training / trained,
        "validation_epoch_seconds": validation / trained,
        "paid_epoch_seconds": (training + validation.fillna(0.0) + checkpoints) / trained,
        "steady_epoch_seconds": (training - totals["first_epoch_seconds"]) / later,
        "accuracy": totals["test_accuracy"].fillna(last["validation_accuracy"]),
        "last_validation_accuracy": by_run["validation_accuracy"].last().reindex(totals.index),
        "best_validation_accuracy": by_run["validation_accuracy"].max().reindex(totals.index),
        "last_training_loss": last["training_loss"],
        "recorded_epochs": by_run.size().reindex(totals.index, fill_value=0),
    }
