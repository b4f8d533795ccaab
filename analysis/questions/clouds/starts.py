"""What a way of starting costs: the queue, the launcher, start-up; and whether training itself takes longer by it."""

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from analysis.output.finding import Plot
from analysis.output.plots import COLORS, SETTINGS, framework_style, n_words, wrapped
from analysis.output.tables import Cell as TableCell
from analysis.output.tables import Table, shown_interval
from analysis.questions.clouds.places import Experiment, times_of
from analysis.runs.cells import Cell
from analysis.runs.reading import StudiedRun
from analysis.runs.settings import settings_of
from analysis.stats.inference import median_of, ratio
from common.distributed.console import counted
from common.run_folder.environment import Environment
from common.run_folder.records import Totals, World

# Part of the time from the command, or from submission, until training ends -> field of the totals.
PARTS = {
    "queue": "queue_seconds",
    "launch": "launch_seconds",
    "start-up": "startup_seconds",
    "training": "training_seconds",
}
NOTE = (
    "queue: from submission until the job's script began; launch: from the command that starts the ranks until "
    "rank 0's process; start-up: from there until its first update, imports and the making of the model included; sum: "
    "of these and of training"
)


class Way(NamedTuple):
    """How ranks were started; `launcher` "none": one process, without."""

    site: str
    launcher: str
    controller: str
    hosts: int

    @property
    def words(self) -> str:
        """For people, such as "hosts by horovodrun with gloo over 2 hosts"."""
        by = "without launcher" if self.launcher == "none" else f"by {self.launcher} with {self.controller}"
        return f"{self.site} {by}" + (f" over {self.hosts} hosts" if self.hosts > 1 else "")


def ways_of(runs: Sequence[StudiedRun]) -> dict[Way, list[StudiedRun]]:
    """Put together the timed runs that tell how long their launch took, by the way in which they were started."""
    ways: dict[Way, list[StudiedRun]] = defaultdict(list)
    for run in runs:
        world = run.record.world
        if run.timed and isinstance(world, World) and not math.isnan(run.total("launch_seconds")):
            way = Way(run.site, world.launcher or "not recorded", world.controller, len(set(world.hosts)))
            ways[way].append(run)
    return dict(ways)


def _whole(run: StudiedRun) -> float:
    """Return the sum of all parts in seconds; NaN where one is not known. A run without a queue did not wait in one."""
    totals = run.record.totals
    no_queue = isinstance(totals, Totals) and totals.queue_seconds is None
    parts = [name for part, name in PARTS.items() if not (part == "queue" and no_queue)]
    return sum(run.total(name) for name in parts)


def _by_framework(ways: Mapping[Way, Sequence[StudiedRun]]) -> dict[tuple[Way, str], list[StudiedRun]]:
    rows: dict[tuple[Way, str], list[StudiedRun]] = defaultdict(list)
    for way, runs in ways.items():
        for run in runs:
            rows[way, run.framework].append(run)
    return dict(rows)


def starts_tables(ways: Mapping[Way, Sequence[StudiedRun]]) -> list[Table]:
    """Return a table of what each way of starting takes, frameworks apart, as they start up differently; or none."""
    columns = [*PARTS, "sum"]
    headings = ["site", "launcher", "controller", "hosts", "framework", "np", "n"]
    headings += [title for part in columns for title in (f"{part}, s", f"range of {part}")]
    rows: list[list[TableCell]] = []
    for (way, framework), runs in _by_framework(ways).items():
        sizes = ", ".join(str(size) for size in sorted({run.ranks for run in runs}))
        row: list[TableCell] = [*way, framework_style(framework)["label"], sizes, len(runs)]
        for part in columns:
            values = _known([_whole(run) if part == "sum" else run.total(PARTS[part]) for run in runs])
            row += [median_of(values), _range(values)]
        rows.append(row)
    formats = {"hosts": "d", "n": "d"} | {f"{part}, s": ".2f" for part in columns}
    title = "What a way of starting costs (medians; range of all runs)"
    return [Table(title, headings, rows, formats)] if rows else []


def _known(values: Sequence[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)]


def _range(values: Sequence[float]) -> str | None:
    return f"{min(values):.2f} to {max(values):.2f}" if values else None


def starts_words(ways: Mapping[Way, Sequence[StudiedRun]]) -> str:
    """Return in a sentence how long starting takes in each way, from the longest on; nothing without two ways."""
    if len(ways) < 2:
        return ""
    found = []
    for way, runs in ways.items():
        parts = [median_of(_known([run.total(PARTS[part]) for run in runs])) for part in ("launch", "start-up")]
        waits = median_of(_known([run.total("queue_seconds") for run in runs]))
        queue = f" after {waits:.1f} s in the queue" if waits is not None else ""
        launch, startup = (0.0 if value is None else value for value in parts)
        words = f"{launch + startup:.1f} s on {way.words} ({launch:.1f} + {startup:.1f}{queue}, n = {len(runs)})"
        found.append((launch + startup, words))
    words = "; ".join(text for _, text in sorted(found, key=lambda one: -one[0]))
    return f"Starting (launch + start-up, medians) takes {words}."


