"""`python -m launch compare`: which framework trains a model faster on this host, and do the accuracies agree?

It makes runs of both frameworks in turns, each pair with a seed of its own, and ends with the answer and a report. The
same command goes on after an interruption.
"""

import argparse
import re
from collections import Counter
from pathlib import Path
from typing import Any

from common.config.options import read_options
from common.config.rules import flag_of
from common.distributed.console import readable_seconds
from common.errors import UserError, expanded
from common.utils.command_line import whole_number, word
from launch.experiments.command import config_in_folder, estimator_of_cells, make_in_folder
from launch.experiments.experiment_file import RESERVED
from launch.experiments.report import Estimator
from launch.experiments.survey import survey
from launch.starting.analysis import ask_analysis, run_analysis
from launch.starting.lanes import WHOLE_HOST
from launch.starting.processes import require_frameworks
from launch.starting.train import check_settings

LONG_SECONDS = 600  # above it, the estimate says what would shorten it
SHORTER = "fewer epochs (EPOCHS=1), a smaller model (MODEL=mlp) or data set, or more ranks on more cores (NP=4)"


def add_command(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    parser = commands.add_parser(
        "compare",
        help="which framework trains your model faster here?",
        description="Train one model with both frameworks in turns, show which is faster and whether the accuracies "
        "agree. Settings of the trainers follow after --. The same command goes on after an interruption.",
    )
    parser.add_argument("--model", type=word, default="cnn", help="as for the trainers (default: %(default)s)")
    parser.add_argument(
        "--dataset", type=word, default="mnist", help="as for the trainers, images:FOLDER too (default: %(default)s)"
    )
    parser.add_argument("--np", type=whole_number, default=2, help="number of ranks (default: %(default)s)")
    parser.add_argument("--epochs", type=whole_number, default=2, help="of each run (default: %(default)s)")
    parser.add_argument(
        "--repeats", type=whole_number, default=6, help="pairs of runs; below 6 there is no verdict (default: 6)"
    )
    parser.add_argument("--runs-folder", type=word, default="runs", help="where its folder is (default: %(default)s)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Make the missing runs, write the report, show the answer; return the exit code."""
    estimator = _estimator(options)
    plan = estimator.plan
    # Reports what prevents the runs before anything is created.
    require_frameworks(("torch", "keras"))
    for framework in ("torch", "keras"):
        check_settings(config_in_folder(plan), framework=framework, size=options.np)
    seconds = estimator.seconds_left(survey(plan))
    if seconds > LONG_SECONDS:
        print(f"this may take {readable_seconds(seconds)}; shorter with {SHORTER}")
    code = make_in_folder(estimator, [WHOLE_HOST], options=options)
    return code or _answer(plan.folder)


def _estimator(options: argparse.Namespace) -> Estimator:
    given = read_options(options.trainer_arguments, program="torch_impl/train.py")
    settings = {name: value for values in given.values() for name, value in values.items()}
    if reserved := settings.keys() & RESERVED.keys():
        name = min(reserved)
        raise UserError(
            f"a comparison has no setting {RESERVED[name]}. Received: {flag_of(name)} after --. Leave it out"
        )
    cell = {"model": options.model, "dataset": options.dataset, "np": options.np, "epochs": options.epochs}
    cell |= {name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()}
    cell |= {"launcher": "python"} if options.np == 1 else {}
    cells = [{**cell, "framework": framework} for framework in ("torch", "keras")]
    folder = expanded(options.runs_folder) / _folder_name(cell)
    return estimator_of_cells(cells, folder=folder, repeats=options.repeats, np=options.np)


def _folder_name(cell: dict[str, Any]) -> str:
    """Return the name of the folder of a combination of settings."""
    named = {name: value for name, value in cell.items() if name not in ("launcher", "model", "dataset")}
    words = [f"{name.replace('_', '')}{value}" for name, value in named.items()]
    return re.sub(r"[^\w.-]+", "-", "-".join(["compare", cell["model"], cell["dataset"], *words]))[:150]


def _answer(folder: Path) -> int:
    """Write the report, print where it is, what disturbed the runs, and the verdict; return the exit code."""
    report = folder / "report.html"
    report.unlink(missing_ok=True)  # of fewer runs
    code = run_analysis("report", folder, "-o", report)
    found = ask_analysis("frameworks", folder)
    if code or found is None:
        return code or 1
    for cause, count in Counter(_cause(flag) for flag in found["flags"]).items():
        print(f"Warning: {cause}" + (f" ({count} times)" if count > 1 else ""))
    print(found["answer"])
    return 0


def _cause(flag: str) -> str:
    """Return a flag without the names of its runs: many have the same."""
    cause = re.sub(r"^(torch|keras)-[^:]*: ", "", flag)
    return re.sub(r"^(another process ran on the machine): .*", r"\1 during a run", cause)
