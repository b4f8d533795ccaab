"""What starting the ranks costs: the queue, the launcher, start-up; and whether training itself takes longer by it."""

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from analysis.output.finding import Plot
from analysis.output.plots import (
    COLORS,
    draw_stacks,
    label_rows,
    legend_below,
    n_words,
    spread_out,
    wrapped,
)
from analysis.output.tables import Table, shown_interval
from analysis.questions.clouds.sites import SiteComparison, times_of
from analysis.runs.cells import Cell
from analysis.runs.labels import framework_label
from analysis.runs.table import RunRow
from analysis.stats.inference import ratio
from common.distributed.console import counted
from common.run_folder.environment import Environment
from common.run_folder.records import Totals, World

# Part of the time from the command, or from submission, until training ends -> column of the table of runs.
PARTS = {
    "queue": "queue_seconds",
    "launch": "launch_seconds",
    "start-up": "startup_seconds",
    "training": "training_seconds",
}
NOTE = (
    "queue: from submission until the job's script started; launch: from the command that starts the ranks until "
    "rank 0's process; start-up: from there until its first update, including imports and building the model; sum: "
    "of these and of training"
)
_SUM = "sum"
NEAR = 0.1  # medians that differ by a smaller share are not told apart


class LaunchMethod(NamedTuple):
    """How ranks were started; `launcher` "none": one process, without a launcher."""

    site: str
    launcher: str
    controller: str
    hosts: int

    @property
    def words(self) -> str:
        """In words, such as "hosts by horovodrun with gloo over 2 hosts"."""
        controller = f" with {self.controller}" if self.controller != "none" else ""
        by = "without launcher" if self.launcher == "none" else f"by {self.launcher}{controller}"
        return f"{self.site} {by}" + (f" over {self.hosts} hosts" if self.hosts > 1 else "")


Startups = Mapping[LaunchMethod, pd.DataFrame]


def startups_of(cells: Sequence[Cell]) -> Startups:
    """Group the timed runs whose launch was timed by how they were launched; `sum` is a column of theirs."""
    timed = [run for cell in cells for run in cell.timed if not math.isnan(run.launch_seconds)]
    if not timed:
        return {}
    runs = pd.DataFrame(timed).set_index("Index").assign(sum=[_sum(run) for run in timed])
    methods = pd.Series([_method(run) for run in timed], index=runs.index, dtype=object)
    return {LaunchMethod(*method): of_method for method, of_method in runs.groupby(methods, sort=False)}


def _method(run: RunRow) -> LaunchMethod:
    world = run.record.world
    assert isinstance(world, World), "a measured run has ranks"
    return LaunchMethod(run.site, world.launcher or "not recorded", world.controller, len(set(world.hosts)))


def _sum(run: RunRow) -> float:
    """Return the sum of all parts in seconds; NaN where one is not known. Without a queue, the wait in it is 0."""
    totals = run.record.totals
    no_queue = isinstance(totals, Totals) and totals.queue_seconds is None
    return sum(getattr(run, name) for part, name in PARTS.items() if not (part == "queue" and no_queue))


def _by_framework(startups: Startups) -> dict[tuple[LaunchMethod, str], pd.DataFrame]:
    return {
        (method, framework): of_framework
        for method, runs in startups.items()
        for framework, of_framework in runs.groupby("framework", sort=False)
    }


def startup_table(startups: Startups) -> Table:
    """Return what each way to launch costs, per framework, as they start up differently."""
    columns = {**PARTS, _SUM: _SUM}
    headings = ["site", "launcher", "controller", "hosts", "framework", "np", "n"]
    headings += [title for part in columns for title in (f"{part}, s", f"range of {part}")]
    table_rows: list[list[Any]] = []
    for (method, framework), runs in _by_framework(startups).items():
        sizes = ", ".join(str(size) for size in sorted(runs["np"].unique()))
        row: list[Any] = [*method, framework_label(framework), sizes, len(runs)]
        for column in columns.values():
            row += [_median(runs[column]), _range(runs[column])]
        table_rows.append(row)
    formats = {"hosts": "d", "n": "d"} | {f"{part}, s": ".2f" for part in columns}
    return Table("What starting the ranks costs (medians; range of all runs)", headings, table_rows, formats)


def _median(values: pd.Series) -> float | None:
    return None if values.isna().all() else float(values.median())


def _range(values: pd.Series) -> str | None:
    return None if values.isna().all() else f"{values.min():.2f} to {values.max():.2f}"


def startup_statements(startups: Startups) -> list[str]:
    """Return in which way starting takes shortest and longest; nothing without two ways that differ."""
    if len(startups) < 2:
        return []
    seconds = {
        method.words: sum(_median(runs[PARTS[part]]) or 0.0 for part in ("launch", "start-up"))
        for method, runs in startups.items()
    }
    shortest, *_, longest = sorted(seconds, key=lambda words: seconds[words])
    if seconds[longest] < (1 + NEAR) * seconds[shortest]:
        return []
    return [
        f"Fastest start: {seconds[shortest]:.1f} s, on {shortest}. "
        f"Slowest start: {seconds[longest]:.1f} s, on {longest}."
    ]


