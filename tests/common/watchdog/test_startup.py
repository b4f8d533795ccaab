"""What a trainer answers before it imports its framework, which takes seconds."""

import subprocess
import sys

import pytest
from processes import ROOT, environment


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["--help-all"], 0, ""),
        (["--version"], 0, ""),
        (["--epoks", "3"], 2, "X_impl/train.py: error: unknown option. Received: --epoks. Did you mean --epochs?"),
        (["--recipe", "nowhere.toml"], 2, "X_impl/train.py: error: "),
    ],
)
def test_help_and_errors_come_without_the_framework(framework, arguments, code, line):
    command = [sys.executable, "-X", "importtime", f"{framework}_impl/train.py", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=100)
    shown = [text for text in done.stderr.splitlines() if not text.startswith("import time: ")]
    assert done.returncode == code and "".join(shown[:1]).startswith(line.replace("X", framework))
    assert len(shown) == bool(line) and bool(done.stdout) == (code == 0)
    loaded = {text.rpartition("|")[2].strip() for text in done.stderr.splitlines() if text.startswith("import time: ")}
    assert "common.config" in loaded and not loaded & {"torch", "tensorflow", "keras", "horovod"}
