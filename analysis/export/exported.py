"""A run as trackers of experiments keep it: settings, totals, figures per epoch, files."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pandas as pd

from analysis.export.tidy import SETTINGS, tidy_runs
from analysis.runs.table import FIGURES, Selection
from common.run_folder.records import RunRecord, RunState, Status

Setting = bool | int | float | str


@dataclass(frozen=True)
class Epoch:
    """The figures of an epoch; `ended_at`: seconds since 1970, start-up left out."""

    number: int
    ended_at: float
    figures: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class ExportedRun:
    """What is known of a run; what is not is left out.

    Attributes:
        name: unique among the exported runs: its folder, from the folder that all are in.
        settings: flag of the trainers, or what the run was made with -> value.
        totals: name after "run/" -> number: times in seconds, accuracies as fractions.
        started_at, ended_at: seconds since 1970.
        files: of the run folder itself.
    """

    name: str
    folder: Path
    state: RunState
    settings: Mapping[str, Setting]
    totals: Mapping[str, float]
    epochs: list[Epoch]
    started_at: float
    ended_at: float
    files: list[Path]


def exported_runs(selection: Selection) -> Iterator[ExportedRun]:
    """Yield the runs one by one."""
    runs = tidy_runs(selection)
    parent = os.path.commonpath([folder.absolute().parent for folder in selection.runs["folder"]])
    totals = [name for name in runs.columns if name not in SETTINGS and pd.api.types.is_numeric_dtype(runs[name])
              and not pd.api.types.is_bool_dtype(runs[name])]  # fmt: skip
    for index, row in selection.runs.iterrows():
        folder: Path = row["folder"]
        values = runs.loc[index].dropna().to_dict()
        started, ended = _times(row["record"])
        yield ExportedRun(
            name=os.path.relpath(folder.absolute(), parent),
            folder=folder,
            state=row["state"],
            settings={name: values[name] for name in SETTINGS if name in values},
            totals={f"run/{name}": float(values[name]) for name in totals if name in values},
            epochs=_epochs(selection.epochs[selection.epochs["run"] == index], started_at=started),
            started_at=started,
            ended_at=ended,
            files=sorted(file for file in folder.iterdir() if file.is_file()) if folder.is_dir() else [],
        )


def _epochs(epochs: pd.DataFrame, *, started_at: float) -> list[Epoch]:
    seconds = epochs[["training_seconds", "validation_seconds", "checkpoint_seconds"]].sum(axis=1).cumsum()
    return [
        Epoch(int(number), started_at + ended, figures.dropna().to_dict())
        for number, ended, (_, figures) in zip(epochs["epoch"], seconds, epochs[FIGURES].iterrows(), strict=True)
    ]


def _times(record: RunRecord) -> tuple[float, float]:
    status = record.status
    if not isinstance(status, Status):
        return 0.0, 0.0
    ended_at = status.ended_at or status.heartbeat_at
    return datetime.fromisoformat(status.started_at).timestamp(), datetime.fromisoformat(ended_at).timestamp()
