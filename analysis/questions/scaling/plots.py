"""Speedup and efficiency over ranks: every run, medians with intervals, the ideal, fits, and what is projected."""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullFormatter, ScalarFormatter, StrMethodFormatter

from analysis.output.finding import Plot, numbered
from analysis.output.plots import (
    IDEAL,
    MOST_DRAWN,
    Row,
    figure_of_rows,
    first_of_words,
    framework_style,
    legend_below,
    look_of_points,
    n_words,
)
from analysis.output.tables import Table
from analysis.questions.scaling.curves import Kind, Point, Study
from analysis.questions.scaling.fits import CurveFit
from analysis.questions.scaling.models import AMDAHL
from analysis.runs.cells import Cell
from analysis.runs.labels import framework_label
from analysis.stats.inference import Effect

_KINDS: tuple[Kind, ...] = ("strong", "weak", "other batch", "as many ranks")
_DODGE = 0.08  # of the axis, in powers of two: series side by side
_WIDEST = 0.8  # of all of them together, so that they stay apart from those of the next power of two
_MOST_SERIES = 12  # of a picture that can still be read
_DASHES = {AMDAHL.name: (0, (6, 2)), "": (0, (3, 1.5, 1, 1.5))}
_PROJECTED = "projection, not measured, with 95 % interval"
_GREY = "#555555"  # of what represents both frameworks
_LOG_RANKS = 4  # most / fewest ranks from which on the axes are powers of two


@dataclass(frozen=True)
class _Series:
    """The points of one study and kind, as they are drawn."""

    study: Study
    kind: Kind
    points: Sequence[Point]
    label: str
    style: dict[str, Any]
    shift: float

    @property
    def base_ranks(self) -> int:
        return self.study.base.first.np


@dataclass(frozen=True)
class _Time:
    """Which of a run's times a figure is about."""

    name: str
    title: str
    column: str
    compared: Callable[[Point], Effect | None]


_TIMES = (
    _Time("scaling", "train + validation + test", "total_seconds", lambda point: point.total),
    _Time("scaling-training", "training alone", "training_seconds", lambda point: point.training),
)


def plots_of(studies: Sequence[Study], fits: Sequence[CurveFit]) -> list[Plot]:
    """Draw the studies of each model and data set, once for the whole time and once for training."""
    groups: dict[Hashable, list[Study]] = defaultdict(list)
    for study in studies:
        run = study.base.first
        groups[run.model, run.data_set, run.image_size, study.other_machine].append(study)
    plots = []
    for of_group in groups.values():
        if of_group[0].other_machine:
            plots += [_plot_machines(of_group, time) for time in _TIMES]
            continue
        found = _series(of_group)
        if not found:  # as many ranks as the base, given by hand
            continue
        series, more = _side_by_side(found), first_of_words(len(found), "curves", most=_MOST_SERIES)
        for time in _TIMES:
            # Models are fitted to training: only there can they be compared with points.
            fitted = [fit for fit in fits if any(fit.study is one.study and fit.kind == one.kind for one in series)]
            drawn = fitted if time.column == "training_seconds" else []
            if any(time.compared(point) for one in series for point in one.points):
                plots.append(_plot(series, drawn, time, more=more))
    return numbered(plots)


def _series(studies: Sequence[Study]) -> list[_Series]:
    found: list[_Series] = []
    for study in studies:
        for kind in _KINDS:
            points = [point for point in study.points if point.kind == kind and point.ranks in study.ranks]
            if points:
                found.append(_Series(study, kind, points, _label(study, points, kind), _style(study, kind), 0.0))
    return found


def _side_by_side(series: Sequence[_Series]) -> list[_Series]:
    """Return the first series of each framework in turn, as many as can be read, with their places."""
    of_framework: dict[str, list[_Series]] = defaultdict(list)
    for one in series:
        of_framework[one.study.base.framework].append(one)
    turns = zip_longest(*of_framework.values())
    first = {id(one) for one in [one for turn in turns for one in turn if one is not None][:_MOST_SERIES]}
    drawn = [one for one in series if id(one) in first]
    apart, middle = min(_DODGE, _WIDEST / len(drawn)), (len(drawn) - 1) / 2
    times = Counter(one.label for one in drawn)
    labels = [f"{one.label}, {one.study.base.words}" if times[one.label] > 1 else one.label for one in drawn]
    return [
        replace(one, label=label, shift=apart * (number - middle))
        for number, (one, label) in enumerate(zip(drawn, labels, strict=True))
    ]


def _label(study: Study, points: Sequence[Point], kind: Kind) -> str:
    run = points[0].cell.first
    batch = {"strong": f", batch {run.global_batch}", "weak": f", {run.global_batch // run.np} per rank"}.get(kind, "")
    published = ", published" if run.origin == "published" else ""
    return f"{framework_label(run.framework)}, {kind}{batch}{published}"


def _style(study: Study, kind: Kind) -> dict[str, Any]:
    style = framework_style(study.base.framework)
    line, fill = ("-", "full") if kind == "strong" else ("--", "left")  # distinguishable without color, too
    return {"color": style["color"], "marker": style["marker"], "linestyle": line, "fillstyle": fill}


