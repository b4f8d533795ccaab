"""`python -m analysis export`: read back by MLflow's client and by TensorBoard's loader and HParams plugin."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from builders import make_status, write_finished_run
from extras import environment_with_extras
from processes import environment

from analysis.__main__ import main

ROOT = Path(__file__).resolve().parents[3]
STARTED = "2026-01-31T12:00:00.000+00:00"
TENSORBOARD_READER = """
import json, sys
sys.modules["tensorflow"] = None  # takes seconds to import, and nothing here needs it
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata
events = EventAccumulator(sys.argv[1])
events.Reload()
content = events.SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data.content
session = metadata.parse_session_start_info_plugin_data(content)
found = {tag: [[event.step, event.value] for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
settings = {name: getattr(value, value.WhichOneof("kind")) for name, value in session.hparams.items()}
print(json.dumps({"settings": settings, "scalars": found, "started": session.start_time_secs}))
"""
MLFLOW_READER = """
import json, sys
from mlflow import MlflowClient
client = MlflowClient(tracking_uri=f"sqlite:///{sys.argv[1]}/mlflow.db")
(experiment,) = [one for one in client.search_experiments() if one.name == "horovod-twins"]
found = {}
for run in client.search_runs([experiment.experiment_id]):
    history = {name: [[one.step, one.value] for one in client.get_metric_history(run.info.run_id, name)]
               for name in run.data.metrics}
    files = [file.path for file in client.list_artifacts(run.info.run_id)]
    record = json.load(open(client.download_artifacts(run.info.run_id, "run.json")))
    found[run.info.run_name] = {"status": run.info.status, "settings": run.data.params, "scalars": history,
                                "files": files, "framework": record["framework"], "started": run.info.start_time}
print("answer", json.dumps(found))
"""


@pytest.fixture
def runs(tmp_path):
    """Two runs of one name in two folders: one finished, one of the other framework that failed."""
    folder = tmp_path / "runs"
    done = make_status(state="finished", started_at=STARTED, ended_at=STARTED)
    write_finished_run(folder / "a" / "r1", accuracies=[None, 0.5, 0.75], seconds=90.0, accuracy=0.8, status=done)
    write_finished_run(folder / "b" / "r1", framework="keras", seed=2, status=make_status(state="failed"))
    return folder


def run(command, variables):
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def check(found):
    """Check the figures of the finished run."""
    assert found["scalars"]["validation_accuracy"] == [[2, 0.5], [3, 0.75]]
    assert found["scalars"]["training_seconds"] == [[1, 30.0], [2, 30.0], [3, 30.0]]
    assert found["scalars"]["run/training_seconds"] == [[3, 90.0]]
    assert found["scalars"]["run/test_accuracy"][0] == [3, pytest.approx(0.8)]
    assert "run/energy_joules" not in found["scalars"], "it was not measured"


def test_tensorboard_shows_settings_and_figures(runs, tmp_path, capsys):
    folder = tmp_path / "events"
    assert main(["export", str(runs), "--to", "tensorboard", "--folder", str(folder)]) == 0
    assert capsys.readouterr().out == f"export: 2 runs in {folder}. Open: tensorboard --logdir {folder}\n"
    assert sorted(str(path.parent.relative_to(folder)) for path in folder.glob("*/*/*")) == ["a/r1", "b/r1"]
    found = json.loads(run([sys.executable, "-c", TENSORBOARD_READER, str(folder / "a" / "r1")], environment()))
    check(found)
    expected = {"framework": "torch", "np": 1, "learning_rate": 0.01, "nesterov": False, "data_set": "mnist"}
    assert {name: found["settings"][name] for name in expected} == expected
    assert "early_stop_epochs" not in found["settings"], "it was off"
    assert found["started"] == 1769860800.0


@pytest.mark.ci
def test_mlflow_has_settings_figures_and_files(runs, tmp_path):
    folder, variables = tmp_path / "store", environment_with_extras()
    program = f"from analysis.__main__ import main; import sys; assert main(sys.argv[2:]) == 0{MLFLOW_READER}"
    command = [sys.executable, "-c", program, str(folder), "export", str(runs), "--to", "mlflow", "--folder"]
    printed = run([*command, str(folder)], variables).splitlines()
    assert printed[0].startswith(f"export: 2 runs in {folder}. ")
    found = json.loads(printed[-1].removeprefix("answer "))
    assert sorted(found) == ["a/r1", "b/r1"]
    check(found["a/r1"])
    expected = {"framework": "torch", "np": "1", "learning_rate": "0.01", "nesterov": "False", "data_set": "mnist"}
    assert {name: found["a/r1"]["settings"][name] for name in expected} == expected
    assert found["a/r1"]["files"] == ["epochs.jsonl", "run.json"] and found["a/r1"]["started"] == 1769860800000
    assert (found["a/r1"]["status"], found["b/r1"]["status"]) == ("FINISHED", "FAILED")
    assert found["b/r1"]["framework"] == "keras"


def test_a_package_that_is_missing_is_named(runs, monkeypatch, capsys):
    def error_of(to, folder):
        assert main(["export", str(runs), "--to", to, "--folder", str(folder)]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        return error

    monkeypatch.setitem(sys.modules, "mlflow", None)
    assert "MLflow's store needs its packages" in error_of("mlflow", runs.parent / "new")
    for name in [*sys.modules, "tensorboard"]:
        if name.split(".")[0] == "tensorboard":
            monkeypatch.setitem(sys.modules, name, None)
    assert "Received: --to tensorboard. Run `pip install tensorboard`" in error_of("tensorboard", runs.parent / "new")
    assert not (runs.parent / "new").exists()
