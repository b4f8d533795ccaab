"""`python -m analysis export`: the runs for MLflow or TensorBoard: settings, figures of every epoch, totals, files."""

import argparse
from typing import Any

from analysis.export.exported import exported_runs
from analysis.export.mlflow_store import DATABASE, require_mlflow, write_store
from analysis.export.tensorboard_folder import write_events
from analysis.output.finding import selected
from analysis.output.options import add_parser
from analysis.runs.arguments import add_runs_options
from common.distributed.console import counted
from common.errors import UserError, user_errors
from common.run_folder.tensorboard_events import require_tensorboard
from common.utils.command_line import path


def add_command(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    parser = add_parser(commands, "export", run, "the runs for MLflow or TensorBoard")
    add_runs_options(parser)
    parser.add_argument("--to", choices=["mlflow", "tensorboard"], required=True)
    parser.add_argument("--folder", type=path, required=True, metavar="FOLDER", help="a new one, or an empty one")


def run(options: argparse.Namespace) -> None:
    """Run the command.

    Raises:
        UserError: no runs, a package is missing, or a folder that holds something or cannot be written.
    """
    folder = options.folder
    if options.to == "mlflow":
        require_mlflow()
    else:
        require_tensorboard("--to tensorboard")
    with user_errors("exporting the runs"):
        if folder.exists() and any(folder.iterdir()):
            raise UserError(f"the folder is not empty and nothing in it is changed. Received: {folder}. Name a new one")
        selection = selected(options)
        folder.mkdir(parents=True, exist_ok=True)
        (write_store if options.to == "mlflow" else write_events)(exported_runs(selection), folder)
    opened = {
        "mlflow": f"mlflow ui --backend-store-uri sqlite:///{folder / DATABASE}  (of a whole MLflow)",
        "tensorboard": f"tensorboard --logdir {folder}",
    }
    print(f"export: {counted(len(selection.runs), 'run')} in {folder}. Open: {opened[options.to]}")
    print(*(f"flag: {line}\n" for line in selection.left_out), sep="", end="")
