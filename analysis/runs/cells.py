"""Runs of the same settings as cells: a cell is a row of a result table, its runs are the points of a plot."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from statistics import median

import numpy as np
import pandas as pd

from analysis.runs.labels import AS_INSTALLED, NOT_RECORDED, STRATEGY_SETTINGS, framework_label, strategy_label
from analysis.runs.settings import SERIES, SETTING_COLUMNS, TUNED
from analysis.runs.table import RunRow, once_per_frame, runs_in
from common.config import SPEED_SETTINGS
from common.run_folder.environment import Environment, stack_of

# Settings with a place of their own in a label.
_CORE = ("framework", "model", "data set", "np")
# Settings whose values need no name.
_BY_VALUE = ("device", "site", "origin", "machine", "data", "launcher", "tuning", TUNED, SERIES)
IN_FORCE = "onednn in force"
_ONEDNN = ("onednn", IN_FORCE)
Settings = dict[str, Hashable]  # by their names in words, such as "learning rate"
Quantity = str | Callable[[RunRow], float]  # a column of the table of runs, or a function of a row


@dataclass(frozen=True, eq=False)
class Cell:
    """Runs that differ in nothing but their seed, or not even in that.

    Attributes:
        settings: what they have in common.
        runs: rows of the table of runs, at least one; not a frame, whose columns of a few values are slow to read.
        words: the settings that distinguish the cell from others of the same framework, model, data set and np.
    """

    settings: Settings
    runs: Sequence[RunRow]
    words: str = ""

    @property
    def first(self) -> RunRow:
        """The first of its runs: what it says of settings holds for all."""
        return self.runs[0]

    @property
    def framework(self) -> str:
        """Framework of all of its runs."""
        return str(self.first.framework)

    @property
    def is_tuned(self) -> bool:
        """Whether its runs have the settings of speed that `launch tune` found for their framework."""
        return self.settings.get(TUNED) == TUNED

    @property
    def asked(self) -> Settings:
        """Its settings without those of speed, if it is tuned: each framework has its own."""
        speed = [*(name.replace("_", " ") for name in SPEED_SETTINGS), IN_FORCE] if self.is_tuned else []
        return {name: value for name, value in self.settings.items() if name not in speed}

    @property
    def is_published(self) -> bool:
        """Whether it is a published result."""
        return bool(self.first.origin == "published")

    @property
    def name(self) -> str:
        """Framework and label."""
        return f"{framework_label(self.framework)}, {self.label}"

    @property
    def label(self) -> str:
        """Model, data set, ranks, and what distinguishes it from others; the framework aside."""
        first = self.first
        ranks = f"np {first.np}" if first.np else ""
        origin = first.origin if self.is_published and not self.words.endswith(first.origin) else ""
        return ", ".join(part for part in (first.model, first.data_set, ranks, self.words, origin) if part)

    @cached_property
    def timed(self) -> list[RunRow]:
        """Those of its runs whose times may be compared."""
        return [run for run in self.runs if run.timed]

    @cached_property
    def finished(self) -> list[RunRow]:
        """Those of its runs whose accuracies may be compared: metered and profiled ones train the same."""
        return [run for run in self.runs if run.state == "finished"]

    @cached_property
    def experiments(self) -> set[Path]:
        """The folders that hold its runs."""
        return {Path(run.folder).parent for run in self.runs}

    @cached_property
    def stack(self) -> dict[str, set[str]]:
        """Package or variable -> what it was in the finished runs, see `stack_of`; what they tuned is a setting."""
        found: dict[str, set[str]] = defaultdict(set)
        before = None
        for run in self.finished:
            environment, mpi = run.record.environment, run.record.over_mpi
            if isinstance(environment, Environment):
                looked_at = environment.packages, environment.variables, run.framework, mpi
                if looked_at == before:
                    continue
                before = looked_at
                tuning = run.record.tuning
                for name, value in stack_of(environment, framework=run.framework, mpi=mpi).items():
                    if name not in tuning:
                        found[name].add("none" if value is None else value)
        return found

    def seconds(self, of: Quantity) -> dict[Hashable, float]:
        """Return key that pairs a run with others -> a time of it, or another quantity that measuring disturbs.

        The key is the seed. A seed that several runs have pairs nothing: their keys are their folders.
        """
        shared, values = self._shared_seeds, _values(self.timed, of)
        return {_key(run, alone=run.seed in shared): value for run, value in values if not math.isnan(value)}

    @cached_property
    def _shared_seeds(self) -> set[int | None]:
        """Seeds of more than one timed run."""
        return {seed for seed, count in Counter(run.seed for run in self.timed).items() if count > 1}

    def results(self, of: Quantity) -> dict[Hashable, float]:
        """Return key that pairs a run with others -> a result of it that measuring does not disturb.

        Runs of one seed are one result, their median: all of them train the same.
        """
        by_key: dict[Hashable, list[float]] = defaultdict(list)
        for run, value in _values(self.finished, of):
            if not math.isnan(value):
                by_key[_key(run)].append(value)
        return {key: median(values) for key, values in by_key.items()}


def _values(runs: Sequence[RunRow], of: Quantity) -> Iterator[tuple[RunRow, float]]:
    value_of = attrgetter(of) if isinstance(of, str) else of
    return ((run, float(value_of(run))) for run in runs)


def _key(run: RunRow, *, alone: bool = False) -> Hashable:
    return str(run.folder) if alone or run.seed is None else int(run.seed)


def cells_of(runs: pd.DataFrame, *, without: Sequence[str] = (), also: Sequence[str] = ()) -> list[Cell]:
    """Group the table of runs by settings, in the order in which they come.

    Args:
        runs: the table, or some of its rows.
        without: columns of settings that may differ within a cell.
        also: further columns that may not.
    """
    return _grouped(runs, without, also) if without or also else _by_all_settings(runs)


@once_per_frame
def _by_all_settings(runs: pd.DataFrame) -> list[Cell]:
    return _grouped(runs, (), ())


def _grouped(runs: pd.DataFrame, without: Sequence[str], also: Sequence[str]) -> list[Cell]:
    columns = [*(name for name in SETTING_COLUMNS if name not in without), *also]
    # Whole numbers in place of values: thousands of runs are grouped in a tenth of the time.
    codes = np.array([pd.factorize(runs[name], use_na_sentinel=False)[0] for name in columns])
    groups: dict[bytes, list[RunRow]] = defaultdict(list)
    for row, run in zip(codes.T, runs_in(runs), strict=True):
        groups[row.tobytes()].append(run)
    return with_words([Cell(_settings(of_cell[0], columns), of_cell) for of_cell in groups.values()])


def _settings(first: RunRow, columns: Sequence[str]) -> Settings:
    values = {name: getattr(first, name) for name in columns}
    if document := values.pop("published_in", None):
        values["origin"] = f"{document}, {values['origin']}"
    absent = {name for name, value in values.items() if isinstance(value, float) and math.isnan(value)}
    return {name.replace("_", " "): value for name, value in values.items() if name not in absent}


def with_words(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells, each with what distinguishes it from others of its model, data set and np."""
    neighbors: dict[Hashable, list[Cell]] = defaultdict(list)
    for cell in cells:
        neighbors[_core(cell)].append(cell)
    varying = {core: _varying([cell.asked for cell in near]) for core, near in neighbors.items()}
    named = [replace(cell, words=_words(cell, varying[_core(cell)])) for cell in cells]
    alike: dict[str, list[Cell]] = defaultdict(list)
    for cell in named:
        alike[cell.name].append(cell)
    return [cell if len(alike[cell.name]) == 1 else _told_apart(cell, alike[cell.name]) for cell in named]


