"""How plots look, what several of them draw, and how they are written: as PNG for a page, as SVG for a paper."""

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from analysis.runs.labels import FRAMEWORK_LABELS
from analysis.stats.inference import median_interval
from common.errors import from_os_error

matplotlib.use("Agg")  # no window, also where there is a screen
# Told apart by readers who do not see all colours (Okabe and Ito 2008), and by their dashes in print.
STYLES: dict[str, dict[str, Any]] = {
    "torch": {"color": "#D55E00", "linestyle": "-", "marker": "o", "label": FRAMEWORK_LABELS["torch"]},
    "keras": {"color": "#0072B2", "linestyle": "--", "marker": "s", "label": FRAMEWORK_LABELS["keras"]},
}
# For what is no framework, such as sites or devices; in the order of their lightness too, for print.
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")
MARKERS = "osD^vP*"
IDEAL: dict[str, Any] = {"color": "#555555", "linestyle": (0, (1, 2)), "linewidth": 1.2}
LOG_FROM = 20.0  # largest / smallest value: from here on a scale is logarithmic
ROW_INCHES = 0.42
SETTINGS: Any = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "savefig.dpi": 130,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "horovod-twins",  # the same figure gives the same file
}


def save_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write `<name>.png` and `<name>.svg`; return their paths.

    Raises:
        UserError: the folder cannot be made or written.
    """
    files = [folder / f"{name}.png", folder / f"{name}.svg"]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with matplotlib.rc_context(SETTINGS):
            for file in files:
                figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)
    except OSError as error:
        raise from_os_error(error, doing="writing a plot") from None
    return files


@dataclass(frozen=True, kw_only=True)
class Row:
    """Values in a row of a plot: what stands beside it, how it is drawn, and whether they are published figures."""

    label: str
    values: Sequence[float]
    style: dict[str, Any]
    published: bool = False


def wrapped(label: str, *, width: int = 48) -> str:
    """Return a label in lines of so many characters, that the axes beside it keep their place."""
    return "\n".join(line for part in label.split("\n") for line in textwrap.wrap(part, width, break_on_hyphens=False))


def n_words(counts: Iterable[int]) -> str:
    """Return how many runs rows have, such as "n = 5 to 10"."""
    different = sorted(set(counts))
    return f"n = {different[0]}" if len(different) == 1 else f"n = {different[0]} to {different[-1]}"


def spread_words(counts: Sequence[int]) -> str:
    """Return how many runs rows have, at least one each, and what `draw_rows` draws of them; few have no interval."""
    most = max(counts)
    drawn = ["all points"]
    if most > 1:
        drawn.append("median")
    if median_interval([0.0] * most) is not None:
        drawn.append("95 % interval")
    return f"{n_words(counts)} run{'s' if most > 1 else ''} each; {', '.join(drawn)}"


def framework_style(framework: str) -> dict[str, Any]:
    """Return how a framework is drawn, the same everywhere; grey for one that is not ours."""
    other = {"color": "#555555", "linestyle": ":", "marker": "^", "label": framework}
    return STYLES.get(framework, other)


def draw_rows(ax: Axes, groups: Sequence[tuple[str, Sequence[Row]]], *, unit: str, scale: float = 1.0) -> None:
    """Draw every value as a point, with median and 95 % interval; groups below each other, one row for each of theirs.

    Args:
        ax: empty axes.
        groups: label -> rows. Values that are not finite are not drawn.
        unit: of the values times scale, beneath the axis.
        scale: what values are multiplied by.
    """
    top, ticks, labels, everything = 0.0, [], [], []
    for label, rows in groups:
        for number, row in enumerate(rows):
            values = np.array([value * scale for value in row.values if np.isfinite(value)])
            if len(values):
                _draw_row(ax, values, top + number, row)
                everything += values.tolist()
        ticks.append(top + (len(rows) - 1) / 2)
        labels.append(wrapped(label))
        top += len(rows) + 0.6
    ax.set_yticks(ticks, labels)
    ax.set_ylim(top - 0.6, -1.0)
    ax.grid(visible=False, axis="y")
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel(unit)
    scale_axis(ax, everything)
    handles = {row.style["label"]: row.style for _, rows in groups for row in rows}
    for name, style in handles.items():
        ax.plot([], [], color=style["color"], marker=style["marker"], linestyle="", label=name)


def scale_axis(ax: Axes, values: Sequence[float], *, axis: str = "x") -> None:
    """Make an axis logarithmic, and say so, where its values lie far apart; else leave it."""
    if values and min(values) > 0 and max(values) / min(values) > LOG_FROM:
        getattr(ax, f"set_{axis}scale")("log")
        of_axis, decades = getattr(ax, f"{axis}axis"), math.log10(max(values) / min(values))
        of_axis.set_major_locator(LogLocator(subs=(1.0, 3.0) if decades < 2 else (1.0,)))
        of_axis.set_major_formatter("{x:,g}")
        of_axis.set_minor_formatter(NullFormatter())
        getattr(ax, f"set_{axis}label")(f"{getattr(ax, f'get_{axis}label')()} (logarithmic)")


def _draw_row(ax: Axes, values: np.ndarray, y: float, row: Row) -> None:
    style: dict[str, Any] = {"color": row.style["color"], "marker": row.style["marker"]}
    # Points beside each other where there are many; always the same places.
    offsets = 0.22 * np.sin(np.arange(len(values)) * 2.4) if len(values) > 1 else np.zeros(1)
    fill = "white" if row.published else row.style["color"]
    alpha = 0.45 if len(values) > 1 else 1.0
    ax.plot(values, y + offsets, linestyle="", markersize=4.5, markerfacecolor=fill, alpha=alpha, **style)
    interval = median_interval(values.tolist())
    if interval is not None:
        ax.plot([interval.low, interval.high], [y, y], color=style["color"], linewidth=2.2, solid_capstyle="butt")
    if len(values) > 1:
        ax.plot([np.median(values)] * 2, [y - 0.32, y + 0.32], color="black", linewidth=1.6)
