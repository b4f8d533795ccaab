"""SkyPilot's and ParallelCluster's own parsers, in an environment of their own: `make cloud-parsers`."""

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv.clouds" / "bin" / "python"


def ask(parser, files, *, home, variables):
    """Return what a parser of `cloud_worker.py` says of each file; nothing is asked of any network."""
    if not PYTHON.exists():
        pytest.skip("SkyPilot and ParallelCluster are not installed in .venv.clouds: make cloud-parsers")
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    done = subprocess.run(
        [PYTHON, Path(__file__).with_name("cloud_worker.py"), parser, *files],
        cwd=ROOT, capture_output=True, text=True,
        env={**nowhere, "HOME": str(home), "PATH": os.environ["PATH"], **variables},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("answer ")]
    assert len(lines) == len(files)
    return [json.loads(line.removeprefix("answer ")) for line in lines]
