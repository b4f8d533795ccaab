"""The plot of cost against time to a target, projected for every machine of the table."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from analysis.clouds.offers import Offer
from analysis.clouds.workloads import TO_TARGET
from analysis.output.finding import Plot
from analysis.output.plots import COLORS, IDEAL, legend_below
from analysis.output.tables import Cell, Table

MOST_GPUS_NAMED = 4  # of retired nodes: as many as those of CTE-POWER have
SPAN = "#d5dde6"  # of an interval, behind the points


def _points(found: Sequence[Offer], price: str) -> tuple[list[float], list[float]]:
    """Return minutes and dollars of those that have this price."""
    known = [(60 * one.time.hours, usd) for one in found if (usd := getattr(one, price)) is not None]
    return [minutes for minutes, _ in known], [usd for _, usd in known]


def _label(ax: Axes, found: Sequence[Offer], front: Sequence[Offer]) -> None:
    """Name the machines of the front and small retired ones, and draw a line where there is no price."""
    small = [one for one in found if one.time.site.gpus <= MOST_GPUS_NAMED]
    retired = [one for one in small if one.time.site.retired and one.usd is not None]
    text: dict[str, Any] = {"fontsize": 7, "textcoords": "offset points"}
    for one in found:
        minutes = 60 * one.time.hours
        if one.usd is None:
            ax.axvline(minutes, **IDEAL)
            ax.annotate(f"{one.name}: no price", (minutes, 0.01), xycoords=("data", "axes fraction"), rotation=90,
                        va="bottom", ha="right", fontsize=7, color=IDEAL["color"])  # fmt: skip
        elif one in front[1:-1]:
            ax.annotate(one.name, (minutes, one.usd), xytext=(-6, -11), ha="right", **text)
        elif one in retired:
            above = retired.index(one) % 2 == 1
            ax.annotate(one.name, (minutes, one.usd), xytext=(0, 7 if above else -13), ha="center", **text)
        elif one in front:
            ax.annotate(one.name, (minutes, one.usd), xytext=(6, -2.5), **text)


_KINDS = (  # label, color, marker, of which offers
    ("AWS", COLORS[0], "o", lambda one: one.to_rent and one.name.startswith("aws")),
    ("other clouds", COLORS[2], "D", lambda one: one.to_rent and not one.name.startswith("aws")),
    ("retired", "#888888", "s", lambda one: one.time.site.retired is not None),
    ("owned, by its formula", COLORS[5], "P", lambda one: one.time.site.kind == "owned"),
)


def cost_plot(found: Sequence[Offer], front: Sequence[Offer]) -> Plot:
    """Draw all offers, the interval of those on the Pareto front, and a line where there is no price."""
    figure = Figure(figsize=(7.6, 5.4))
    ax = figure.subplots()
    for label, color, marker, belongs in _KINDS:
        priced = [one for one in found if one.usd is not None and belongs(one)]
        look: dict[str, Any] = {"color": color, "marker": marker, "linestyle": ""}
        if priced:
            ax.plot(*_points(priced, "usd"), label=label, **look)
        if any(one.spot_usd is not None for one in priced):
            ax.plot(*_points(priced, "spot_usd"), label=f"{label}, spot", **look, markerfacecolor="none")
    ax.set_xscale("log")
    ax.set_yscale("log")
    for one in front:
        if one.usd_interval:
            ax.plot([60 * one.time.low, 60 * one.time.high], one.usd_interval, color=SPAN, linewidth=2.5, zorder=0,
                    label="interval of time and cost: an assumption")  # fmt: skip
    label = "Pareto front, on demand or owned"
    ax.plot(*_points(front, "usd"), color="black", linewidth=0.9, label=label, zorder=1)
    _label(ax, found, front)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_minor_formatter(NullFormatter())
    ax.xaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_major_formatter("${x:g}")
    ax.set_xlabel("minutes to the target (projected)")
    ax.set_ylabel("dollars to the target")
    legend_below(figure, ncols=3)
    figure.suptitle(f"Cost against time to a target: {TO_TARGET.label}, one node of each site")
    headings = ["machine", "minutes", "$", "$, spot", "Pareto front"]
    data: list[list[Cell]] = [
        [one.name, 60 * one.time.hours, one.usd, one.spot_usd, "yes" if one in front else None] for one in found
    ]
    formats = dict.fromkeys(headings[1:4], ".4g")
    return Plot("clouds-cost-against-time", figure, Table("Cost against time to the target", headings, data, formats))
