"""The style of plots, what several of them draw, and writing them: PNG for pages, SVG for papers."""

import math
import statistics
import textwrap
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import LogLocator, NullFormatter

from analysis.runs.labels import FRAMEWORK_LABELS
from analysis.stats.inference import median_interval
from common.errors import as_user_error
from common.utils.printable import printable

# Colors for readers with color blindness (Okabe and Ito 2008); dashes and markers for print.
STYLES: dict[str, dict[str, Any]] = {
    "torch": {"color": "#D55E00", "linestyle": "-", "marker": "o", "label": FRAMEWORK_LABELS["torch"]},
    "keras": {"color": "#0072B2", "linestyle": "--", "marker": "s", "label": FRAMEWORK_LABELS["keras"]},
}
# For anything but frameworks, such as sites or devices; ordered by lightness, for print.
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")
MARKERS = "osD^vP*"
IDEAL: dict[str, Any] = {"color": "#555555", "linestyle": (0, (1, 2)), "linewidth": 1.2}
LOG_FROM = 20.0  # largest / smallest value above which a scale is logarithmic
ROW_INCHES = 0.42
MOST_DRAWN = 25  # rows of a plot that can still be read
matplotlib.use("Agg")  # no window
matplotlib.rcParams.update(
    {
        "figure.constrained_layout.use": True,
        "font.size": 9,
        "axes.titlesize": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": "#dddddd",
        "grid.linewidth": 0.6,
        "legend.frameon": False,
        "savefig.dpi": 130,
        "text.parse_math": False,  # a name with dollar signs is no formula
        "svg.fonttype": "none",  # text stays text
        "svg.hashsalt": "horovod-twins",  # equal figures give equal files
    }
)


