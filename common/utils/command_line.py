"""Commands by argparse, with errors as everywhere here: one line."""

import argparse
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from common.errors import EXIT_CODE_INTERRUPTED, EXIT_CODE_USER_ERROR, UserError, as_user_error


class Parser(argparse.ArgumentParser):
    """An `argparse.ArgumentParser` that leaves the usage to --help."""

    def error(self, message: str) -> NoReturn:
        """Print one line and end the program with exit code 2."""
        self.exit(EXIT_CODE_USER_ERROR, f"{self.prog}: error: {message}. See `{self.prog} --help`\n")


def run_command(command: Callable[[], int | None], *, program: str) -> int:
    """Run a command; return its exit code: its own, 2 after one line for what the user can mend, 130 after Ctrl-C."""
    try:
        code = command()
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (UserError, OSError, MemoryError) as caught:
        print(f"{program}: error: {as_user_error(caught)}", file=sys.stderr)
        return EXIT_CODE_USER_ERROR
    except KeyboardInterrupt:
        return EXIT_CODE_INTERRUPTED
    return code or 0