def training_words(compared: Sequence[Experiment]) -> str:
    """Return in a sentence whether training takes longer by another way of starting on the same machine, if it does.

    All experiments together: what pairs runs is experiment and seed.
    """
    sides: dict[tuple[str, str, str], tuple[dict[Hashable, float], dict[Hashable, float]]] = {}
    for one in compared:
        for name, cell in one.places.items():
            base = one.base_cell(name)
            machine = base and _machine_of_both(cell, base)
            if base and machine and cell.runs[0].site != base.runs[0].site:
                key = machine, cell.runs[0].site, base.runs[0].site
                values, others = sides.setdefault(key, ({}, {}))
                values.update({(one.label, pair): seconds for pair, seconds in times_of(cell).items()})
                others.update({(one.label, pair): seconds for pair, seconds in times_of(base).items()})
    sentences = []
    for (machine, site, base_site), (values, others) in sides.items():
        pairs = sorted(values.keys() & others.keys(), key=str)
        found = ratio({pair: values[pair] for pair in pairs}, {pair: others[pair] for pair in pairs})
        if found:
            # Times of different experiments are no sample of one thing: only their pairs are held against each other.
            paired = found.method == "paired by seed"
            times = found.estimate if paired else math.exp(fmean(math.log(values[one] / others[one]) for one in pairs))
            interval = shown_interval(found.interval, ".2f") if paired else None
            shown = f"95 % interval {interval}" if interval else "too few pairs for an interval"
            sentences.append(
                f"On {machine} training takes {times:.2f} times as long on {site} as on {base_site} ({shown}, "
                f"{counted(len(pairs), 'pair')})."
            )
    return " ".join(sentences)


def _machine_of_both(cell: Cell, base: Cell) -> str | None:
    """Return what two cells share: "the same machine" by its name, or one kind of machine; None: neither is shown."""
    runs = [*cell.runs, *base.runs]
    kinds = {
        (
            environment.processor,
            environment.cores,
            environment.memory_bytes,
            settings_of(run).get("threads"),
            run.device,
        )
        if isinstance(environment := run.record.environment, Environment)
        else None
        for run in runs
    }
    if None in kinds or len(kinds) > 1:
        return None
    hosts = {tuple(sorted(set(run.record.world.hosts))) for run in runs if isinstance(run.record.world, World)}
    return "the same machine" if len(hosts) == 1 else "one kind of machine"


_HATCHES = {"queue": "..", "launch": "//", "start-up": "\\\\", "training": ""}


def starts_plots(ways: Mapping[Way, Sequence[StudiedRun]]) -> list[Plot]:
    """Draw the parts of the time, a bar for each way of starting and framework; nothing without two of them."""
    rows: list[list[TableCell]] = []
    bars = _by_framework(ways)
    if len(bars) < 2:
        return []
    with matplotlib.rc_context(SETTINGS):
        labels = [wrapped(f"{way.words}\n{framework_style(framework)['label']}", width=46) for way, framework in bars]
        lines = sum(label.count("\n") + 1 for label in labels)
        figure = Figure(figsize=(8.0, 1.6 + 0.22 * lines + 0.1 * len(bars)), layout="constrained")
        ax = figure.subplots()
        drawn: dict[str, Any] = {}
        for place, ((way, framework), runs) in enumerate(bars.items()):
            left = 0.0
            for number, (part, field) in enumerate(PARTS.items()):
                values = [run.total(field) for run in runs]
                rows += [[way.words, framework, run.name, part, value]
                         for run, value in zip(runs, values, strict=True) if not math.isnan(value)]  # fmt: skip
                if known := _known(values):
                    look: dict[str, Any] = {
                        "color": COLORS[number],
                        "hatch": _HATCHES[part],
                        "edgecolor": "white",
                        "linewidth": 0.5,
                    }
                    drawn[part] = ax.barh(place, fmean(known), left=left, height=0.6, **look)
                    left += fmean(known)
            sums = _known([_whole(run) for run in runs])
            drawn["run"] = ax.plot(
                sums,
                place + 0.14 * np.sin(np.arange(len(sums)) * 2.4),
                "o",
                color="black",
                markersize=3.5,
                markerfacecolor="white",
            )[0]
        ax.set_yticks(range(len(bars)), labels)
        ax.set_ylim(len(bars) - 0.5, -0.5)
        ax.set_xlim(left=0)
        ax.grid(visible=False, axis="y")
        ax.set_axisbelow(True)
        ax.tick_params(axis="y", length=0)
        ax.set_xlabel("seconds (bars: means; points: runs)")
        names = [name for name in (*PARTS, "run") if name in drawn]
        figure.legend([drawn[name] for name in names], names, loc="outside lower center", ncols=5)
        figure.suptitle(f"Where the time goes by way of starting, {n_words(map(len, bars.values()))} runs each")
    headings = ["way of starting", "framework", "run", "part", "seconds"]
    return [Plot("clouds-starts", figure, Table("Time by way of starting", headings, rows, {"seconds": ".6g"}))]
