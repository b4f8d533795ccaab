"""`python -m analysis table`: tidy tables, and what pandas reads back from the files."""

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from builders import finished_record, write_finished_run, write_run
from extras import environment_with_extras

from analysis.__main__ import main
from analysis.export.tidy import tidy_runs
from analysis.runs.reading import load_runs
from common.measurement.step_profile import PARTS, StepProfile

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def runs(tmp_path):
    """Two runs: one with a target and a validation accuracy for two of three epochs, one that was profiled."""
    folder = tmp_path / "runs"
    write_finished_run(
        folder / "001", accuracies=[None, 0.5, 0.75], np=2, seconds=90.0, accuracy=0.8,
        settings={"training": {"target_accuracy": 0.7}}, totals={"epochs_to_target": 3, "seconds_to_target": 94.0},
    )  # fmt: skip
    profile = StepProfile(
        steps=6, left_out_steps=5, step_seconds=0.7, parts_seconds=dict.fromkeys(PARTS, 0.1), parts_over_step=1.0,
        step_seconds_of_ranks=[0.7, 0.7], parts_seconds_of_ranks={part: [0.05, 0.15] for part in PARTS},
    )  # fmt: skip
    write_run(folder / "=2+3", finished_record(folder, framework="keras", seed=2, profile=profile))
    return folder


def table(runs, output, *words):
    assert main(["table", str(runs), "--output", str(output), *words]) == 0
    return output


def test_a_row_per_run_has_settings_totals_and_units(runs, tmp_path):
    frame = pd.read_csv(table(runs, tmp_path / "runs.csv"), dtype={"name": str}).set_index("name")
    run = frame.loc["001"]
    assert run[["framework", "np", "seed", "global_batch", "target_accuracy"]].tolist() == ["torch", 2, 1, 60, 0.7]
    assert run[["training_seconds", "test_accuracy", "epochs_to_target"]].tolist() == [90.0, 0.8, 3]
    assert run[["training_samples", "test_samples", "threads_per_rank"]].tolist() == [120, 1000, 1]
    assert run["folder"] == str(runs / "001") and pd.isna(run["energy_joules"])
    assert frame.index.tolist() == ["001", "'=2+3"], "a spreadsheet must not run the second"
    types = frame.dtypes
    assert types[["np", "seed", "steps"]].tolist() == ["int64"] * 3
    assert types[["timed", "gray"]].tolist() == ["bool"] * 2
    assert types[["training_seconds", "learning_rate"]].tolist() == ["float64"] * 2


def test_a_row_per_epoch(runs, tmp_path):
    frame = pd.read_csv(table(runs, tmp_path / "epochs.csv", "--of", "epochs"))
    assert frame["epoch"].tolist() == [1, 2, 3, 1, 2]
    assert frame["validation_accuracy"].tolist()[1:3] == [0.5, 0.75] and frame["validation_accuracy"].isna().sum() == 3
    assert frame["seed"].tolist() == [1, 1, 1, 2, 2] and frame["training_seconds"].tolist()[:3] == [30.0] * 3


def test_a_row_per_part_of_a_step(runs, tmp_path):
    frame = pd.read_csv(table(runs, tmp_path / "parts.csv", "--of", "parts"))
    assert frame["part"].tolist() == list(PARTS) and set(frame["framework"]) == {"keras"}
    assert set(frame["part_seconds"]) == {0.1} and set(frame["slowest_rank_part_seconds"]) == {0.15}


def test_json_keeps_every_type(runs, tmp_path):
    read = pd.read_json(table(runs, tmp_path / "runs.json"), orient="table", precise_float=True)
    pd.testing.assert_frame_equal(read, tidy_runs(load_runs([runs])))
    assert read["name"].tolist() == ["001", "=2+3"]


@pytest.mark.ci
def test_parquet_keeps_every_type(runs, tmp_path):
    program = (
        "import sys, pandas as pd; from analysis.__main__ import main; from analysis.export.tidy import tidy_runs; "
        "from analysis.runs.reading import load_runs; runs, file = sys.argv[1:]; "
        "assert main(['table', runs, '--output', file]) == 0; "
        "pd.testing.assert_frame_equal(pd.read_parquet(file), tidy_runs(load_runs([runs])))"
    )
    command = [sys.executable, "-c", program, str(runs), str(tmp_path / "runs.parquet")]
    done = subprocess.run(command, cwd=ROOT, env=environment_with_extras(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_package_that_is_missing_is_named(runs, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert main(["table", str(runs), "--output", str(runs.parent / "runs.parquet")]) == 2
    error = capsys.readouterr().err
    assert "Parquet files need the pyarrow package " in error and error.count("\n") == 1


def test_force_replaces_a_table(runs):
    file = runs.parent / "runs.csv"
    file.write_text("mine")
    assert len(pd.read_csv(table(runs, file, "--force"))) == 2
