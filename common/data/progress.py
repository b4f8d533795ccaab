"""What long work on data prints: a progress bar in a terminal, a line elsewhere."""

import sys

from tqdm import tqdm

from common.distributed.console import Console


def say(line: str) -> None:
    """Write a line to stderr in one write, so that lines of several ranks do not mix."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def announce(line: str) -> None:
    """Say what is about to take long, where no progress bar shows it."""
    if not Console.automatic_bars():
        say(line)


def images_bar(total: int, *, doing: str) -> "tqdm[None]":
    """Return a progress bar of images; it shows nothing where there is no terminal."""
    return tqdm(total=total, desc=doing, unit="image", disable=not Console.automatic_bars(), leave=False)
