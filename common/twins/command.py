"""`python -m common twins`: compare a PyTorch model with a Keras model."""

import argparse
import tempfile
from datetime import datetime
from functools import partial
from pathlib import Path

from common.errors import UserError
from common.twins.contract import PairSource, check_source
from common.twins.processes import compare
from common.twins.report import report_lines, write_page
from common.twins.verdict import judge
from common.utils.command_line import Parser, check_new_file, path, whole_number, word
from common.utils.printable import printable

DESCRIPTION = """Say whether a PyTorch model and a Keras model are the same, where they part, and why.

The file has INPUT = (height, width, channels), torch_model() and keras_model(); it is run, and nothing else is.
Arrays of layers that cannot be matched are named in it: WEIGHTS = {"torch.name": "keras/path"}.
Without a file, --torch and --keras name functions of libraries. Both models get the same random arrays.
Exit codes: 0 equal, 1 different, 2 an error, or layers that cannot be matched."""


def add_parser(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Add the `twins` command."""
    parser = commands.add_parser(
        "twins",
        help="compare a PyTorch model with a Keras model",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=path, nargs="?", metavar="FILE", help="a Python file with both models")
    for framework, example in (("torch", "torchvision.models:resnet50"), ("keras", "keras.applications:ResNet50")):
        parser.add_argument(f"--{framework}", type=word, metavar="MODULE:FUNCTION", help=f"such as {example}")
    number = partial(whole_number, most=10_000)
    parser.add_argument(
        "--input", type=number, nargs="+", metavar="SIZE", help="shape of a sample: height width channels"
    )
    parser.add_argument("--vocabulary", type=whole_number, metavar="N", help="samples are token ids below N")
    parser.add_argument("--page", type=path, metavar="FILE", help="the page with all layers (default: runs/twins-...)")
    parser.add_argument("--force", action="store_true", help="replace an existing page")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Compare two models, and print the report; return the exit code."""
    source = source_of(options)
    page = options.page or Path("runs") / f"twins-{source.name}-{datetime.now():%Y%m%d-%H%M%S}.html"
    check_new_file(page, option="--page", replaced=options.force)
    check_source(source)
    with tempfile.TemporaryDirectory(prefix="twins-") as folder:
        comparison = compare(source, Path(folder))
    verdict = judge(comparison)
    write_page(page, source, comparison, verdict)
    print("\n".join(printable(line) for line in report_lines(comparison, verdict, page=str(page))))
    return verdict.exit_code


def source_of(options: argparse.Namespace) -> PairSource:
    """Return what the command line asks for.

    Raises:
        UserError: it names neither a file nor both functions with a shape.
    """
    without = [name for name in ("torch", "keras", "input") if not getattr(options, name)]
    if options.file:
        if len(without) < 3 or options.vocabulary:
            raise UserError(
                "a file has its own models and INPUT. Received: a file and other options. Give one or the other"
            )
        return PairSource(file=str(options.file))
    if without:
        raise UserError(
            f"a file, or --torch, --keras and --input are needed. Received: no --{without[0]}. Give it, such as "
            "--torch torchvision.models:resnet50 --keras keras.applications:ResNet50 --input 224 224 3"
        )
    return PairSource(torch=options.torch, keras=options.keras, input=options.input, vocabulary=options.vocabulary or 0)
