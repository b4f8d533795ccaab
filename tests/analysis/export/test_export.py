"""`python -m analysis table` and `export`: read back by pandas, by MLflow's client and by TensorBoard's loader."""

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from builders import make_status, write_finished_run
from extras import environment_with_extras
from processes import environment

from analysis.__main__ import main
from analysis.export.tidy import tidy_runs
from analysis.runs.reading import load_runs
from common.measurement.step_profile import PARTS, StepProfile

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
PARQUET_READER = """
import sys, pandas as pd
from analysis.__main__ import main
from analysis.export.tidy import tidy_runs
from analysis.runs.reading import load_runs
runs, file = sys.argv[1:]
assert main(["table", runs, "--output", file]) == 0
pd.testing.assert_frame_equal(pd.read_parquet(file), tidy_runs(load_runs([runs])))
"""


@pytest.fixture
def runs(tmp_path):
    """A run with a target and a validation accuracy for two of three epochs, and one of Keras that was profiled."""
    folder = tmp_path / "runs"
    write_finished_run(
        folder / "a" / "001", accuracies=[None, 0.5, 0.75], np=2, seconds=90.0, accuracy=0.8,
        status=make_status(state="finished", started_at=STARTED, ended_at=STARTED),
        settings={"training": {"target_accuracy": 0.7}}, totals={"epochs_to_target": 3, "seconds_to_target": 94.0},
    )  # fmt: skip
    profile = StepProfile(
        steps=6, left_out_steps=5, step_seconds=0.7, parts_seconds=dict.fromkeys(PARTS, 0.1), parts_over_step=1.0,
        step_seconds_of_ranks=[0.7, 0.7], parts_seconds_of_ranks={part: [0.05, 0.15] for part in PARTS},
    )  # fmt: skip
    write_finished_run(folder / "b" / "=2+3", framework="keras", seed=2, profile=profile)
    return folder


def run(code, *arguments, variables):
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


# Tables


def table(runs, output, *words):
    assert main(["table", str(runs), "--output", str(output), *words]) == 0
    return output


def test_a_row_per_run_has_settings_totals_and_units(runs, tmp_path):
    (tmp_path / "runs.csv").write_text("mine")
    frame = pd.read_csv(table(runs, tmp_path / "runs.csv", "--force"), dtype={"name": str}).set_index("name")
    run = frame.loc["001"]
    assert run[["framework", "np", "seed", "global_batch", "target_accuracy"]].tolist() == ["torch", 2, 1, 60, 0.7]
    assert run[["training_seconds", "test_accuracy", "epochs_to_target"]].tolist() == [90.0, 0.8, 3]
    assert run["folder"] == str(runs / "a" / "001") and pd.isna(run["energy_joules"])
    assert frame.index.tolist() == ["001", "'=2+3"], "a spreadsheet must not run the second"


def test_a_row_per_epoch_and_per_part_of_a_step(runs, tmp_path):
    frame = pd.read_csv(table(runs, tmp_path / "epochs.csv", "--of", "epochs"))
    assert frame["epoch"].tolist() == [1, 2, 3, 1, 2, 3]
    assert frame["validation_accuracy"].tolist()[1:3] == [0.5, 0.75] and frame["validation_accuracy"].isna().sum() == 4
    frame = pd.read_csv(table(runs, tmp_path / "parts.csv", "--of", "parts"))
    assert frame["part"].tolist() == list(PARTS) and set(frame["framework"]) == {"keras"}
    assert set(frame["part_seconds"]) == {0.1} and set(frame["slowest_rank_part_seconds"]) == {0.15}


def test_json_keeps_every_type(runs, tmp_path):
    read = pd.read_json(table(runs, tmp_path / "runs.json"), orient="table", precise_float=True)
    pd.testing.assert_frame_equal(read, tidy_runs(load_runs([runs])))
    assert read["name"].tolist() == ["001", "=2+3"]


@pytest.mark.ci
def test_parquet_keeps_every_type(runs, tmp_path):
    run(PARQUET_READER, runs, tmp_path / "runs.parquet", variables=environment_with_extras())


# Other programs


def check(found, *, as_type=lambda value: value):
    """Check the settings and figures of the finished run."""
    assert found["scalars"]["validation_accuracy"] == [[2, 0.5], [3, 0.75]]
    assert found["scalars"]["training_seconds"] == [[1, 30.0], [2, 30.0], [3, 30.0]]
    assert found["scalars"]["run/training_seconds"] == [[3, 90.0]]
    assert found["scalars"]["run/test_accuracy"][0] == [3, pytest.approx(0.8)]
    assert "run/energy_joules" not in found["scalars"], "it was not measured"
    expected = {"framework": "torch", "np": 2, "learning_rate": 0.01, "nesterov": False, "data_set": "mnist"}
    settings = {name: as_type(value) for name, value in expected.items()}
    assert {name: found["settings"][name] for name in expected} == settings


def test_tensorboard_shows_settings_and_figures(runs, tmp_path, capsys):
    folder = tmp_path / "events"
    assert main(["export", str(runs), "--to", "tensorboard", "--folder", str(folder)]) == 0
    assert capsys.readouterr().out == f"export: 2 runs in {folder}. Open: tensorboard --logdir {folder}\n"
    assert sorted(str(path.parent.relative_to(folder)) for path in folder.glob("*/*/*")) == ["a/001", "b/=2+3"]
    found = json.loads(run(TENSORBOARD_READER, folder / "a" / "001", variables=environment()))
    check(found)
    assert "early_stop_epochs" not in found["settings"], "it was off"
    assert found["started"] == 1769860800.0


@pytest.mark.ci
def test_mlflow_has_settings_figures_and_files(runs, tmp_path):
    write_finished_run(runs / "b" / "001", framework="keras", seed=3, status=make_status(state="failed"))
    folder = tmp_path / "store"
    code = f"from analysis.__main__ import main; import sys; assert main(sys.argv[2:]) == 0{MLFLOW_READER}"
    arguments = [folder, "export", runs, "--to", "mlflow", "--folder", folder]
    printed = run(code, *arguments, variables=environment_with_extras()).splitlines()
    assert printed[0].startswith(f"export: 3 runs in {folder}. ")
    found = json.loads(printed[-1].removeprefix("answer "))
    assert sorted(found) == ["a/001", "b/001", "b/=2+3"], "those of one name are apart"
    check(found["a/001"], as_type=str)
    assert found["a/001"]["files"] == ["epochs.jsonl", "run.json"] and found["a/001"]["started"] == 1769860800000
    assert (found["a/001"]["status"], found["b/001"]["status"]) == ("FINISHED", "FAILED")
    assert found["b/001"]["framework"] == "keras"


@pytest.mark.parametrize(
    ("package", "arguments", "words"),
    [
        ("pyarrow", ["table", "--output", "new.parquet"], "Parquet files need the pyarrow package "),
        ("mlflow", ["export", "--to", "mlflow", "--folder", "new"], "MLflow's store needs its packages"),
        ("tensorboard", ["export", "--to", "tensorboard", "--folder", "new"], "Run `pip install tensorboard`"),
    ],
)
def test_a_package_that_is_missing_is_named(runs, monkeypatch, capsys, package, arguments, words):
    monkeypatch.chdir(runs.parent)
    for name in [*sys.modules, package]:
        if name.split(".")[0] == package:
            monkeypatch.setitem(sys.modules, name, None)
    assert main([arguments[0], str(runs), *arguments[1:]]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and words in error
    assert [path.name for path in runs.parent.iterdir()] == ["runs"]
