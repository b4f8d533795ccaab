"""Cost against time: every run by what it took and what it cost."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from analysis.output.finding import Plot
from analysis.output.plots import framework_style, legend_below, look_of_points, scale_axis
from analysis.output.tables import Table
from analysis.questions.clouds.pricing import Pricing
from analysis.questions.clouds.sites import SiteComparison


def cost_against_time(
    shown: Sequence[SiteComparison], styles: Mapping[str, Mapping[str, Any]], *, pricing: Pricing
) -> list[Plot]:
    """Draw each timed run of a site with a price: color by site, marker by framework; nothing without one.

    Args:
        shown: the runs.
        styles: name of a cell -> its style.
        pricing: sites and prices.
    """
    figure = Figure(figsize=(8.0, 4.2))
    ax = figure.subplots()
    rows: list[list[str | float | None]] = []
    for one in shown:
        for name, cell in one.cells.items():
            seconds = cell.seconds("paid_seconds")
            dollars = cell.seconds(lambda run: pricing.cost(run, run.paid_seconds))
            points = [(seconds[key], dollars[key]) for key in seconds if not math.isnan(dollars.get(key, math.nan))]
            if points:
                style = framework_style(cell.framework) | {"color": styles[name]["color"]}
                label = ", ".join([name, style["label"], *(["published"] if cell.is_published else [])])
                look = look_of_points(style, published=cell.is_published)
                ax.plot(*zip(*points, strict=True), linestyle="", markersize=6, alpha=0.7, label=label, **look)
                rows += [[one.label, name, *point] for point in points]
    if not rows:
        return []
    ax.set_xlabel("seconds paid")
    ax.set_ylabel("dollars")
    for axis, column in (("x", 2), ("y", 3)):
        scale_axis(ax, [float(row[column] or 0.0) for row in rows], axis=axis)
    legend_below(figure, ncols=3)
    figure.suptitle("Cost against time, every run: down and left is better")
    headings = ["experiment", "site", "seconds paid", "dollars"]
    return [Plot("clouds-cost-time", figure, Table("Cost against time", headings, rows, {"dollars": ".6g"}))]
