"""Commands by argparse, with errors as everywhere here: one line."""

import argparse
from typing import NoReturn

from common.errors import EXIT_CODE_USER_ERROR


class Parser(argparse.ArgumentParser):
    """An `argparse.ArgumentParser` that leaves the usage to --help."""

    def error(self, message: str) -> NoReturn:
        """Print one line and end the program with exit code 2."""
        self.exit(EXIT_CODE_USER_ERROR, f"{self.prog}: error: {message}. See `{self.prog} --help`\n")
