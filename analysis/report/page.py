"""A page of findings: one HTML file with all that it needs inside, for a browser, a phone and a printer.

Nothing is loaded from anywhere: the page's own policy forbids it, and any script but its own. Without scripts only the
sorting of tables is missing.
"""

import base64
import hashlib
import html
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import matplotlib
import numpy as np

from analysis.output.finding import Finding, Plot
from analysis.output.plots import SETTINGS
from analysis.output.tables import Cell, Table, render, shown_cell
from common.distributed.console import counted

MOST_ROWS = 200  # of a table on the page; more are in its file
MOST_COLUMNS = 12  # more need a smaller print on paper
MOST_LINES = 20  # of notes
MOST_FILE_ROWS = 20_000  # of a table's file
MOST_POINTS = 2_000  # drawn as shapes; more become pixels
MOST_SVG_BYTES = 250_000
PIXELS_PER_INCH = 160
MOST_INCHES = 100  # of a picture; longer ones nobody looks at
SHORT = 30  # letters of a cell that is not broken into lines
_TITLES = {"a-against-a": "Trust in these figures", "check": "Validity"}  # where the name of a command says too little
CODE = "command"  # heading of the column that is shown as code

_FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True, kw_only=True)
class Page:
    """What stands on a page.

    Attributes:
        facts: name -> value, below the title: when it was made, from what.
        chapters: in their order; their questions and answers open the page.
        open_questions: findings that have an answer only: what the runs do not tell.
        flags: two columns, the flag and the chapters that say it.
        left_out: a column, the folder and why.
    """

    title: str
    facts: dict[str, str]
    chapters: Sequence[Finding]
    open_questions: Sequence[Finding]
    flags: Table
    left_out: Table


