"""Tables for the terminal, for papers and for programs."""

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from tabulate import tabulate

from analysis.stats.inference import Interval

Format = Literal["text", "md", "csv", "json", "latex"]
FORMATS: tuple[Format, ...] = get_args(Format)
_TABULATE = {"text": "simple", "md": "github", "latex": "latex_booktabs"}
Cell = str | int | float | None


@dataclass(frozen=True)
class Table:
    """Rows under headings. Numbers stay numbers: how they are shown is told by the `formats` of their columns.

    Attributes:
        formats: heading -> format of its numbers for readers, such as ".1e"; csv and json get them in full.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    formats: dict[str, str]


def render(table: Table, form: Format) -> str:
    """Return the table as text; None is an empty cell, and null in JSON."""
    if form == "json":
        # JSON knows no infinity and no NaN: they become words.
        rows = [{name: _for_json(cell) for name, cell in zip(table.headings, row, strict=True)} for row in table.rows]
        return json.dumps({"title": table.title, "rows": rows}, indent=1, allow_nan=False)
    if form == "csv":
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(table.headings)
        writer.writerows(table.rows)
        return text.getvalue().rstrip("\n")
    rows_for_people = [
        [shown_cell(cell, table.formats.get(name, "")) for name, cell in zip(table.headings, row, strict=True)]
        for row in table.rows
    ]
    body = tabulate(
        rows_for_people or [[""] * len(table.headings)],
        headers=list(table.headings),
        tablefmt=_TABULATE[form],
        disable_numparse=True,
        colalign=["right" if name in table.formats else "left" for name in table.headings],
    )
    return f"{table.title}\n{body}" if form == "text" else body


def shown_cell(cell: Cell, form: str) -> str:
    """Return a cell as readers see it; None is nothing."""
    if cell is None:
        return ""
    return format(cell, form) if isinstance(cell, int | float) and form else str(cell)


def _for_json(cell: Cell) -> Cell:
    return str(cell) if isinstance(cell, float) and not math.isfinite(cell) else cell


def shown_interval(interval: Interval | None, form: str, *, scale: float = 1.0) -> str | None:
    """Return an interval for a cell, such as "1.05 to 1.12"; None where there is none."""
    return f"{interval.low * scale:{form}} to {interval.high * scale:{form}}" if interval else None
