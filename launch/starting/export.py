"""`python -m launch export`: the model of a run for PyTorch, Keras or ONNX, without this project."""

import argparse
import sys
from typing import Any

from common.errors import UserError
from common.trained.export import SUFFIXES, add_export_options, check_export_file, export
from common.trained.onnx_model import require_onnx, write_onnx
from common.utils.environments import missing_packages
from common.utils.paths import ROOT
from launch.starting.processes import run_filtered, trainer_environment

PROGRAMS = {"torch": "torch_impl/export.py", "keras": "keras_impl/export.py"}


def add_command(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    parser = commands.add_parser(
        "export",
        help="write the model of a run for PyTorch, Keras or ONNX",
        description="Write the model of a run, of either framework, as a file that needs nothing of this project.",
    )
    add_export_options(parser)
    parser.add_argument(
        "--to",
        choices=SUFFIXES,
        required=True,
        help="torch: a state_dict (.pt); keras: a model of plain Keras layers (.keras); onnx: a graph (.onnx)",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command; return the exit code.

    Raises:
        UserError: the framework is not installed; no run, no model, or a file that must not or cannot be written.
    """
    check_export_file(options.output, target=options.to, replaced=options.force)  # before a framework is imported
    if options.to == "onnx":
        require_onnx()
        export(write_onnx, options.run_folder, options.output, target="onnx", replaced=options.force)
        return 0
    if missing_packages(options.to):
        raise UserError(f"the framework is not installed. Received: --to {options.to}. Run `make setup`")
    words = [str(options.run_folder), "--output", str(options.output), *(["--force"] if options.force else [])]
    return run_filtered([sys.executable, str(ROOT / PROGRAMS[options.to]), *words], environment=trainer_environment())
