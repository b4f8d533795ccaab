"""How the page shows a table: kinds of columns, cells with their sort values, the CSV file, what is left out."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from analysis.output.tables import Cell, Table, render, shown_cell
from analysis.report.pictures import data_uri

MOST_ROWS = 200  # of a table on the page; its file has more
MOST_COLUMNS = 12  # more need a smaller print on paper
MOST_FILE_ROWS = 20_000
SHORT = 30  # letters of a cell that is not broken into lines
CODE = "command"  # heading of the column that is shown as code
MISSING = "–"

Kind = Literal["number", "code", "short", "words"]


@dataclass(frozen=True, kw_only=True)
class CellView:
    """A cell: its text, and the exact number by which its column is sorted ("nan": missing; None: by its text)."""

    text: str
    value: str | None
    kind: Kind


@dataclass(frozen=True, kw_only=True)
class ColumnView:
    """A column with at least one value on the page."""

    heading: str
    kind: Kind
    cells: Sequence[CellView]


@dataclass(frozen=True, kw_only=True)
class TableView:
    """A table on the page.

    Attributes:
        anchor: its id, and the name of its file.
        csv: the file, as a data URI.
        csv_rows: number of rows in the file.
        remark: what the page or the file leaves out.
    """

    anchor: str
    title: str
    columns: Sequence[ColumnView]
    csv: str
    csv_rows: int
    remark: str

    @property
    def rows(self) -> list[tuple[CellView, ...]]:
        """The cells row by row."""
        return list(zip(*(column.cells for column in self.columns), strict=True))

    @property
    def wide(self) -> bool:
        """Whether paper needs a smaller print."""
        return len(self.columns) > MOST_COLUMNS


def table_view(table: Table, *, anchor: str) -> TableView:
    """Return how the page shows a table; columns without values are in the file only."""
    shown = zip(*table.rows[:MOST_ROWS], strict=True) if table.rows else ([] for _ in table.headings)
    columns = {name: list(cells) for name, cells in zip(table.headings, shown, strict=True)}
    empty = [name for name, cells in columns.items() if all(cell is None for cell in cells)]
    in_file = table.rows[:MOST_FILE_ROWS]
    content = render(replace(table, rows=in_file), "csv") + "\n"
    return TableView(
        anchor=anchor,
        title=table.title,
        columns=[
            _column(name, cells, form=table.formats.get(name, ""))
            for name, cells in columns.items()
            if name not in empty
        ],
        csv=data_uri("text/csv;charset=utf-8", content.encode()),
        csv_rows=len(in_file),
        remark=_remark(len(table.rows), empty=empty),
    )


def _column(heading: str, cells: Sequence[Cell], *, form: str) -> ColumnView:
    known = [cell for cell in cells if cell is not None]
    kind: Kind = "words"
    if all(isinstance(cell, int | float) for cell in known):
        kind = "number"
    elif heading == CODE:
        kind = "code"
    elif all(len(shown_cell(cell, form)) <= SHORT for cell in known):
        kind = "short"
    return ColumnView(heading=heading, kind=kind, cells=[_cell(cell, form=form, kind=kind) for cell in cells])


def _cell(cell: Cell, *, form: str, kind: Kind) -> CellView:
    if cell is None:
        return CellView(text=MISSING, value="nan", kind=kind)
    # Sorted by the number itself: the text is rounded.
    value = repr(cell) if isinstance(cell, int | float) else None
    return CellView(text=shown_cell(cell, form), value=value, kind=kind)


def _remark(rows: int, *, empty: Sequence[str]) -> str:
    words = []
    if rows > MOST_FILE_ROWS:
        words.append(f"The file ends after {MOST_FILE_ROWS:,} of {rows:,} rows.")
    if rows > MOST_ROWS:
        words.append(f"The page shows the first {MOST_ROWS:,} of {rows:,} rows.")
    if empty:
        words.append(f"No values: {', '.join(empty)}.")
    return " ".join(words)
