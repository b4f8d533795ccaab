"""Tables, and how they are rendered for the terminal, papers and programs."""

import csv
import io
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from tabulate import tabulate

from analysis.stats.inference import Effect, Interval
from common.errors import user_errors
from common.utils.atomic import write_atomically

Format = Literal["text", "md", "csv", "json", "latex"]
FORMATS: tuple[Format, ...] = get_args(Format)
_TABULATE = {"text": "simple", "md": "github", "latex": "latex_booktabs"}
MOST_ROWS = 25  # of a table in a terminal
Cell = str | int | float | None


@dataclass(frozen=True)
class Table:
    """Rows under headings; numbers are rounded only when they are shown.

    Attributes:
        formats: heading -> format of its numbers for readers, such as ".1e"; CSV and JSON contain them in full.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    formats: dict[str, str]


def render(table: Table, form: Format) -> str:
    """Return the table as text; None becomes an empty cell, or null in JSON."""
    if form == "json":
        # JSON has no infinity and no NaN: they become strings.
        rows = [{name: _for_json(cell) for name, cell in zip(table.headings, row, strict=True)} for row in table.rows]
        return json.dumps({"title": table.title, "rows": rows}, indent=1, allow_nan=False)
    if form == "csv":
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(table.headings)
        writer.writerows([[_for_csv(cell) for cell in row] for row in table.rows])
        return text.getvalue().rstrip("\n")
    shown = [
        [shown_cell(cell, table.formats.get(name, "")) for name, cell in zip(table.headings, row, strict=True)]
        for row in table.rows
    ]
    body = tabulate(
        shown or [[""] * len(table.headings)],
        headers=list(table.headings),
        tablefmt=_TABULATE[form],
        disable_numparse=True,
        colalign=["right" if name in table.formats else "left" for name in table.headings],
    )
    return f"{table.title}\n{body}" if form == "text" else body


def render_first_rows(table: Table) -> str:
    """Return a table as text for a terminal: its first rows, and how many more there are and how to see them."""
    more = len(table.rows) - MOST_ROWS
    text = render(replace(table, rows=table.rows[:MOST_ROWS]), "text")
    return f"{text}\n{more} more: --format json, or --format csv --folder DIR" if more > 0 else text


def write_csv(table: Table, folder: Path, name: str) -> Path:
    """Write a table as `<name>.csv`; return its path.

    Raises:
        UserError: the folder cannot be created or written.
    """
    with user_errors("writing a table"):
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / f"{name}.csv", render(table, "csv") + "\n")
    return folder / f"{name}.csv"


def shown_cell(cell: Cell, form: str) -> str:
    """Return a cell as readers see it; None is empty."""
    if cell is None:
        return ""
    return format(cell, form) if isinstance(cell, int | float) and form else str(cell)


_NUMBERS = re.compile(r"[-+]?[0-9][0-9.,]*(e[-+]?[0-9]+)?( to [-+]?[0-9][0-9.,]*(e[-+]?[0-9]+)?)?( %)?")


def _for_csv(cell: Cell) -> Cell:
    """Return a cell that spreadsheets do not run: text that begins like a formula gets an apostrophe.

    A number or an interval does not, such as "-0.38 to +0.20".
    """
    if not isinstance(cell, str) or _NUMBERS.fullmatch(cell):
        return cell
    return f"'{cell}" if cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell


def _for_json(cell: Cell) -> Cell:
    return str(cell) if isinstance(cell, float) and not math.isfinite(cell) else cell


def in_figures(value: float, figures: int, *, sign: bool = False) -> str:
    """Return a number with so many significant figures, never in scientific notation; `sign`: also a plus."""
    rounded = float(f"{value:.{figures}g}")
    places = max(0, figures - 1 - math.floor(math.log10(abs(rounded)))) if rounded else 0
    text = f"{rounded:{'+' if sign else ''},.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def in_percent(fraction: float | None) -> float | None:
    """Return a fraction as a cell in percent."""
    return None if fraction is None else 100 * fraction


def effect_cells(effect: Effect | None, form: str, *, scale: float = 1.0) -> list[Cell]:
    """Return the estimate and the interval of an effect as two cells; `form`: of the interval."""
    return [effect.estimate * scale, shown_interval(effect.interval, form, scale=scale)] if effect else [None, None]


def shown_interval(interval: Interval | None, form: str, *, scale: float = 1.0) -> str | None:
    """Return an interval as a cell, such as "1.05 to 1.12"; None without an interval."""
    return f"{interval.low * scale:{form}} to {interval.high * scale:{form}}" if interval else None
