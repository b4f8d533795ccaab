"""Figures as pictures inside the page: SVG, or PNG where they have many points."""

import base64
import io
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from analysis.output.plots import wrapped

MOST_POINTS = 2_000  # drawn as shapes; more become pixels
PIXELS_PER_INCH = 160
MOST_INCHES = 100  # longer pictures are unreadable
METERS_PER_INCH = 0.0254
CSS_PIXELS_PER_INCH = 96
NARROW_INCHES = 4.4
NARROW_TITLE, NARROW_LABEL, NARROW_LEGEND = 52, 18, 26  # characters of a line


@dataclass(frozen=True, kw_only=True)
class Picture:
    """An image as a data URI, with its size in CSS pixels."""

    source: str
    width: int
    height: int

    @property
    def tall(self) -> bool:
        """Whether it is higher than wide."""
        return self.height > self.width


def data_uri(kind: str, content: bytes) -> str:
    """Return an address that contains the content itself."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def picture_of(figure: Figure) -> tuple[Picture | None, str]:
    """Return the picture of a figure, None if it is too long to be read, and a remark for its caption."""
    width, height = figure.get_size_inches()
    if height > MOST_INCHES:
        length = height * METERS_PER_INCH
        return None, f"The picture would be {length:.0f} m long and is not drawn; its data is complete."
    many = _points(figure) > MOST_POINTS
    picture = Picture(
        source=_png(figure) if many else _svg(figure),
        width=round(CSS_PIXELS_PER_INCH * width),
        height=round(CSS_PIXELS_PER_INCH * height),
    )
    return picture, "All points are drawn, as pixels because there are many." if many else ""


def narrow_picture_of(figure: Figure) -> Picture | None:
    """Return the picture for a phone: less wide, labels and title broken into more lines. The figure is changed.

    None if it is too long to be read.
    """
    _, height = figure.get_size_inches()
    figure.set_size_inches(NARROW_INCHES, height + NARROW_INCHES / 5)
    figure.suptitle(wrapped(figure.get_suptitle(), width=NARROW_TITLE))
    for axes in figure.axes:
        if isinstance(axes.yaxis.get_major_locator(), FixedLocator):  # labels are words
            labels = [wrapped(label.get_text(), width=NARROW_LABEL) for label in axes.get_yticklabels()]
            axes.set_yticks(axes.get_yticks(), labels)
    for legend in [*figure.legends]:
        handles = [handle for handle in legend.legend_handles if handle is not None]
        names = [wrapped(text.get_text(), width=NARROW_LEGEND) for text in legend.get_texts()]
        legend.remove()
        figure.legend(handles, names, loc="outside lower center", ncols=2)
    return picture_of(figure)[0]


def _svg(figure: Figure) -> str:
    # Letters as outlines: the reader's device may lack this machine's fonts.
    with matplotlib.rc_context({"svg.fonttype": "path"}):
        return data_uri("image/svg+xml", _drawn(figure, format="svg", metadata={"Date": None}))


def _png(figure: Figure) -> str:
    return data_uri("image/png", _drawn(figure, format="png", dpi=PIXELS_PER_INCH))


def _drawn(figure: Figure, **options: Any) -> bytes:
    """Return the file of a figure, laid out first: with a layout engine matplotlib draws everything twice."""
    engine, file = figure.get_layout_engine(), io.BytesIO()
    if engine is None or not figure.axes:
        figure.savefig(file, **options)
        return file.getvalue()
    engine.execute(figure)
    try:
        with matplotlib.rc_context({"figure.constrained_layout.use": False}):  # else None means that engine
            figure.set_layout_engine(None)
        figure.savefig(file, **options)
    finally:
        figure.set_layout_engine(engine)
    return file.getvalue()


def _points(figure: Figure) -> int:
    """Return how many points the figure's lines and point clouds have."""
    lines = [np.asarray(line.get_xydata()) for axes in figure.axes for line in axes.lines]
    clouds = [np.asarray(cloud.get_offsets()) for axes in figure.axes for cloud in axes.collections]
    return sum(len(points) for points in (*lines, *clouds))
