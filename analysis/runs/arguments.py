"""Which runs a command is about: its options, and the folders that they name."""

import argparse

from analysis.runs.examples import NOTE as EXAMPLES
from analysis.runs.examples import example_folders
from analysis.runs.folders import Found, run_folders
from common.errors import UserError
from common.utils.command_line import word


def add_runs_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that select runs."""
    parser.add_argument("runs", type=word, nargs="*", metavar="RUNS", help="run folders, or folders that contain some")
    parser.add_argument("--examples", action="store_true", help=f"the runs that come with the project; {EXAMPLES}")
    parser.add_argument(
        "--published",
        nargs="*",
        metavar="SOURCE",
        help="after RUNS: add the results published in article, notebook, thesis or pydtnn (default: all)",
    )


def found_in(options: argparse.Namespace) -> Found:
    """Return the folders of the runs of `add_runs_options`.

    Raises:
        UserError: none are named, or one does not exist.
    """
    folders = [*options.runs, *(example_folders(options.command) if options.examples else [])]
    if not folders:
        raise UserError("no runs are named. Received: no RUNS. Name run folders, or folders that contain some, or give "
                        "--examples for the runs that come with the project")  # fmt: skip
    return run_folders(folders)
