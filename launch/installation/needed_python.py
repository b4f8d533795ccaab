"""The Python that the project needs. Older ones can read this file, to hand over or to report the error."""

import os
import shutil
import sys

NEEDED_PYTHON = (3, 11)
EXIT_CODE_USER_ERROR = 2  # as in common.errors, which older Pythons may not be able to read


def hand_over(program: str) -> None:
    """Return if this is the needed Python; else start the same program again by it, or exit with a one-line error.

    Args:
        program: name of the program, for the error.
    """
    if sys.version_info[:2] == NEEDED_PYTHON:
        return
    name = "python" + ".".join(map(str, NEEDED_PYTHON))
    other = shutil.which(name)
    if other and "HOROVOD_TWINS_HANDED_OVER" not in os.environ:
        os.environ["HOROVOD_TWINS_HANDED_OVER"] = "1"
        os.execv(other, [other, *sys.argv])
    version, received = ".".join(map(str, NEEDED_PYTHON)), sys.version.split()[0]
    print(
        f"{program}: error: Python {version} is needed. Received: Python {received} ({sys.executable}). Install {name} "
        f"with its venv module, or load its module; or name it: make setup PYTHON=/path/to/{name}",
        file=sys.stderr,
    )
    sys.exit(EXIT_CODE_USER_ERROR)
