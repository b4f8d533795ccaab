"""The report page: one HTML file, rendered from `templates/`, for a browser, a phone and a printer.

Nothing is loaded from anywhere: the page's own Content-Security-Policy forbids it, and any script but its own. Without
scripts, only the sorting of tables is missing.
"""

import base64
import hashlib
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import jinja2

from analysis.output.finding import Finding, Plot
from analysis.output.tables import Table
from analysis.report.pictures import Picture, narrow_picture_of, picture_of
from analysis.report.tables import TableView, table_view
from common.distributed.console import counted
from common.errors import user_errors
from common.run_folder.records import now
from common.run_folder.revision import source_revision
from common.utils.atomic import write_atomically
from common.utils.html_pages import page_environment

MOST_NOTES = 20  # of a chapter
_TITLES = {"aa-test": "A/A test", "check": "Validity"}  # where the command's name is unclear
_TEMPLATES = Path(__file__).with_name("templates")


@dataclass(frozen=True, kw_only=True)
class Page:
    """The contents of a page.

    Attributes:
        facts: name -> value, below the title: when and from what it was made.
        chapters: in their order; the questions and answers of those that show something open the page, the others are
            what the runs do not answer.
        left_out: one column, the folder and the reason.
        first_plots: names of those that open the page, where the chapters have them.
        made_from: digests by which `report` finds the page up to date; empty: of another command.
    """

    title: str
    facts: dict[str, str]
    chapters: Sequence["Chapter"]
    left_out: Table
    first_plots: Sequence[str] = ()
    made_from: str = ""

    @property
    def shown(self) -> list["Chapter"]:
        """The chapters that show something."""
        return [chapter for chapter in self.chapters if not chapter.says_nothing]

    @property
    def open_questions(self) -> list["Chapter"]:
        """The others: what the runs do not answer."""
        return [chapter for chapter in self.chapters if chapter.says_nothing]

    @cached_property
    def flags(self) -> Table:
        """Each flag once, with its chapters."""
        chapters: dict[str, list[str]] = defaultdict(list)
        for chapter in self.chapters:
            for flag in chapter.finding.flags:
                chapters[flag].append(chapter.finding.name)
        return Table("", ["flag", "chapters"], [[flag, ", ".join(names)] for flag, names in chapters.items()], {})


def facts_of(contents: dict[str, str], *, command: str) -> dict[str, str]:
    """Return the facts of a page: when it was created, what it contains, and by which command and revision."""
    created = now()[:16].replace("T", " ") + " UTC"
    return {
        "Created": created,
        **contents,
        "Command": command,
        "Revision": source_revision(),
    }


@dataclass(frozen=True, kw_only=True)
class Illustration:
    """A plot on the page: its picture, if it can be drawn, the table of its data, and the command that draws it.

    Attributes:
        narrow: the picture for a phone, of a plot that opens the page.
    """

    name: str
    command: str
    picture: Picture | None
    narrow: Picture | None
    alt: str
    remark: str
    table: TableView

    @classmethod
    def of(cls, plot: Plot, *, command: str, is_first: bool) -> "Illustration":
        """Draw a plot of a command, which changes its figure if it opens the page."""
        picture, remark = picture_of(plot.figure)
        title = plot.data.title
        alt = f"{title}. {plot.figure.get_suptitle() or title}. The numbers are in the table below the picture."
        table = table_view(plot.data, anchor=_anchor(plot.name))
        narrow = narrow_picture_of(plot.figure) if is_first else None
        return cls(name=plot.name, command=command, picture=picture, narrow=narrow, alt=alt, remark=remark, table=table)


@dataclass(frozen=True, kw_only=True)
class Chapter:
    """A finding on the page.

    Attributes:
        finding: without its plots.
    """

    anchor: str
    title: str
    finding: Finding
    tables: Sequence[TableView]
    figures: Sequence[Illustration]

    @classmethod
    def of(cls, finding: Finding, *, command: str, first_plots: Sequence[str] = ()) -> "Chapter":
        """Lay out the finding of a command; tables without rows are not shown.

        Args:
            finding: what it found.
            command: of `python -m analysis`, with its arguments.
            first_plots: names of those that open the page.
        """
        drawn_by = f"python -m analysis {command} --plots plots"
        anchor = _anchor(finding.name)
        title = _TITLES.get(finding.name, finding.name.replace("-", " "))
        return cls(
            anchor=anchor,
            title=title[:1].upper() + title[1:],
            finding=replace(finding, plots=()),
            tables=[
                table_view(table, anchor=f"{anchor}-table-{number}")
                for number, table in enumerate(finding.tables, start=1)
                if table.rows
            ],
            figures=[
                Illustration.of(plot, command=drawn_by, is_first=plot.name in first_plots) for plot in finding.plots
            ],
        )

    @property
    def says_nothing(self) -> bool:
        """Whether it has no rows and no plots to show."""
        return not self.figures and not self.tables


def html_of(page: Page) -> str:
    """Return the page as HTML."""
    template = _environment().get_template("page.html.jinja")
    style, script = ((_TEMPLATES / f"report.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    chapters = page.shown
    figures = {figure.name: figure for chapter in chapters for figure in chapter.figures}
    return template.render(
        page=page,
        style=style,
        script=script,
        chapters=chapters,
        first_figures=[figures[name] for name in page.first_plots if name in figures],
        has_commands=any(chapter.finding.name == "commands" for chapter in chapters),
        flags=table_view(page.flags, anchor="flags-table") if page.flags.rows else None,
        left_out=table_view(page.left_out, anchor="left-out-table") if page.left_out.rows else None,
        most_notes=MOST_NOTES,
    )


def write_page(page: Page, output: Path) -> str:
    """Write a page, complete or not at all; return in words what was written.

    Raises:
        UserError: it cannot be written.
    """
    text = html_of(page)
    with user_errors("writing the page"):
        output.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(output, text)
    plots = sum(len(chapter.figures) for chapter in page.chapters)
    return (
        f"{output} ({len(text) / 1e6:.1f} MB): chapters {len(page.shown)}, plots {plots}, flags {len(page.flags.rows)}"
    )


def _environment() -> jinja2.Environment:
    environment = page_environment(_TEMPLATES)
    environment.filters |= {"counted": counted, "digest": _digest, "with_unit": _with_unit}
    return environment


def _anchor(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _digest(text: str) -> str:
    """Return the hash by which the page's policy admits its own style and script."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _with_unit(heading: str) -> str:
    """Return a heading whose unit stays on the line of what it measures: a no-break space follows the comma."""
    return heading.replace(", ", ",\N{NO-BREAK SPACE}")