def _plot(series: Sequence[_Series], fits: Sequence[CurveFit], time: _Time, *, more: str) -> Plot:
    run = series[0].study.base.first
    n = n_words(len(point.cell.seconds(time.column)) for one in series for point in one.points)
    bases = sorted({one.base_ranks for one in series})
    over = " and ".join(map(str, bases)) + (" rank" if bases == [1] else " ranks")
    figure = Figure(figsize=(9.0, 4.6))
    left, right = figure.subplots(1, 2)
    for ax, per_device in ((left, False), (right, True)):
        _draw_ideal(ax, series, fits, per_device=per_device)
        for one in series:
            _draw_series(ax, one, time, per_device=per_device)
        for found in fits:
            _draw_fit(ax, found, per_device=per_device)
        _draw_axes(ax, series, fits, per_device=per_device)
    legend_below(figure, ncols=3)
    figure.suptitle(
        f"Speedup over {over}, {time.title}: {run.model}, {run.data_set}, {n} runs each{more}\n"
        "all runs, median and 95 % interval; next to a point: accuracy not shown to be the base's",
        fontsize=10,
    )
    return Plot(time.name, figure, _data(series, time))


def _plot_machines(studies: Sequence[Study], time: _Time) -> Plot:
    """Draw how many times as fast as another machine cells are, a row for each."""
    rows: dict[str, list[Row]] = defaultdict(list)
    values: list[list[Any]] = []
    for study in studies:
        base = float(np.median(list(study.base.seconds(time.column).values())))
        label = f"{study.base.first.site}, {study.base.first.device}, np {study.base.first.np}: base"
        for cell, words in ((study.base, label), *((point.cell, point.cell.label) for point in study.points)):
            of_cell, style = cell.seconds(time.column), framework_style(cell.framework)
            speeds = [base / seconds for seconds in of_cell.values()]
            rows[words].append(Row(values=speeds, style=style, published=cell.is_published))
            values += [[cell.framework, words, str(key), one, base / one] for key, one in of_cell.items()]
    run, more = studies[0].base.first, first_of_words(len(rows), "rows")
    drawn = dict(list(rows.items())[:MOST_DRAWN])
    figure = figure_of_rows(
        drawn,
        f"Speed against another machine, {time.title}: {run.model}, {run.data_set}\n"
        f"{n_words(len(row.values) for of_row in drawn.values() for row in of_row)} runs each{more}",
        unit="times as fast as the base",
    )
    (ax,) = figure.axes
    ax.axvline(1.0, **IDEAL)
    if ax.get_xscale() == "log":
        ax.xaxis.set_major_formatter(ScalarFormatter())
    headings = ["framework", "model, data set, np", "run", f"{time.title}, s", "median of the base / this"]
    data = Table(f"Speed, {time.title}", headings, values, {headings[3]: ".6g", headings[4]: ".4g"})
    return Plot(f"{time.name}-machines", figure, data)


def _draw_ideal(ax: Axes, series: Sequence[_Series], fits: Sequence[CurveFit], *, per_device: bool) -> None:
    if per_device:
        ax.axhline(1.0, **IDEAL, label="ideal, by devices")
        return
    ends = [projected.ranks for one in fits for projected in one.projections]
    lines: set[tuple[tuple[int, float], ...]] = set()
    for one in series:
        devices = {one.base_ranks: 1.0} | {point.ranks: point.devices or 1.0 for point in one.points}
        most = max(devices)
        devices |= {end: devices[most] * end / most for end in ends if end > most}
        lines.add(tuple(sorted(devices.items())))
    for line in sorted(lines):
        ax.plot([p for p, _ in line], [value for _, value in line], **IDEAL, label="ideal, by devices", zorder=1)


def _draw_series(ax: Axes, one: _Series, time: _Time, *, per_device: bool) -> None:
    base = np.array(list(one.study.base.seconds(time.column).values()))
    color, x_all, medians = one.style["color"], [one.base_ranks], [1.0]
    cells: list[tuple[Cell, Point | None]] = [(one.study.base, None), *((point.cell, point) for point in one.points)]
    for cell, point in cells:
        devices = point.devices if point else 1.0
        scale = 1 / devices if per_device and devices else 1.0
        values = scale * np.median(base) / np.array(list(cell.seconds(time.column).values()))
        x = cell.first.np * 2**one.shift
        jittered = x * 2 ** (0.012 * np.sin(2.4 * np.arange(len(values))))
        ax.plot(jittered, values, markersize=4, alpha=0.45, **_look(one, cell) | {"linestyle": ""})
        compared = time.compared(point) if point else None
        if point is None or compared is None:
            continue
        x_all.append(cell.first.np)
        medians.append(compared.estimate * scale)
        ax.plot(x, medians[-1], marker="_", markersize=10, markeredgewidth=1.6, color="black", linestyle="", zorder=4)
        if compared.interval:
            low, high = compared.interval.low * scale, compared.interval.high * scale
            ax.plot([x, x], [low, high], color=color, linewidth=2.2, solid_capstyle="butt", zorder=3)
        if not per_device and point.equivalence != "same" and (results := list(cell.results("accuracy").values())):
            # Labels of series side by side are on either side.
            place: dict[str, Any] = {"xytext": (8, -9)} if one.shift >= 0 else {"xytext": (-8, 6), "ha": "right"}
            words = f"{100 * np.median(results):.1f} %"
            ax.annotate(words, (x, medians[-1]), textcoords="offset points", fontsize=7, color=color, **place)
    order = np.argsort(x_all, kind="stable")
    ax.plot(np.array(x_all)[order] * 2**one.shift, np.array(medians)[order], color=color, linewidth=0.8, alpha=0.7,
            linestyle=one.style["linestyle"])  # fmt: skip
    ax.plot([], [], label=one.label, linewidth=0.8, **_look(one, one.points[0].cell))


