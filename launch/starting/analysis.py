"""Show results with `python -m analysis`, which this program starts and never imports."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from common.utils.environments import project_first


def run_analysis(*arguments: object, text: str | None = None) -> int:
    """Run `python -m analysis ARGUMENTS` with this interpreter and this terminal; return its exit code.

    Args:
        arguments: of the command line.
        text: its standard input; None: that of this program.
    """
    sys.stdout.flush()  # what was printed so far comes first, also in a pipe
    code = subprocess.run(_command(arguments), input=text, text=True, env=_environment(), check=False).returncode
    return code if code >= 0 else 128 - code


def ask_analysis(*arguments: object) -> dict[str, Any] | None:
    """Return what a question of `python -m analysis` finds, of `--format json`; None: it failed, and has said why."""
    command = [*_command(arguments), "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, env=_environment(), check=False)
    if done.returncode:
        print(done.stderr, end="", file=sys.stderr)
        return None
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _command(arguments: Sequence[object]) -> list[str]:
    return [sys.executable, "-m", "analysis", *map(str, arguments)]


def _environment() -> dict[str, str]:
    return {**os.environ, **project_first()}