def _told_apart(cell: Cell, alike: Sequence[Cell]) -> Cell:
    """Return a cell whose words also say what it lacks and what it is tuned to, where nothing else keeps it apart."""
    recorded = dict.fromkeys(name for one in alike for name in one.settings)
    gaps = [f"{name} {NOT_RECORDED}" for name in recorded if name not in cell.settings]
    varying = _varying([one.settings for one in alike]) if cell.is_tuned else []
    varying += [IN_FORCE] if len({one.settings.get(IN_FORCE) for one in alike}) > 1 else []
    tuned_to = [_word(name, cell.settings[name]) for name in varying if name in cell.settings]
    return replace(cell, words=", ".join(part for part in (*gaps, cell.words, *tuned_to) if part))


def _core(cell: Cell) -> Hashable:
    return tuple(cell.settings.get(name) for name in _CORE[1:])


def _varying(settings: Sequence[Settings]) -> list[str]:
    names = sorted({name: None for one in settings for name in one}, key=lambda name: name == "origin")
    # Settings that a source does not have at all, as published results, are no difference: the origin shows them.
    # What was in force follows from oneDNN's setting, the framework and the machine.
    return [
        name
        for name in names
        if name not in (*_CORE, IN_FORCE) and len({one[name] for one in settings if name in one}) > 1
    ]


def _words(cell: Cell, names: Sequence[str]) -> str:
    names = list(dict.fromkeys((*names, TUNED))) if cell.is_tuned else names
    words = (
        strategy_label(cell.first.record.config) if name in STRATEGY_SETTINGS else _word(name, cell.settings[name])
        for name in names
        if name in cell.settings
    )
    return ", ".join(dict.fromkeys(words))  # a strategy is one word, whichever of its options differ


def _word(name: str, value: Hashable) -> str:
    if value is None or value is False:
        return f"no {name}"
    if value is True:
        return name
    if (name, value) == ("onednn", "framework"):
        return f"{name} {AS_INSTALLED}"
    return str(value) if name in _BY_VALUE else f"{name} {value}"


def differing(first: Cell, second: Cell) -> list[str]:
    """Return, in words, the settings that differ, the framework aside; where it is tuned, its settings of speed too.

    oneDNN is left out: it makes no other experiment.
    """
    each_its_own = first.framework != second.framework and first.is_tuned and second.is_tuned
    sides = [cell.asked if each_its_own else cell.settings for cell in (first, second)]
    values = {name: [side.get(name, NOT_RECORDED) for side in sides] for name in dict.fromkeys((*sides[0], *sides[1]))}
    return [
        f"{name}: {one} and {other}"
        for name, (one, other) in values.items()
        if name not in ("framework", SERIES, *_ONEDNN) and one != other
    ]