def _look(one: _Series, cell: Cell) -> dict[str, Any]:
    """Return how a cell's points and their line are drawn."""
    fill = {"fillstyle": "full"} if cell.is_published else {"markerfacecoloralt": "white"}
    return one.style | fill | look_of_points(one.style, published=cell.is_published)


def _draw_fit(ax: Axes, one: CurveFit, *, per_device: bool) -> None:
    base, most = one.study.base.first.np, max(one.ranks)
    color = framework_style(one.study.base.framework)["color"]
    name, dashes = one.fit.model.name, _DASHES.get(one.fit.model.name, _DASHES[""])
    here = one.site == one.study.base.first.site
    ranks = np.geomspace(base, most, 60)
    per = ranks / base if per_device else 1.0
    fitted = one.fit.speedup(ranks.tolist(), base=base) / per
    ax.plot(ranks, fitted, color=color, linestyle=dashes, linewidth=1.0, alpha=0.8)
    ax.plot([], [], color=_GREY, linestyle=dashes, linewidth=1.0, label=f"fit: {name}, {one.kind}")
    if not one.projections or not here:
        return
    ends = [found for found in one.projections if found.ranks > most]
    x = np.array([most, *(found.ranks for found in ends)])
    per = x / base if per_device else np.ones(len(x))
    start = float(one.fit.speedup([most], base=base)[0])
    columns = ("low", "high")
    low, high = (
        np.array([start, *(getattr(found.speedup_interval, edge) for found in ends)]) / per for edge in columns
    )
    middle = np.array([start, *(found.speedup for found in ends)]) / per
    ax.fill_between(x, low, high, color=color, alpha=0.12, linewidth=0)
    ax.fill_between([], [], [], color=_GREY, alpha=0.2, linewidth=0, label=_PROJECTED)
    ax.plot(x, middle, color=color, linestyle=dashes, linewidth=0.8, alpha=0.5)


def _draw_axes(ax: Axes, series: Sequence[_Series], fits: Sequence[CurveFit], *, per_device: bool) -> None:
    ticks = {one.base_ranks for one in series}
    ticks |= {point.ranks for one in series for point in one.points}
    measured = max(ticks)
    ticks |= {found.ranks for one in fits for found in one.projections if one.site == series[0].study.base.first.site}
    wide = max(ticks) >= _LOG_RANKS * min(ticks)
    if wide:
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter(ScalarFormatter())
        ax.xaxis.set_minor_formatter(NullFormatter())
    ax.xaxis.set_major_locator(FixedLocator(sorted(ticks)))
    beside = 1.05 * 2 ** max(abs(one.shift) for one in series)
    ax.set_xlim(min(ticks) / max(1.15, beside), max(ticks) * max(1.25, beside))
    ax.set_xlabel("ranks" + (" (logarithmic)" if wide else ""))
    ax.set_ylabel("efficiency: speedup / devices" if per_device else "speedup T_base / T")
    if max(ticks) > measured:
        ax.axvline(measured * 1.1, color=_GREY, linewidth=0.6)
        ax.annotate("projection →", (measured * 1.12, 0.02), xycoords=("data", "axes fraction"), fontsize=7)
    if per_device:
        ax.set_ylim(bottom=0)
        return
    if wide:
        ax.set_yscale("log", base=2)
        ax.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        ax.yaxis.set_minor_formatter(NullFormatter())
        ax.set_ylabel(ax.get_ylabel() + " (logarithmic)")
    else:
        ax.set_ylim(bottom=0)


def _data(series: Sequence[_Series], time: _Time) -> Table:
    unit = f"{time.title}, s"
    rows: list[list[Any]] = []
    for one in series:
        base = float(np.median(list(one.study.base.seconds(time.column).values())))
        cells = [one.study.base, *(point.cell for point in one.points)]
        for cell in cells:
            for key, seconds in cell.seconds(time.column).items():
                rows.append([one.label, cell.label, cell.first.np, str(key), seconds, base / seconds])
    headings = ["series", "model, data set, np", "np", "run", unit, "median of the base / this"]
    return Table(f"Speedup, {time.title}", headings, rows, {unit: ".6g", headings[-1]: ".4g"})