def html_of(page: Page) -> str:
    """Return the page as a text of HTML."""
    sections = [
        ("in-short", "In short", _in_short(page)),
        *((_anchor(one.name), _title(one), _chapter(one, page.chapters)) for one in page.chapters),
    ]
    if page.open_questions:
        sections.append(("open", "What these runs do not answer", _questions(page.open_questions, links=False)))
    if page.flags.rows:
        sections.append(("flags", "What is flagged", _table(page.flags, name="flags")))
    if page.left_out.rows:
        sections.append(("left-out", "Folders left out", _table(page.left_out, name="left-out")))
    contents = "".join(f'<li><a href="#{anchor}">{_text(title)}</a></li>' for anchor, title, _ in sections)
    body = "".join(
        f'<section id="{anchor}" aria-labelledby="{anchor}-title">'
        f'<h2 id="{anchor}-title">{_text(title)}</h2>{inside}</section>\n'
        for anchor, title, inside in sections
    )
    facts = "".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in page.facts.items())
    style, script = (_FOLDER.joinpath(f"report.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{_text(page.title)}</title>
<style>{style}</style>
</head>
<body>
<header><h1>{_text(page.title)}</h1><dl class="facts">{facts}</dl></header>
<nav aria-label="Contents"><ol>{contents}</ol></nav>
<main>
{body}</main>
<script>{script}</script>
</body>
</html>
"""


def says_nothing(finding: Finding) -> bool:
    """Return whether a finding has no rows and no plots to show."""
    return not finding.plots and not any(table.rows for table in finding.tables)


def _text(words: object) -> str:
    return html.escape(str(words))


def _anchor(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _title(finding: Finding) -> str:
    words = _TITLES.get(finding.name, finding.name.replace("-", " "))
    return words[:1].upper() + words[1:]


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _data_uri(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _in_short(page: Page) -> str:
    count = len(page.flags.rows)
    flagged = (
        f'<p class="flagged">{_link("#flags", counted(count, "flag"))}: read them before you rely on a figure.</p>'
    )
    return _questions(page.chapters, links=True) + (flagged if count else "")


def _questions(findings: Sequence[Finding], *, links: bool) -> str:
    def question(one: Finding) -> str:
        return _link(f"#{_anchor(one.name)}", one.question) if links else _text(one.question)

    items = "".join(f"<dt>{question(one)}</dt><dd>{_text(one.answer)}</dd>" for one in findings)
    return f'<dl class="questions">{items}</dl>'


def _chapter(finding: Finding, chapters: Sequence[Finding]) -> str:
    commands = any(one.name == "commands" for one in chapters)
    name = _anchor(finding.name)
    parts = [f'<p class="question">{_text(finding.question)}</p><p class="answer">{_text(finding.answer)}</p>']
    if finding.flags:
        parts.append(f'<p class="flagged">{_link("#flags", counted(len(finding.flags), "flag"))} on this chapter.</p>')
    parts += [
        _table(table, name=f"{name}-table-{number}", title=table.title)
        for number, table in enumerate(finding.tables, start=1)
        if table.rows
    ]
    parts += [_figure(plot, commands=commands) for plot in finding.plots]
    parts.append(_notes(finding.notes))
    return "".join(parts)


def _notes(notes: Sequence[str]) -> str:
    if not notes:
        return ""
    items = "".join(f"<li>{_text(note)}</li>" for note in notes[:MOST_LINES])
    more = len(notes) - MOST_LINES
    items += f"<li>and {counted(more, 'more note')}</li>" if more > 0 else ""
    return f'<div class="notes"><h3>Notes</h3><ul>{items}</ul></div>'


def _link(target: str, words: str) -> str:
    return f'<a href="{_text(target)}">{_text(words)}</a>'


def _table(table: Table, *, name: str, title: str = "") -> str:
    """Return the table under its title, with its file below."""
    heading = f'<h3 id="{name}">{_text(title)}</h3>' if title else ""
    label = f'aria-labelledby="{name}"' if title else f'aria-label="{name.replace("-", " ")}"'
    file = _file_link(table, name)
    return f'<div class="table">{heading}{_box(table, label)}<p class="data">{file} {_said_of(table)}</p></div>'


def _box(table: Table, label: str) -> str:
    """Return the rows in a box that scrolls; columns without any value are in the file only."""
    columns = [column for column in _columns(table) if not column.empty]
    wide = ' class="wide"' if len(columns) > MOST_COLUMNS else ""
    # A unit stays with what it is of.
    headings = "".join(
        f'<th scope="col"{column.attributes}>{_text(column.heading).replace(", ", ",&nbsp;")}</th>'
        for column in columns
    )
    rows = "".join(f"<tr>{''.join(column.cell(row) for column in columns)}</tr>\n" for row in table.rows[:MOST_ROWS])
    return (
        f'<div class="box" role="region" tabindex="0" {label}>'
        f"<table{wide}><thead><tr>{headings}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _said_of(table: Table) -> str:
    """Return what the page leaves out of a table."""
    words = []
    if len(table.rows) > MOST_FILE_ROWS:
        words.append(f"The file ends after {MOST_FILE_ROWS:,} of {len(table.rows):,} rows.")
    if len(table.rows) > MOST_ROWS:
        words.append(f"The page shows the first {MOST_ROWS:,} of {len(table.rows):,} rows.")
    if empty := [column.heading for column in _columns(table) if column.empty]:
        words.append(f"No values: {_text(', '.join(empty))}.")
    return " ".join(words)


def _columns(table: Table) -> list["_Column"]:
    return [_Column.of(table, number) for number in range(len(table.headings))]


@dataclass(frozen=True)
class _Column:
    """How a column of a table is shown."""

    heading: str
    number: int
    form: str
    kind: Literal["number", "code", "short", "words"]
    empty: bool

    @classmethod
    def of(cls, table: Table, number: int) -> "_Column":
        """Return how a column is shown, by its values on the page."""
        heading = table.headings[number]
        form = table.formats.get(heading, "")
        values = [row[number] for row in table.rows[:MOST_ROWS] if row[number] is not None]
        if values and all(isinstance(value, int | float) for value in values):
            kind: Any = "number"
        elif heading == CODE:
            kind = "code"
        else:
            kind = "short" if all(len(shown_cell(value, form)) <= SHORT for value in values) else "words"
        return cls(heading, number, form, kind, not values)

    @property
    def attributes(self) -> str:
        """Of its cells."""
        return f' class="{self.kind}"'

    def cell(self, row: Sequence[Cell]) -> str:
        """Return the cell of this column in a row."""
        value = row[self.number]
        words = "–" if value is None else _text(shown_cell(value, self.form))
        if self.kind == "code":
            words = f"<code>{words}</code>"
        # Tables sort by the number itself: what is shown is rounded. What is missing is none.
        number = f' data-value="{value!r}"' if isinstance(value, int | float) else ""
        missing = ' data-value="nan"' if value is None else ""
        return f"<td{self.attributes}{number}{missing}>{words}</td>"


def _file_link(table: Table, name: str) -> str:
    content = render(replace(table, rows=table.rows[:MOST_FILE_ROWS]), "csv") + "\n"
    target = _data_uri("text/csv;charset=utf-8", content.encode())
    count = counted(min(len(table.rows), MOST_FILE_ROWS), "row")
    return f'<a download="{_text(name)}.csv" href="{target}">CSV, {count}</a>'


def _figure(plot: Plot, *, commands: bool) -> str:
    name, data = _anchor(plot.name), plot.data
    picture, note = _picture(plot)
    parts = [
        f"{_text(data.title)}.",
        note,
        f'<span class="file">Data: {_file_link(data, name)}.</span>',
        f"{_link('#commands', 'Commands of its runs')}." if commands else "",
    ]
    label = f'aria-label="{_text(data.title)}: data"'
    return (
        f'<figure id="{name}">{picture}<figcaption>{" ".join(part for part in parts if part)}'
        f'<details><summary>The data as a table</summary>{_box(data, label)}<p class="data">{_said_of(data)}</p>'
        "</details></figcaption></figure>\n"
    )


def _picture(plot: Plot) -> tuple[str, str]:
    """Return the picture in a box that scrolls, and what is to be said of it."""
    width, height = plot.figure.get_size_inches()
    if height > MOST_INCHES:
        return "", f"The picture would be {height * 0.0254:.0f} m long and is not drawn; its data has all figures."
    source, note = _image(plot)
    title = plot.data.title
    words = f"{title}. {plot.figure.get_suptitle() or title}. The numbers are in the table below the picture."
    tall = ' class="tall"' if height > width else ""
    image = f'<img{tall} src="{source}" width="{96 * width:.0f}" height="{96 * height:.0f}" alt="{_text(words)}">'
    return f'<div class="box picture" role="region" tabindex="0" aria-label="{_text(title)}">{image}</div>', note


def _image(plot: Plot) -> tuple[str, str]:
    """Return the address of the image, which holds it, and what is to be said of it."""
    # Letters as outlines: a phone has other fonts than this machine.
    with matplotlib.rc_context(SETTINGS | {"svg.fonttype": "path"}):
        points = _points(plot)
        if points <= MOST_POINTS:
            text = io.BytesIO()
            plot.figure.savefig(text, format="svg", metadata={"Date": None})
            if len(text.getvalue()) <= MOST_SVG_BYTES:
                return _data_uri("image/svg+xml", text.getvalue()), ""
        pixels = io.BytesIO()
        plot.figure.savefig(pixels, format="png", dpi=PIXELS_PER_INCH)
    note = "Every point is drawn, as pixels, for they are many." if points > MOST_POINTS else ""
    return _data_uri("image/png", pixels.getvalue()), note


def _points(plot: Plot) -> int:
    """Return how many points the plot's lines and clouds have."""
    lines = [np.asarray(line.get_xydata()) for axes in plot.figure.axes for line in axes.lines]
    clouds = [np.asarray(cloud.get_offsets()) for axes in plot.figure.axes for cloud in axes.collections]
    return sum(len(points) for points in (*lines, *clouds))
