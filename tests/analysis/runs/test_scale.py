"""10,000 run folders of 100 epochs: every command works on them within 1 GB. The seconds it takes are printed (-s)."""

import subprocess
import sys
import time

import pytest
from builders import write_finished_run

from common.run_folder.records import EPOCHS_FILE
from launch.bench.copied_runs import copy_runs

RUNS, EPOCHS, SETTINGS = 10_000, 100, 125
COMMANDS = ("frameworks", "check", "aa-test", "clouds", "scaling", "energy", "hyperparameters", "times", "report")
MEASURED = """
import resource, sys
from analysis.__main__ import main
code = main(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, file=sys.stderr)
sys.exit(code)
"""


@pytest.fixture(scope="module")
def studies(tmp_path_factory):
    """Return a folder of runs: 2 frameworks x 125 settings x 40 seeds."""
    folder, apart = tmp_path_factory.mktemp("studies"), tmp_path_factory.mktemp("model")
    model = write_finished_run(apart / "model", accuracies=[0.5 + 0.004 * epoch for epoch in range(EPOCHS)],
                               settings={"training": {"epochs": EPOCHS}})  # fmt: skip
    # As measured runs have it: a number, the reading of which is the quick way.
    epochs = (model / EPOCHS_FILE).read_text().replace('{"not_recorded": "read inside the step"}', "0.5")
    assert "not_recorded" not in epochs
    (model / EPOCHS_FILE).write_text(epochs)
    copy_runs(folder, model=model, runs=RUNS, settings=SETTINGS)
    return folder


@pytest.mark.long
@pytest.mark.parametrize("command", COMMANDS)
def test_thousands_of_runs(studies, tmp_path, command):
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, command, studies], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    print(f"{command}: {time.monotonic() - started:.1f} s, {int(done.stderr.split()[-1]) / 1e6:.0f} MB")
    assert done.returncode == 0, done.stderr
    assert int(done.stderr.split()[-1]) < 1e9
