"""Show results with `python -m analysis`, which this program starts and never imports."""

import os
import subprocess
import sys

from common.utils.environments import project_first


def run_analysis(*arguments: object, text: str | None = None) -> int:
    """Run `python -m analysis ARGUMENTS` with this interpreter and this terminal; return its exit code.

    Args:
        arguments: of the command line.
        text: its standard input; None: that of this program.
    """
    sys.stdout.flush()  # what was printed so far comes first, also in a pipe
    command = [sys.executable, "-m", "analysis", *map(str, arguments)]
    environment = {**os.environ, **project_first()}
    code = subprocess.run(command, input=text, text=True, env=environment, check=False).returncode
    return code if code >= 0 else 128 - code
