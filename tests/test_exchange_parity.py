"""Training with BatchNorm: from the same state both frameworks reach the same state, update after update.

A network with BatchNorm that runs freely in two frameworks parts for good reason: rounding grows from update to update.
So each update starts from the state that PyTorch had (`exchange_worker.py`), in float64.
"""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from exchange_worker import OPTIMIZERS
from rule_workers import TESTS, environment

TOLERANCE = 1e-8
TIMEOUT_SECONDS = 900

# 50 updates take two minutes each; the quick tests make a few.
CASES = [
    pytest.param("momentum", 6, id="momentum-6"),
    *(pytest.param(name, 50, id=f"{name}-50", marks=pytest.mark.long) for name in OPTIMIZERS if name != "mse"),
]


@pytest.mark.parametrize(("optimizer", "updates"), CASES)
def test_every_update_of_resnet34_ends_the_same(optimizer: str, updates: int, tmp_path: Path) -> None:
    for framework in ("torch", "keras"):
        if importlib.util.find_spec(framework) is None:
            pytest.skip(f"{framework} is not installed")
    commands = [
        [sys.executable, str(TESTS / "exchange_worker.py"), framework, str(tmp_path), optimizer, str(updates)]
        for framework in ("torch", "keras")
    ]
    logs = [tmp_path / f"{number}.log" for number in range(2)]
    processes = []
    for command, log in zip(commands, logs, strict=True):
        with log.open("w") as output:
            processes.append(subprocess.Popen(command, env=environment(), stdout=output, stderr=subprocess.STDOUT))
    try:
        codes = [process.wait(timeout=TIMEOUT_SECONDS) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert codes == [0, 0], [log.read_text()[-3000:] for log in logs]
    differences = json.loads((tmp_path / "differences.json").read_text())
    assert len(differences) == updates
    for number, difference in enumerate(differences):
        assert max(difference["weights"], difference["slots"]) <= TOLERANCE, (number, difference)
    assert differences[0]["moved"] > 0, "a weight that does not move proves nothing"