def training_statements(compared: Sequence[SiteComparison]) -> list[str]:
    """Return in sentences whether training takes longer on the same machine when started in another way, if it does.

    Experiments are pooled, launch methods are not: the key that pairs runs is experiment and seed.
    """
    sides: dict[tuple[str, LaunchMethod, LaunchMethod], tuple[dict[Hashable, float], dict[Hashable, float]]] = {}
    for one in compared:
        for name, cell in one.cells.items():
            base = one.base_cell(name)
            machine = base and _shared_machine(cell, base)
            if base and machine and cell.first.site != base.first.site:
                key = machine, _method(cell.first), _method(base.first)
                values, others = sides.setdefault(key, ({}, {}))
                values.update({(one.label, pair): seconds for pair, seconds in times_of(cell).items()})
                others.update({(one.label, pair): seconds for pair, seconds in times_of(base).items()})
    methods = Counter(method.site for method in {method for _, *both in sides for method in both})
    statements = []
    for (machine, *both), (values, others) in sides.items():
        method, base_method = (one.words if methods[one.site] > 1 else one.site for one in both)
        statements.append(_slower(machine, method, base_method, values, others))
    return [words for words in statements if words]


def _slower(
    machine: str, method: str, base: str, values: Mapping[Hashable, float], others: Mapping[Hashable, float]
) -> str:
    pairs = sorted(values.keys() & others.keys(), key=str)
    found = ratio({pair: values[pair] for pair in pairs}, {pair: others[pair] for pair in pairs})
    if found is None:
        return ""
    # Times of different experiments are not a sample of one population: only their pairs are compared.
    paired = found.method == "paired by seed"
    times = found.estimate if paired else math.exp(fmean(math.log(values[one] / others[one]) for one in pairs))
    interval = shown_interval(found.interval, ".2f") if paired else None
    shown = f"interval {interval}" if interval else f"{counted(len(pairs), 'pair')}, too few for an interval"
    return f"On {machine} training takes {times:.2f} times as long on {method} as on {base} ({shown})."


def _shared_machine(cell: Cell, base: Cell) -> str | None:
    """Return what two cells share: "the same machine" by its name, or one kind of machine; None: neither is shown."""
    runs = [*cell.runs, *base.runs]
    kinds = {
        (environment.processor, environment.cores, environment.memory_bytes, str(run.threads), run.device)
        if isinstance(environment := run.record.environment, Environment)
        else None
        for run in runs
    }
    if None in kinds or len(kinds) > 1:
        return None
    hosts = {tuple(sorted(set(run.record.world.hosts))) for run in runs if isinstance(run.record.world, World)}
    return "the same machine" if len(hosts) == 1 else "one kind of machine"


_LOOKS = {
    part: {"color": color, "hatch": hatch, "edgecolor": "white"}
    for part, color, hatch in zip(PARTS, COLORS, ("..", "//", "\\\\", ""), strict=False)
}


def startup_plots(startups: Startups) -> list[Plot]:
    """Draw the parts of the time, a bar for each launch method and framework; nothing without two of them."""
    bars = _by_framework(startups)
    if len(bars) < 2:
        return []
    labels = [wrapped(f"{way.words}\n{framework_label(framework)}", width=46) for way, framework in bars]
    lines = sum(label.count("\n") + 1 for label in labels)
    figure = Figure(figsize=(8.0, 1.6 + 0.22 * lines + 0.1 * len(bars)))
    ax = figure.subplots()
    means = [{part: runs[column].mean() for part, column in PARTS.items()} for runs in bars.values()]
    known = [{part: mean for part, mean in parts.items() if not math.isnan(mean)} for parts in means]
    draw_stacks(ax, known, _LOOKS)
    for place, runs in enumerate(bars.values()):
        sums = runs[_SUM].dropna()
        points = spread_out(place, sums, width=0.14)
        ax.plot(sums, points, "o", color="black", markersize=3.5, markerfacecolor="white", label="run")
    label_rows(ax, labels)
    ax.set_xlim(left=0)
    ax.set_xlabel("seconds (bars: means; points: runs)")
    legend_below(figure, ncols=5)
    figure.suptitle(f"Where the time goes by launch method, {n_words(map(len, bars.values()))} runs each")
    data = [
        [method.words, framework, name, part, value]
        for (method, framework), runs in bars.items()
        for part, column in PARTS.items()
        for name, value in zip(runs["name"], runs[column], strict=True)
        if not math.isnan(value)
    ]
    headings = ["launch method", "framework", "run", "part", "seconds"]
    return [Plot("clouds-startup", figure, Table("Time by launch method", headings, data, {"seconds": ".6g"}))]
