"""The figure of projected against measured times."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, StrMethodFormatter

from analysis.output.finding import Plot
from analysis.output.plots import IDEAL, MARKERS, framework_style, legend_below
from analysis.output.tables import Cell, Table
from analysis.questions.projection.errors import BAND, Projected
from analysis.runs.labels import framework_label

_MS = 1e3


def plot_errors(projected: Sequence[Projected], *, machine: str) -> Plot:
    """Draw each step, projected by a fit without its model, against its measured time."""
    markers = dict(zip(dict.fromkeys(one.step.model for one in projected), MARKERS, strict=False))
    seconds = np.array([[one.step.undisturbed, one.seconds] for one in projected])
    ends = _MS * np.array([seconds.min() / 1.5, seconds.max() * 1.5])
    figure = Figure(figsize=(6.0, 6.2))
    ax = figure.subplots()
    ax.fill_between(ends, ends * (1 - BAND), ends * (1 + BAND), color="#000000", alpha=0.08, linewidth=0,
                    label=f"within {100 * BAND:.0f} %")  # fmt: skip
    ax.plot(ends, ends, **IDEAL, label="projected = measured")
    for one in projected:
        color = framework_style(one.step.framework)["color"]
        fill = color if one.step.threads * one.step.ranks == 1 else "white"
        ax.plot(_MS * one.step.undisturbed, _MS * one.seconds, linestyle="", marker=markers[one.step.model],
                markersize=5.5, color=color, markerfacecolor=fill, alpha=0.85)  # fmt: skip
    for model, marker in markers.items():
        ax.plot([], [], linestyle="", marker=marker, color="#555555", label=model)
    for framework in dict.fromkeys(one.step.framework for one in projected):
        style = framework_style(framework)
        ax.plot([], [], linestyle="", marker="s", markersize=8, color=style["color"], label=style["label"])
    ax.plot([], [], linestyle="", marker="o", color="#555555", markerfacecolor="white", label="2 threads or ranks")
    for axis, name in ((ax.xaxis, "x"), (ax.yaxis, "y")):
        getattr(ax, f"set_{name}scale")("log")
        getattr(ax, f"set_{name}lim")(*ends)
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.set_minor_formatter(NullFormatter())
    ax.set_aspect("equal")
    ax.set_xlabel("measured step, ms (logarithmic)")
    ax.set_ylabel("projected step, ms (logarithmic)")
    figure.suptitle(f"Steps projected by fits without their model\n{machine}, {len(projected)} cells", fontsize=10)
    legend_below(figure, ncols=3)
    return Plot("projection", figure, _data(projected))


def _data(projected: Sequence[Projected]) -> Table:
    headings = ["framework", "model", "batch", "threads", "ranks", "measured, s", "projected, s", "error, %"]
    rows: list[list[Cell]] = [
        [framework_label(one.step.framework), one.step.model, one.step.batch, one.step.threads, one.step.ranks,
         one.step.undisturbed, one.seconds, 100 * one.error]
        for one in projected
    ]  # fmt: skip
    formats = dict.fromkeys(headings[2:5], "d") | dict.fromkeys(headings[5:7], ".4g") | {headings[7]: "+.1f"}
    return Table("Projected against measured steps", headings, rows, formats)