def save_figure(figure: Figure, folder: Path, name: str, *, made_by: str = "") -> list[Path]:
    """Write `<name>.png` and `<name>.svg`; return their paths.

    Args:
        made_by: the command that draws them, kept in both files as their description.

    Raises:
        UserError: the folder cannot be created or written.
    """
    files = [folder / f"{name}.png", folder / f"{name}.svg"]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for text in figure.findobj(Text):
            text.set_text(printable(text.get_text(), keep="\n"))  # a control character is not valid in SVG
        for file in files:
            description = {"Description": printable(made_by)} if made_by else {}
            figure.savefig(file, metadata=description | ({"Date": None} if file.suffix == ".svg" else {}))
    except OSError as error:
        raise as_user_error(error, doing="writing a plot") from None
    return files


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of values in a plot, in a style with its name; published values are hollow."""

    values: Sequence[float]
    style: dict[str, Any]
    published: bool = False


def wrapped(label: str, *, width: int = 48) -> str:
    """Return a label broken into lines of at most `width` characters."""
    return "\n".join(line for part in label.split("\n") for line in textwrap.wrap(part, width, break_on_hyphens=False))


def n_words(counts: Iterable[int]) -> str:
    """Return the range of the numbers of runs, such as "n = 5 to 10"."""
    different = sorted(set(counts))
    return f"n = {different[0]}" if len(different) == 1 else f"n = {different[0]} to {different[-1]}"


def first_of_words(count: int, what: str, *, most: int = MOST_DRAWN) -> str:
    """Return what a title adds where only the first `most` of so many are drawn: "; the first 25 of 30 rows"."""
    return f"; the first {most} of {count} {what}" if count > most else ""


def spread_words(counts: Sequence[int]) -> str:
    """Return the numbers of runs (at least 1) and what `draw_rows` draws for them; few runs have no interval."""
    most = max(counts)
    drawn = ["all points"]
    if most > 1:
        drawn.append("median")
    if median_interval([0.0] * most) is not None:
        drawn.append("95 % interval")
    return f"{n_words(counts)} run{'s' if most > 1 else ''} each; {', '.join(drawn)}"


def framework_style(framework: str) -> dict[str, Any]:
    """Return the style of a framework, the same in all plots; gray for frameworks of published results."""
    other = {"color": "#555555", "linestyle": ":", "marker": "^", "label": framework}
    return STYLES.get(framework, other)


def look_of_points(style: Mapping[str, Any], *, published: bool) -> dict[str, Any]:
    """Return color, marker and fill of points in a style; those of published figures are hollow."""
    fill = {"markerfacecolor": "white", "markeredgewidth": 0.8} if published else {"markerfacecolor": style["color"]}
    return {"color": style["color"], "marker": style["marker"], **fill}


def label_published(ax: Axes) -> None:
    """Add to the legend what hollow points are."""
    look = look_of_points({"color": IDEAL["color"], "marker": "o"}, published=True)
    ax.plot([], [], linestyle="", label="published", **look)


def legend_below(figure: Figure, handles: Sequence[Artist] | None = None, *, ncols: int = 4) -> None:
    """Draw one legend below all panels, each label once; `handles`: instead of what the panels label."""
    if handles is None:
        labeled: dict[str, Artist] = {}
        for ax in figure.axes:
            labeled |= dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
        handles = list(labeled.values())
    figure.legend(handles=handles, loc="outside lower center", ncols=ncols)


def label_rows(ax: Axes, labels: Sequence[str], *, above: float = 0.5, below: float = 0.5) -> None:
    """Label the rows at 0, 1, ... from top to bottom; `above`, `below`: room at the ends, in rows."""
    ax.set_yticks(range(len(labels)), labels)
    ax.set_ylim(len(labels) - 1 + below, -above)
    _clear_rows(ax)


def _clear_rows(ax: Axes) -> None:
    ax.grid(visible=False, axis="y")
    ax.tick_params(axis="y", length=0)


def draw_stacks(ax: Axes, stacks: Sequence[Mapping[str, float]], looks: Mapping[str, dict[str, Any]]) -> None:
    """Draw a row for each stack: its parts one after the other as bars, in the looks of the parts."""
    for place, parts in enumerate(stacks):
        left = 0.0
        for part, length in parts.items():
            ax.barh(place, length, left=left, height=0.5, linewidth=0.5, label=part, **looks[part])
            left += length
    ax.set_axisbelow(True)


def spread_out(place: float, values: Sequence[float] | np.ndarray, *, width: float) -> np.ndarray:
    """Return places for the points of a row, so that they do not overlap; always the same: (values,) float64."""
    return place + width * np.sin(np.arange(len(values)) * 2.4)


def draw_rows(ax: Axes, groups: Sequence[tuple[str, Sequence[Row]]], *, unit: str, scale: float = 1.0) -> None:
    """Draw every value as a point, with median and 95 % interval; one line per row, groups below each other.

    Args:
        ax: empty axes.
        groups: label and rows. Values that are not finite are not drawn.
        unit: of the values times scale, below the axis.
        scale: factor for the values.
    """
    top, ticks, labels, everything = 0.0, [], [], []
    alike: dict[Hashable, tuple[Row, dict[float, list[float]]]] = {}  # look -> a row, place -> values
    for label, rows in groups:
        for number, row in enumerate(rows):
            if values := [value * scale for value in row.values if math.isfinite(value)]:
                look = row.style["color"], row.style["marker"], row.published, len(values) > 1
                alike.setdefault(look, (row, {}))[1][top + number] = values
                everything += values
        ticks.append(top + (len(rows) - 1) / 2)
        labels.append(wrapped(label))
        top += len(rows) + 0.6
    for row, by_place in alike.values():
        _draw_alike(ax, row, by_place)
    ax.set_yticks(ticks, labels)
    ax.set_ylim(top - 0.6, -1.0)
    _clear_rows(ax)
    ax.set_xlabel(unit)
    scale_axis(ax, everything)
    handles = {row.style["label"]: row.style for _, rows in groups for row in rows}
    for name, style in handles.items():
        ax.plot([], [], linestyle="", label=name, **look_of_points(style, published=False))
    if any(row.published for _, rows in groups for row in rows):
        label_published(ax)


def figure_of_rows(groups: Mapping[str, Sequence[Row]], title: str, *, unit: str, scale: float = 1.0) -> Figure:
    """Return a figure of `draw_rows` under a title; its height follows from the rows."""
    height = 1.6 + ROW_INCHES * sum(max(len(rows), 1.4) + 0.6 for rows in groups.values())
    figure = Figure(figsize=(8.0, height))
    draw_rows(figure.subplots(), list(groups.items()), unit=unit, scale=scale)
    legend_below(figure)
    figure.suptitle(title)
    return figure


def scale_axis(ax: Axes, values: Sequence[float], *, axis: str = "x") -> None:
    """Make an axis logarithmic, and label it so, if its values span more than a factor of LOG_FROM."""
    if values and min(values) > 0 and max(values) / min(values) > LOG_FROM:
        getattr(ax, f"set_{axis}scale")("log")
        of_axis, decades = getattr(ax, f"{axis}axis"), math.log10(max(values) / min(values))
        of_axis.set_major_locator(LogLocator(subs=(1.0, 3.0) if decades < 2 else (1.0,)))
        of_axis.set_major_formatter("{x:,g}")
        of_axis.set_minor_formatter(NullFormatter())
        getattr(ax, f"set_{axis}label")(f"{getattr(ax, f'get_{axis}label')()} (logarithmic)")


def _draw_alike(ax: Axes, row: Row, by_place: Mapping[float, Sequence[float]]) -> None:
    """Draw rows that look like this one, as a few shapes in all: three for each row are slow.

    Args:
        by_place: place of a row -> its values; all rows have one value, or all have several.
    """
    color = row.style["color"]
    several = max(map(len, by_place.values())) > 1
    ax.plot(
        np.concatenate([*by_place.values()]),
        np.concatenate([spread_out(place, values, width=0.22) for place, values in by_place.items()]),
        linestyle="",
        markersize=4.5,
        alpha=0.45 if several else 1.0,
        **look_of_points(row.style, published=row.published),
    )
    intervals = {place: found for place, values in by_place.items() if (found := median_interval(values))}
    edges = [one.low for one in intervals.values()], [one.high for one in intervals.values()]
    ax.hlines([*intervals], *edges, color=color, linewidth=2.2)
    if several:
        places = np.array([*by_place])
        medians = [statistics.median(values) for values in by_place.values()]
        ax.vlines(medians, places - 0.32, places + 0.32, color="black", linewidth=1.6)
