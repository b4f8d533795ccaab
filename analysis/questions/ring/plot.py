"""The picture of a ring all-reduce: a panel for each pass, ranks over chunks, the numbers in the cells."""

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, Colormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from analysis.questions.ring.passes import Pass, selected_passes, sums_of_chunks

RANKS_DRAWN_WHOLE = 6  # 11 panels
RANKS_WITH_NUMBERS = 16  # of more ranks the numbers would not be legible
SENT = "#D55E00"  # arrows and frames of what was sent
LUMINANCE = (0.2126, 0.7152, 0.0722)  # of red, green and blue
MARGIN = 0.85  # from the middle of the first and last rank to the edge of the panel: room for arrows around the ring
KINDS = {"start": "start", "add": "receivers add", "replace": "receivers replace"}


def plot_ring(passes: Sequence[Pass]) -> Figure:
    """Return the picture of all passes; of many ranks only of some, as its title says.

    Args:
        passes: all of them, the start among them.
    """
    ranks, elements = passes[0].vectors.shape
    is_whole = ranks <= RANKS_DRAWN_WHOLE
    chosen = list(passes) if is_whole else [passes[number] for number in selected_passes(ranks)]
    most_columns, panel_inches = (4, 2.5) if is_whole else (3, 4.0)
    rows = -(-len(chosen) // most_columns)
    columns = -(-len(chosen) // rows)
    # From light to dark: legible in grey.
    colors = matplotlib.colormaps["YlGnBu"].resampled(ranks)
    norm = BoundaryNorm(np.arange(0.5, ranks + 1), ranks)
    with matplotlib.rc_context({"axes.grid": False}):
        figure = Figure(figsize=(panel_inches * columns + 1.0, (panel_inches + 0.4) * rows + 0.5))
        axes = figure.subplots(rows, columns, squeeze=False).ravel()
        for ax, one in zip(axes, chosen, strict=False):
            _draw_pass(ax, one, colors=colors, norm=norm, font_size=9 if is_whole else min(9, 70 / ranks))
        for ax in axes[len(chosen) :]:
            ax.set_axis_off()
        bar = figure.colorbar(axes[0].images[0], ax=list(axes), shrink=0.7, label="ranks whose numbers are in it")
        bar.set_ticks(sorted({round(tick) for tick in np.linspace(1, ranks, 6)}))
        bar.ax.minorticks_off()
        figure.suptitle(_title(ranks, elements, shown=len(chosen), of=len(passes)))
    return figure


def _title(ranks: int, elements: int, *, shown: int, of: int) -> str:
    half = ranks - 1
    lines = [f"Ring all-reduce: {ranks} ranks, {elements} numbers each; passes that add: {half}, that replace: {half}"]
    lines.append("arrows: what was sent in the pass, frames: where it is then")
    if elements > ranks and ranks <= RANKS_WITH_NUMBERS:
        lines.append("in each cell the sum of a chunk")
    if shown < of:
        lines.append(f"the start and {shown - 1} of {of - 1} passes are shown")
    if ranks > RANKS_WITH_NUMBERS:
        lines.append(f"numbers are left out above {RANKS_WITH_NUMBERS} ranks")
    return f"{lines[0]}\n{'; '.join(lines[1:])}"


def _draw_pass(ax: Axes, one: Pass, *, colors: Colormap, norm: BoundaryNorm, font_size: float) -> None:
    """Draw the cells of all ranks and chunks after a pass, and an arrow from each sender to its right neighbor."""
    counts, sums = one.contributors.sum(axis=2), sums_of_chunks(one)
    ranks = len(counts)
    ax.imshow(counts, cmap=colors, norm=norm)
    edges = np.arange(-0.5, ranks)
    for draw in (ax.vlines, ax.hlines):
        draw(edges, -0.5, ranks - 0.5, color="white", zorder=0.5, linewidth=1.0 if ranks <= RANKS_WITH_NUMBERS else 0.2)
    ax.set_ylim(ranks - 1 + MARGIN, -MARGIN)
    if ranks <= RANKS_WITH_NUMBERS:
        for (rank, chunk), number in np.ndenumerate(sums):
            is_dark = np.dot(colors(norm(counts[rank, chunk]))[:3], LUMINANCE) < 0.45
            ax.text(chunk, rank, f"{number:,.6g}", ha="center", va="center", fontsize=font_size,
                    color="white" if is_dark else "black")  # fmt: skip
    for send in one.sends:
        ax.add_patch(Rectangle((send.chunk - 0.47, send.to - 0.47), 0.94, 0.94, fill=False, color=SENT, linewidth=1.4))
        # The last rank's right neighbor is the first: its arrow leaves below and comes in from above.
        below, above = ranks - 1 + MARGIN, -MARGIN
        straight = [(send.rank + 0.24, send.to - 0.24)]
        around = [(send.rank + 0.24, below), (above, send.to - 0.24)]
        for start, end in straight if send.to > send.rank else around:
            ax.annotate(
                "", (send.chunk, end), (send.chunk, start),
                arrowprops={"arrowstyle": "-|>", "color": SENT, "linewidth": 1.2, "shrinkA": 0, "shrinkB": 0},
            )  # fmt: skip
    ax.set_title(f"pass {one.number}: {KINDS[one.kind]}" if one.number else "start")
    ticks = range(0, ranks, max(1, ranks // 8))
    ax.set_xticks(ticks)
    ax.set_yticks(ticks)
    ax.set_xlabel("chunk")
    ax.set_ylabel("rank")
    ax.spines[:].set_visible(False)
