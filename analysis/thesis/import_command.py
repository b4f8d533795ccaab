"""`python -m analysis import-thesis`: the raw files of the thesis as run folders.

All files are read and checked first. The folders are built under a hidden name and renamed last, so that a failed
import leaves nothing behind. `analysis.thesis.runs` lists their names.
"""

import argparse
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tabulate import tabulate

from analysis.output.options import add_parser
from analysis.thesis.runs import ThesisRun, read_thesis
from common.distributed.console import counted
from common.errors import UserError, expanded, user_errors
from common.run_folder.power_file import POWER_FILE, write_power
from common.run_folder.records import write_epochs, write_record
from common.run_folder.run_writer import check_new_folder
from common.utils.command_line import word

TOLERATED_SECONDS = 0.1  # The thesis rounded the times of its epochs, to 1e-6 s and in means


def add_command(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    parser = add_parser(commands, "import-thesis", run, "the raw files of the thesis as run folders")
    parser.add_argument(
        "thesis", type=word, metavar="THESIS", help="contains Resultados_experimentos and Datos_Capitulos"
    )
    parser.add_argument("--folder", type=word, required=True, metavar="RUNS", help="for the run folders")


def run(options: argparse.Namespace) -> None:
    """Run the command.

    Raises:
        UserError: a file is missing or not as expected, or a run folder exists or cannot be written.
    """
    thesis, folder = expanded(options.thesis), expanded(options.folder)
    if not thesis.is_dir():
        raise UserError(f"no such folder. Received: {thesis}. Name the folder of the thesis's raw files")
    runs = read_thesis(thesis)
    write_runs(runs, folder=folder)
    print(f"{counted(len(runs), 'run')} of the thesis written to {folder}")
    print(tabulate(Counter(run.group for run in runs).items(), tablefmt="plain"))
    print("missing in its files: the CPU's power over time; cpu-energy1 has its sums")
    for line in unexplained(runs):
        print(line)


def unexplained(runs: Sequence[ThesisRun]) -> list[str]:
    """Return how closely the epochs' times add up to the total times in the files, and the exceptions."""
    of_epochs, of_means = (
        max(abs(run.unexplained_seconds) for run in runs if bool(run.epochs) == by_epoch) for by_epoch in (True, False)
    )
    return [
        f"the times of the epochs add up to the total times in the files within {of_epochs:.4f} s, their means within "
        f"{of_means:.4f} s; the totals here are the sums",
        *(
            f"note: {run.name}: its total time is {run.unexplained_seconds:+.4f} s from the sum over its epochs"
            for run in runs
            if abs(run.unexplained_seconds) > TOLERATED_SECONDS
        ),
    ]


def write_runs(runs: Sequence[ThesisRun], *, folder: Path) -> None:
    """Write all run folders into a folder, or none.

    Raises:
        UserError: one exists already, or cannot be written.
    """
    for one in runs:
        check_new_folder(folder / one.name, remedy="Name another with --folder")
    existed, placed = folder.exists(), []
    with user_errors("writing the imported runs"):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder, prefix=".import-") as name:
                building = Path(name)
                for one in runs:
                    _write_run(one, building / one.name)
                for one in runs:
                    (building / one.name).rename(folder / one.name)
                    placed.append(folder / one.name)
        except BaseException:
            for path in placed:
                shutil.rmtree(path)
            if not existed:
                with suppress(OSError):
                    folder.rmdir()
            raise


def _write_run(run: ThesisRun, folder: Path) -> None:
    folder.mkdir()
    write_record(folder, run.record)
    write_epochs(folder, run.epochs)
    if run.trace is not None:
        write_power(folder / POWER_FILE, [run.trace])
