"""Plots of a search: the best score so far, importance, parallel coordinates, and equal points in both frameworks."""

import math
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis.output.finding import Plot
from analysis.output.plots import IDEAL, framework_style, label_rows, legend_below
from analysis.output.tables import Table
from analysis.questions.hyperparameters.searches import Search, best_share, importances
from analysis.runs.labels import framework_label
from common.run_folder.search_record import TrialRecord, Value

_COLORS = "cividis"  # for readers with color blindness, and ordered by lightness for print


def plots_of(search: Search) -> list[Plot]:
    """Return the plots of a search that has finished trials."""
    drawn = [plot_progress(search), plot_importance(search), plot_coordinates(search), plot_pairs(search)]
    return [plot for plot in drawn if plot is not None]


def plot_progress(search: Search) -> Plot | None:
    """Draw the best score so far against the number of trials, the time that they took, and the clock."""
    progress = {name: search.progress(name) for name in search.frameworks if search.finished(name)}
    if not progress:
        return None
    figure = Figure(figsize=(11.0, 3.8))
    panels = figure.subplots(1, 3, sharey=True)
    rows: list[list[Any]] = []
    for name, points in progress.items():
        style = framework_style(name)
        rows += [[framework_label(name), *point] for point in points]
        for ax, place in zip(panels, (0, 1, 2), strict=True):
            ax.step(
                [point[place] for point in points], [point.best for point in points], where="post", markersize=3.5,
                color=style["color"], linestyle=style["linestyle"], marker=style["marker"], label=style["label"],
            )  # fmt: skip
    panels[0].set_xlabel("trials")
    panels[0].xaxis.set_major_locator(MaxNLocator(integer=True))
    panels[1].set_xlabel("seconds of its trials, added up")
    panels[2].set_xlabel("seconds since the search began")
    for ax in panels[1:]:
        ax.set_xlim(left=0)
    panels[0].set_ylabel(f"best so far: {search.axis_label}", wrap=True)
    legend_below(figure)
    n = ", ".join(f"n = {len(points)} {framework_label(name)}" for name, points in progress.items())
    figure.suptitle(f"Search {search.name}: best score so far, {search.record.sampler} points\n{n}")
    headings = ["framework", "trials", "seconds of its trials", "seconds since the search began", "best score so far"]
    table = Table("Best score so far", headings, rows, dict.fromkeys(headings[2:4], ".6g"))
    return Plot("hyperparameters-search", figure, table)


def plot_importance(search: Search) -> Plot | None:
    """Draw the importance of each setting, a bar for each framework; None with too few trials."""
    found = {name: values for name in search.frameworks if (values := importances(search, name))}
    if not found:
        return None
    settings = sorted(search.record.space, key=lambda one: -sum(values.get(one, 0.0) for values in found.values()))
    figure = Figure(figsize=(7.0, 1.6 + 0.5 * len(settings)))
    ax = figure.subplots()
    height = 0.8 / len(found)
    for number, (name, values) in enumerate(found.items()):
        places = np.arange(len(settings)) + (number - (len(found) - 1) / 2) * height
        style = framework_style(name)
        lengths = [100 * values.get(one, 0.0) for one in settings]
        ax.barh(places, lengths, height=0.9 * height, color=style["color"], label=style["label"])
    label_rows(ax, settings)
    ax.set_axisbelow(True)
    ax.set_xlabel("importance, % of all settings")
    legend_below(figure)
    share = best_share(max(len(search.finished(name)) for name in found))
    n = ", ".join(f"n = {len(search.finished(name))} {framework_label(name)}" for name in found)
    figure.suptitle(
        f"Search {search.name}: what the best {100 * share:.0f} % of trials owe to each setting\nPED-ANOVA, {n}"
    )
    rows: list[list[Any]] = [
        [framework_label(name), one, 100 * values.get(one, 0.0)] for name, values in found.items() for one in settings
    ]
    table = Table("Importance", ["framework", "setting", "importance, %"], rows, {"importance, %": ".1f"})
    return Plot("hyperparameters-importance", figure, table)


