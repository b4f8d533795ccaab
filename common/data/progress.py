"""What long work on data prints: a progress bar in a terminal, a line elsewhere."""

import sys

from tqdm import tqdm

from common.distributed.console import Console


def say(line: str) -> None:
    """Write a line to stderr in one write, so that lines of several ranks do not mix."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def images_bar(total: int, *, doing: str, line: str = "") -> "tqdm[None]":
    """Return a progress bar of images; where there is no terminal, say the line instead."""
    shown = Console.automatic_bars()
    if line and not shown:
        say(line)
    return tqdm(total=total, desc=doing, unit="image", disable=not shown, leave=False)
