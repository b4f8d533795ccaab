"""`python -m analysis results`: the tables of results in the pages of this repository, from `analysis/data`.

A page names a table between two comments; the command replaces what is between them:

    <!-- results: frameworks -->
    <!-- end of results -->
"""

import argparse
import re
from pathlib import Path
from typing import Any

from analysis.output.options import add_parser
from analysis.output.plots import save_figure
from analysis.results.data import add_data
from analysis.results.tables import TABLES, plots
from analysis.runs.examples import DATA
from common.errors import UserError, expanded
from common.utils.atomic import write_atomically
from common.utils.command_line import word

ROOT = Path(__file__).resolve().parents[2]
FIGURES = ROOT / "analysis" / "figures"
PAGES = ("README.md", "analysis/RESULTS.md")
_RESULTS = re.compile(r"(?<=<!-- results: )(?P<name>[a-z-]+) -->\n.*?(?=<!-- end of results -->)", re.DOTALL)


def add_command(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    parser = add_parser(commands, "results", run, "write the tables of results into this repository's pages")
    parser.add_argument(
        "--add",
        type=word,
        nargs="+",
        default=[],
        metavar="RUNS",
        help="first copy these folders of runs, or a file of `launch bench`, into analysis/data, without weights, host "
        "names and paths; what has the same name is replaced",
    )


def run(options: argparse.Namespace) -> None:
    """Run the command.

    Raises:
        UserError: this is no clone of the repository, or a folder of runs cannot be read.
    """
    if not (ROOT / PAGES[-1]).is_file():
        raise UserError(f"results are written in a clone of the repository. Received: {ROOT}. Run it there")
    for name in options.add:
        folder = expanded(name)
        print(f"{folder}: {add_data(folder, data=DATA)} runs added to {DATA.relative_to(ROOT)}")
    for name in PAGES:
        page = ROOT / name
        write_atomically(page, with_results(page.read_text(encoding="utf-8"), data=DATA))
        print(f"written: {name}")
    for plot in plots(DATA):
        file = save_figure(plot.figure, FIGURES, plot.name)[0]
        file.with_suffix(".svg").unlink()
        print(f"written: {file.relative_to(ROOT)}")


def with_results(page: str, *, data: Path) -> str:
    """Return a page with the tables that it names.

    Raises:
        UserError: it names a table that does not exist.
    """

    def table(found: re.Match[str]) -> str:
        name = found["name"]
        if name not in TABLES:
            raise UserError(f"there is no such table of results. Received: {name}. Use {', '.join(TABLES)}")
        return f"{name} -->\n{TABLES[name](data)}\n"

    return _RESULTS.sub(table, page)
