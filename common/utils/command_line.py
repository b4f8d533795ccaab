"""Commands by argparse, with errors in one line."""

import argparse
import os
import re
import signal
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import NoReturn

from common.errors import EXIT_CODE_INTERRUPTED, EXIT_CODE_USER_ERROR, UserError, as_user_error
from common.utils.printable import printable


def is_trainer() -> bool:
    """Return whether this process is a trainer, and not something that imports one."""
    return Path(sys.argv[0]).name == "train.py"


def program_name(file: str) -> str:
    """Return `torch_impl/train.py` for the path of that file."""
    path = Path(file).absolute()
    return f"{path.parent.name}/{path.name}"


class Parser(argparse.ArgumentParser):
    """An `argparse.ArgumentParser` that prints the usage only for --help."""

    def add_version(self) -> None:
        """Add the option `--version`."""
        self.add_argument("--version", action="version", version=project_version())

    def error(self, message: str) -> NoReturn:
        """Print one line and end the program with exit code 2."""
        shown = printable(str(UserError(message)))  # of which a long argument is cut
        self.exit(EXIT_CODE_USER_ERROR, f"{self.prog}: error: {shown}. See `{self.prog} --help`\n")


MOST_SIDE = 20_000  # pixels of an image
MOST = 10**6  # of anything that a command is asked to start, repeat or wait for


def whole_number(text: str, *, least: int = 1, most: int = MOST) -> int:
    """Read an argument that is a whole number from `least` to `most`: a `type` of argparse's.

    Raises:
        argparse.ArgumentTypeError: it is not.
    """
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"must be a whole number, {least} or more. Received: {text}")
    if int(text) > most:
        raise argparse.ArgumentTypeError(f"must be a whole number, {most:,} or less. Received: {text}")
    return int(text)


def height_and_width(text: str) -> tuple[int, int] | None:
    """Return the numbers of a text such as "148x197"; None for another text."""
    found = re.fullmatch(r"(\d{1,9})x(\d{1,9})", text)
    return (int(found[1]), int(found[2])) if found else None


def image_size(text: str) -> tuple[int, int]:
    """Read an argument that is height and width of images: a `type` of argparse's.

    Raises:
        argparse.ArgumentTypeError: it is not, or out of range.
    """
    height, width = height_and_width(text) or (0, 0)
    if not 1 <= min(height, width) <= max(height, width) <= MOST_SIDE:
        raise argparse.ArgumentTypeError(
            f"must be height x width, 1 to {MOST_SIDE:,} pixels each, such as 148x197. Received: {text}"
        )
    return height, width


def word(text: str) -> str:
    """Read an argument that must not be empty, as it is from a variable that is not set: a `type` of argparse's.

    Raises:
        argparse.ArgumentTypeError: it is.
    """
    if not text.strip():
        raise argparse.ArgumentTypeError(f"must not be empty. Received: {text!r}")
    return text


def path(text: str) -> Path:
    """Read an argument that is a path; an empty one would mean the current folder.

    Raises:
        argparse.ArgumentTypeError: it is empty.
    """
    return Path(word(text))


def check_new_file(file: Path, *, option: str = "--output", replaced: bool = False) -> None:
    """Raise UserError unless a file can be written and none is lost, before the work that fills it.

    Args:
        option: that named it, for the message.
        replaced: an existing file may be replaced (--force).
    """
    if file.is_dir():
        raise UserError(f"this is a folder, not a file. Received: {option} {file}. Name a file in it")
    if file.exists() and not replaced:
        raise UserError(
            f"the file already exists and is not overwritten. Received: {option} {file}. Name another, or give --force"
        )
    above = next(parent for parent in file.absolute().parents if parent.exists())
    if not above.is_dir():
        raise UserError(f"a file needs a folder. Received: {option} {file}, and {above} is a file. Name another place")


def project_version() -> str:
    """Return what `--version` of every program prints, e.g. "horovod-twins 0.1.0"."""
    return f"horovod-twins {metadata.version('horovod-twins')}"


def end_cleanly_on_sigterm() -> None:
    """Treat SIGTERM like Ctrl-C: what a command has started is ended, what is incomplete is removed."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def run_command(command: Callable[[], int | None], *, program: str) -> int:
    """Run a command; return its exit code, 2 after a user error (reported in one line), or 130 after Ctrl-C."""
    try:
        code = command()
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (UserError, OSError, MemoryError) as caught:
        print(f"{program}: error: {printable(str(as_user_error(caught)))}", file=sys.stderr)
        return EXIT_CODE_USER_ERROR
    except KeyboardInterrupt:
        return EXIT_CODE_INTERRUPTED
    return code or 0
