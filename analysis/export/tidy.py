"""Tidy frames: a row per run, per epoch, or per part of a training step, under one header with units.

Times are in seconds, accuracies are fractions, a value that was not measured and a setting that is off are missing.
Whole numbers, numbers, flags and texts keep these types where values are missing (pandas' nullable types).
"""

from collections.abc import Sequence

import pandas as pd

from analysis.runs.settings import SETTING_COLUMNS
from analysis.runs.table import Selection
from common.errors import UserError
from common.measurement.energy import EnergyRecord
from common.measurement.step_profile import StepProfile
from common.run_folder.records import DataRecord, RunRecord, Status

# Which run a row of another table is of.
KEYS = ("folder", "name", "framework", "model", "data_set", "np", "site", "seed")
_NOT_TIDY = ("record", "config", "samples", "data", "mean_of_pixels", "series")  # objects, or several values in one
_UNITS = {"threads": "threads_per_rank", "validate_every": "validate_every_epochs", "early_stop": "early_stop_epochs"}
_COUNTS = ("trained_epochs", "steps", "epochs_to_target", "recorded_epochs")
SETTINGS = ("seed", *(_UNITS.get(name, name) for name in SETTING_COLUMNS if name not in _NOT_TIDY))


def tidy_runs(selection: Selection) -> pd.DataFrame:
    """Return a row per run: where it is, its state, all settings, all totals."""
    runs = selection.runs
    facts = pd.DataFrame([_facts(record) for record in runs["record"]], index=runs.index, dtype=object)
    tidy = runs.drop(columns=[*_NOT_TIDY]).rename(columns=_UNITS).assign(folder=runs["folder"].map(str))
    return _typed(pd.concat([tidy, facts.astype({"energy_joules": float})], axis=1), counts=_COUNTS)


def _facts(record: RunRecord) -> dict[str, str | int | float | None]:
    """Return columns that the table of runs does not have."""
    data, energy = record.data, record.energy
    samples = {
        f"{split}_samples": getattr(data, f"{split}_samples") if isinstance(data, DataRecord) else None
        for split in ("training", "validation", "test")
    }
    return {
        "started_at": record.status.started_at if isinstance(record.status, Status) else None,
        **samples,
        "energy_joules": energy.used_devices.joules if isinstance(energy, EnergyRecord) else None,
    }


def tidy_epochs(selection: Selection) -> pd.DataFrame:
    """Return a row per epoch: its run, its number from 1, its figures."""
    epochs = selection.epochs
    keys = _keys(selection).loc[epochs["run"]].reset_index(drop=True)
    return _typed(pd.concat([keys, epochs.drop(columns="run")], axis=1), counts=("steps",))


def tidy_parts(selection: Selection) -> pd.DataFrame:
    """Return a row per part of a training step of each profiled run.

    step_seconds, part_seconds: mean over ranks, per step; slowest_rank_part_seconds: of the rank where it took longest.

    Raises:
        UserError: no run was profiled.
    """
    rows = [
        {
            "run": run.Index,
            "part": part,
            "part_seconds": seconds,
            "slowest_rank_part_seconds": max(run.record.profile.parts_seconds_of_ranks[part]),
            "step_seconds": run.record.profile.step_seconds,
            "profiled_steps": run.record.profile.steps,
        }
        for run in selection.rows
        if isinstance(run.record.profile, StepProfile)
        for part, seconds in run.record.profile.parts_seconds.items()
    ]
    if not rows:
        raise UserError("no run was profiled. Received: --of parts. Name runs that were made with --profile")
    parts = pd.DataFrame(rows)
    keys = _keys(selection).loc[parts["run"]].reset_index(drop=True)
    return _typed(pd.concat([keys, parts.drop(columns="run")], axis=1))


def _keys(selection: Selection) -> pd.DataFrame:
    return selection.runs[[*KEYS]].assign(folder=selection.runs["folder"].map(str))


def _typed(frame: pd.DataFrame, *, counts: Sequence[str] = ()) -> pd.DataFrame:
    """Return the frame with a type for each column of objects, and whole numbers in those of counts."""
    types = {name: _type(frame[name]) for name in frame.columns if frame[name].dtype == object}
    return frame.astype(types | dict.fromkeys(counts, "Int64"))


def _type(column: pd.Series) -> str:
    """Return the type of the column's values; of one that has none, what pandas reads from an empty one."""
    kinds = {type(value) for value in column.dropna()}
    if not kinds:
        return "float64"
    if kinds == {bool}:
        return "boolean"
    if kinds == {int}:
        return "Int64"
    return "Float64" if kinds <= {int, float} else "str"
