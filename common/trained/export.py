"""A run's model as a file for other programs, which need nothing of this project to read it.

Both `export.py` programs and the export to ONNX share this: read a run, check the file, write it, describe the model.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from common.config import add_onednn_option
from common.distributed.console import counted
from common.errors import UserError, user_errors
from common.trained.trained_model import TrainedModel, read_trained_model
from common.utils.atomic import temporary_folder_beside
from common.utils.command_line import Parser, check_new_file, path, run_command

Target = Literal["torch", "keras", "onnx"]
Write = Callable[[TrainedModel, Path], None]
SUFFIXES: dict[Target, str] = {"torch": ".pt", "keras": ".keras", "onnx": ".onnx"}


def run_export(write: Write, arguments: Sequence[str] | None, *, program: str, target: Target) -> int:
    """Run the program; return its exit code.

    Args:
        write: writes the model into a new file.
        arguments: of the command line; None: those of this process.
        program: its name, for messages.
        target: for which it is written.
    """
    parser = Parser(prog=program, description="Write the model of a run, of either framework, for other programs.")
    parser.add_version()
    add_export_options(parser)
    add_onednn_option(parser)
    options = parser.parse_args(arguments)

    def write_computed(trained: TrainedModel, file: Path) -> None:
        write(trained.computed_with(options.onednn), file)

    return run_command(
        lambda: export(write_computed, options.run_folder, options.output, target=target, replaced=options.force),
        program=program,
    )


def add_export_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of every export."""
    parser.add_argument(
        "run_folder",
        type=path,
        metavar="RUN",
        help="run folder; its final weights, or else its newest checkpoint, are used",
    )
    parser.add_argument("--output", type=path, required=True, metavar="FILE", help="ends in .pt, .keras or .onnx")
    parser.add_argument("--force", action="store_true", help="replace the file if it exists")


def check_export_file(output: Path, *, target: Target, replaced: bool) -> None:
    """Raise UserError, before the work, for a file of another kind, or one that must not or cannot be written."""
    suffix = SUFFIXES[target]
    if output.suffix != suffix:
        raise UserError(f"the file should end in {suffix}. Received: --output {output}. Name it {output.stem}{suffix}")
    check_new_file(output, replaced=replaced)


def export(write: Write, run: Path, output: Path, *, target: Target, replaced: bool = False) -> None:
    """Write the model of a run into a file, whole or not at all, and print how to use it.

    Raises:
        UserError: no run, no model, or a file that must not or cannot be written.
    """
    check_export_file(output, target=target, replaced=replaced)
    trained = read_trained_model(run)
    with user_errors("writing the model"):
        output.parent.mkdir(parents=True, exist_ok=True)
        with temporary_folder_beside(output) as folder:
            write(trained, folder / output.name)
            size = (folder / output.name).stat().st_size
            (folder / output.name).replace(output)
    print(f"export: {output} ({size / 1e6:.1f} MB): {description(trained)}")


def description(trained: TrainedModel) -> str:
    """Return which model it is, what it reads and what it gives, in one line."""
    height, width, channels = trained.data.image_shape
    scaled = "pixels from 0 to 1"
    if trained.config.data.normalization == "standard":
        deviation = np.array(trained.data.standard_deviation)
        mean = ", ".join(f"{value:.6g}" for value in trained.data.mean)
        divisor = ", ".join(f"{value:.6g}" for value in np.where(deviation > 0, deviation, 1))
        scaled = f"({scaled} - [{mean}]) / [{divisor}]"
    return (
        f"{trained.spec.name} for images of {height} x {width} pixels, {counted(channels, 'channel')}. "
        f"Input: {scaled}. Output: {trained.spec.outputs} linear outputs per image"
    )
