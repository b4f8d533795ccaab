"""Commands, and options that several have, with their checks; accuracies are percentages, passed on as fractions."""

import argparse
import math
from collections.abc import Callable, Sequence
from typing import Any

from common.errors import UserError

MARGIN = 0.005  # of accuracy, as a fraction: half a percentage point


def add_parser(
    commands: Any, name: str, run: Callable[[argparse.Namespace], int | None], what: str, *, more: str = ""
) -> argparse.ArgumentParser:
    """Add a command to argparse's subcommands; return its parser.

    Args:
        commands: the subcommands.
        name: of the command.
        run: what it does; returns its exit code, or None for 0.
        what: it shows or does, in a few words.
        more: sentences for its own help.
    """
    description = f"{what[0].upper()}{what[1:]}. {more}"
    parser: argparse.ArgumentParser = commands.add_parser(name, help=what, description=description)
    parser.set_defaults(run=run)
    return parser


def number_or_nan(text: str) -> float:
    """Return the number that a text is; NaN, which no range contains, if it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def percent(text: str) -> float:
    """Return a number in (0, 100] as a fraction, for argparse.

    Raises:
        argparse.ArgumentTypeError: the text is not such a number.
    """
    value = number_or_nan(text)
    if not 0 < value <= 100:
        raise argparse.ArgumentTypeError(f"expected a number above 0 and at most 100. Received: {text}")
    return value / 100


def target_percent(text: str) -> float:
    """Return an accuracy in percent, above 1, as a fraction: a smaller number is a fraction already, given by mistake.

    Raises:
        argparse.ArgumentTypeError: the text is not such a number.
    """
    if not 1 < number_or_nan(text) <= 100:
        raise argparse.ArgumentTypeError(f"expected a percentage above 1 and at most 100, such as 95. Received: {text}")
    return percent(text)


def add_margin_option(parser: argparse.ArgumentParser) -> None:
    """Add --margin: the difference up to which accuracies count as the same."""
    parser.add_argument(
        "--margin",
        type=percent,
        default=MARGIN,
        metavar="POINTS",
        help=f"percentage points within which accuracies count as the same (default: {100 * MARGIN})",
    )


def add_target_option(parser: argparse.ArgumentParser, *, shown: str) -> None:
    """Add --target, a validation accuracy; `shown` names the quantity reported up to it."""
    parser.add_argument(
        "--target",
        type=target_percent,
        metavar="PERCENT",
        help=f"show the {shown} to this validation accuracy (default: the target recorded in the runs)",
    )


def check_show_options(options: argparse.Namespace) -> None:
    """Raise UserError, before the work, for CSV without a folder, or a folder without CSV."""
    if "csv_folder" in options and (options.format == "csv") != (options.csv_folder is not None):
        folder = "no --folder" if options.csv_folder is None else f"--folder {options.csv_folder}"
        raise UserError(
            f"CSV is a file per table in a folder. Received: --format {options.format} and {folder}. "
            "Give --format csv --folder FOLDER"
        )


def refuse_flags(flags: Sequence[str], options: Any) -> None:
    """Raise UserError if something is flagged and --strict is given."""
    if flags and options.strict:
        more = f" ({len(flags)} flags in all)" if len(flags) > 1 else ""
        raise UserError(f"not comparable. Received: {flags[0]}{more}. Leave out --strict to see the tables anyway")
