"""Options that several commands share: accuracies on the command line, in percent."""

import argparse
import math

MARGIN = 0.005  # of accuracy, as a fraction: half a percentage point


def percent(text: str) -> float:
    """Return a number above 0 and up to 100, for argparse.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= 100:
        raise argparse.ArgumentTypeError(f"a number above 0 and up to 100 is needed. Received: {text}")
    return value


def add_margin_option(parser: argparse.ArgumentParser) -> None:
    """Add the margin within which accuracies are called the same."""
    parser.add_argument(
        "--margin",
        type=percent,
        default=MARGIN * 100,
        metavar="POINTS",
        help="percentage points within which accuracies are called the same (default: %(default)s)",
    )


def add_target_option(parser: argparse.ArgumentParser, *, shown: str) -> None:
    """Add a validation accuracy; `shown` is what is shown until it is reached."""
    parser.add_argument(
        "--target",
        type=percent,
        metavar="PERCENT",
        help=f"show the {shown} to this validation accuracy (default: the target that runs recorded)",
    )
