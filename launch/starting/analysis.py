"""Show results with `python -m analysis`, which this program starts and never imports."""

import subprocess
import sys


def run_analysis(*arguments: object) -> int:
    """Run `python -m analysis ARGUMENTS` with this interpreter and this terminal; return its exit code."""
    sys.stdout.flush()  # what was printed so far comes first, also in a pipe
    code = subprocess.run([sys.executable, "-m", "analysis", *map(str, arguments)], check=False).returncode
    return code if code >= 0 else 128 - code
