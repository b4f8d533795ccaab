"""Runs of the same settings put together: a cell is a row of a table, its runs are the points of a plot."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from analysis.runs.labels import framework_label
from analysis.runs.reading import StudiedRun
from analysis.runs.settings import SERIES, Settings, settings_of

# What has a column of its own, or tells nothing that another setting does not.
_CORE = ("framework", "model", "data set", "np")


@dataclass(frozen=True)
class Cell:
    """Runs that differ in nothing but their seed, or not even in that.

    Attributes:
        settings: what they have in common, by names for people.
        runs: at least one, in the order in which they were read.
        words: the settings that tell the cell from others of the same framework, model, data set and np.
    """

    settings: Settings
    runs: list[StudiedRun]
    words: str = ""

    @property
    def framework(self) -> str:
        """Framework of all of its runs."""
        return self.runs[0].framework

    @property
    def name(self) -> str:
        """Framework and label."""
        return f"{framework_label(self.framework)}, {self.label}"

    @property
    def label(self) -> str:
        """Model, data set, ranks, and what tells it from others; the framework aside."""
        first = self.runs[0]
        ranks = f"np {first.ranks}" if first.ranks else ""
        origin = first.origin if first.origin == "published" and not self.words.endswith(first.origin) else ""
        return ", ".join(part for part in (first.model, first.dataset, ranks, self.words, origin) if part)

    @cached_property
    def timed(self) -> list[StudiedRun]:
        """Those of its runs whose times may be compared."""
        return [run for run in self.runs if run.timed]

    @cached_property
    def finished(self) -> list[StudiedRun]:
        """Those of its runs whose accuracies may be compared: metered and profiled ones train the same."""
        return [run for run in self.runs if run.state == "finished"]

    def seconds(self, of: Callable[[StudiedRun], float]) -> dict[Hashable, float]:
        """Return what pairs a run with others -> a time of it, or another figure that measuring disturbs.

        A seed that several runs have pairs nothing: each of them stands for itself.
        """
        seeds = Counter(run.seed for run in self.timed)
        return {
            str(run.folder) if run.seed is None or seeds[run.seed] > 1 else run.seed: value
            for run in self.timed
            if not math.isnan(value := of(run))
        }

    def results(self, of: Callable[[StudiedRun], float]) -> dict[Hashable, float]:
        """Return what pairs a run with others -> a result of it that measuring leaves alone.

        Runs of one seed are one result, their median: all of them train the same.
        """
        values: dict[Hashable, list[float]] = defaultdict(list)
        for run in self.finished:
            if not math.isnan(value := of(run)):
                values[str(run.folder) if run.seed is None else run.seed].append(value)
        return {key: median(of_seed) for key, of_seed in values.items()}


def cells_of(runs: Iterable[StudiedRun]) -> list[Cell]:
    """Put runs of the same settings together, in the order in which they come."""
    groups: dict[tuple[Hashable, ...], list[StudiedRun]] = defaultdict(list)
    names: dict[tuple[Hashable, ...], Settings] = {}
    for run in runs:
        settings = settings_of(run)
        key = tuple(settings.items())
        groups[key].append(run)
        names[key] = settings
    return with_words([Cell(names[key], of_cell) for key, of_cell in groups.items()])


def with_words(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells, each with what tells it from others of its model, data set and np."""
    neighbours: dict[Hashable, list[Cell]] = defaultdict(list)
    for cell in cells:
        neighbours[_place(cell)].append(cell)
    varying = {place: _varying([cell.settings for cell in near]) for place, near in neighbours.items()}
    words = [
        ", ".join(_word(name, cell.settings[name]) for name in varying[_place(cell)] if name in cell.settings)
        for cell in cells
    ]
    named = [Cell(cell.settings, cell.runs, of_cell) for cell, of_cell in zip(cells, words, strict=True)]
    alike: dict[str, list[Cell]] = defaultdict(list)
    for cell in named:
        alike[cell.name].append(cell)
    return [cell if len(alike[cell.name]) == 1 else _with_gaps(cell, alike[cell.name]) for cell in named]


def _with_gaps(cell: Cell, alike: Sequence[Cell]) -> Cell:
    """Return a cell with what it does not tell in its words, where nothing else keeps it apart from others."""
    told = dict.fromkeys(name for one in alike for name in one.settings)
    gaps = [f"{name} {_MISSING}" for name in told if name not in cell.settings]
    return Cell(cell.settings, cell.runs, ", ".join(part for part in (*gaps, cell.words) if part))


def _place(cell: Cell) -> Hashable:
    return tuple(cell.settings.get(name) for name in _CORE[1:])


def _varying(settings: Sequence[Settings]) -> list[str]:
    names = sorted({name: None for one in settings for name in one}, key=lambda name: name == "origin")
    # Settings that a source does not have at all, as published results, are no difference: the origin tells them apart.
    return [name for name in names if name not in _CORE and len({one[name] for one in settings if name in one}) > 1]


_MISSING = "not recorded"


def _word(name: str, value: Hashable) -> str:
    if value is None or value is False:
        return f"no {name}"
    if value is True:
        return name
    return str(value) if name in ("device", "site", "origin", "machine", "data", SERIES) else f"{name} {value}"


def differing(first: Mapping[str, Hashable], second: Mapping[str, Hashable]) -> list[str]:
    """Return, in words, the settings that differ, the framework aside."""
    return [
        f"{name}: {first.get(name, _MISSING)} and {second.get(name, _MISSING)}"
        for name in dict.fromkeys((*first, *second))
        if name not in ("framework", SERIES) and first.get(name, _MISSING) != second.get(name, _MISSING)
    ]