def plot_coordinates(search: Search) -> Plot | None:
    """Draw each finished trial as a line over its settings, colored by its score: a panel for each framework."""
    shown = {name: _with_scores(search, name) for name in search.frameworks}
    shown = {name: trials for name, trials in shown.items() if trials}
    if not shown:
        return None
    settings = list(search.record.space)
    scores = [search.shown(trial.score) for trials in shown.values() for trial in trials]
    # Of the worst quarter all have one color: one bad score would leave all others another.
    ordered = np.sort(scores)
    low, high = float(np.quantile(ordered, 0.25)), float(ordered[-1])
    if not search.metric.higher_is_better:
        low, high = float(ordered[0]), float(np.quantile(ordered, 0.75))
    norm = Normalize(low, high if high > low else low + 1e-9, clip=True)
    colors = matplotlib.colormaps[_COLORS if search.metric.higher_is_better else f"{_COLORS}_r"]
    figure = Figure(figsize=(2.0 + 1.5 * len(settings), 1.4 + 2.9 * len(shown)))
    panels = figure.subplots(len(shown), 1, squeeze=False)[:, 0]
    for ax, (name, trials) in zip(panels, shown.items(), strict=True):
        for trial in reversed(trials):  # the best last, on top
            heights = [_height(search, one, trial.params[one]) for one in settings]
            ax.plot(range(len(settings)), heights, color=colors(norm(search.shown(trial.score))), linewidth=1.3,
                    marker="o", markersize=3)  # fmt: skip
        _label_axes(ax, search, settings)
        ax.set_title(f"{framework_label(name)}, n = {len(trials)}")
    bar = figure.colorbar(
        ScalarMappable(norm, colors), ax=list(panels), extend="min" if search.metric.higher_is_better else "max"
    )
    bar.set_label(search.axis_label)
    figure.suptitle(f"Search {search.name}: settings of each trial and its score")
    rows = [
        [framework_label(name), trial.run, search.shown(trial.score), *map(_for_table, trial.params.values())]
        for name, trials in shown.items()
        for trial in trials
    ]
    headings = ["framework", "run", "score", *settings]
    return Plot("hyperparameters-coordinates", figure, Table("Trials", headings, rows, {"score": ".6g"}))


def plot_pairs(search: Search) -> Plot | None:
    """Draw the scores of both frameworks at each point that both were given; None without such points."""
    both = search.points_of_both()
    if not both:
        return None
    torch, keras = (search.by_point(name) for name in ("torch", "keras"))
    figure = Figure(figsize=(4.8, 4.8))
    ax = figure.subplots()
    values = [*(torch[point] for point in both), *(keras[point] for point in both)]
    ends = [min(values), max(values)]
    ax.plot(ends, ends, label="equal", **IDEAL)
    ax.plot([torch[point] for point in both], [keras[point] for point in both], linestyle="", marker="o",
            color="#000000", alpha=0.6, markersize=4.5, label="a point of the search")  # fmt: skip
    ax.set_aspect("equal", adjustable="datalim")
    ax.set_xlabel(f"PyTorch: {search.axis_label}")
    ax.set_ylabel(f"Keras: {search.axis_label}")
    legend_below(figure)
    figure.suptitle(f"Search {search.name}: the same points in both frameworks\nn = {len(both)}")
    rows = [[point, torch[point], keras[point]] for point in both]
    return Plot("hyperparameters-pairs", figure, Table("Scores", ["point", "PyTorch", "Keras"], rows, {}))


def _with_scores(search: Search, framework: str) -> list[TrialRecord]:
    """Return the finished trials whose scores can be drawn, the best first."""
    return [one for one in search.best_first(framework) if math.isfinite(search.shown(one.score))]


def _height(search: Search, name: str, value: Value) -> float:
    """Return where a value is on its axis, from 0 to 1."""
    distribution = search.record.space[name]["attributes"]
    if "choices" in distribution:
        choices = distribution["choices"]
        return float(choices.index(value) / max(1, len(choices) - 1)) if len(choices) > 1 else 0.5
    low, high, number = float(distribution["low"]), float(distribution["high"]), float(value)
    if low == high:
        return 0.5
    if distribution.get("log"):
        return math.log(number / low) / math.log(high / low)
    return (number - low) / (high - low)


def _label_axes(ax: Axes, search: Search, settings: Sequence[str]) -> None:
    """Draw an axis for each setting, with its ends or its choices."""
    ax.set_xticks(range(len(settings)), [_axis_name(search, one) for one in settings])
    ax.set_xlim(-0.25, len(settings) - 0.6)
    ax.set_ylim(-0.06, 1.06)
    ax.set_yticks([])
    ax.grid(visible=False)
    ax.spines["left"].set_visible(False)
    for place, name in enumerate(settings):
        ax.axvline(place, color="#999999", linewidth=0.8, zorder=0)
        distribution = search.record.space[name]["attributes"]
        values = distribution.get("choices") or [distribution["low"], distribution["high"]]
        for value in dict.fromkeys(values):
            text = f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
            ax.text(place + 0.04, _height(search, name, value), text, fontsize=7, va="center",
                    bbox={"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 0.8})  # fmt: skip


def _axis_name(search: Search, name: str) -> str:
    return f"{name}\n(logarithmic)" if search.record.space[name]["attributes"].get("log") else name


def _for_table(value: Value) -> Any:
    return str(value).lower() if isinstance(value, bool) else value
