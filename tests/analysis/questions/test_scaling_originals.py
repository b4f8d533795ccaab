"""The thesis's speedups and its study of hyper-parameters, from the run folders that its raw files become.

Collected only where the raw files are, in the folder that THESIS_DATA names or in ../shared/reference/thesis.
"""

import json
import shutil

import pytest
from analysis_builders import rows_of
from made_thesis import ORIGINALS

from analysis.__main__ import main
from analysis.questions.hyperparameters.command import find as find_hyperparameters
from analysis.questions.scaling.command import find
from analysis.runs.reading import load_runs
from common.run_folder.records import RUN_FILE

__test__ = ORIGINALS.is_dir()  # not a skip, which counts as a failure where nothing may be missing
pytestmark = pytest.mark.ci


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """All runs of the thesis, imported once."""
    runs = tmp_path_factory.mktemp("imported") / "runs"
    assert main(["import-thesis", str(ORIGINALS), "--folder", str(runs)]) == 0
    return runs


@pytest.fixture(scope="module")
def thesis(folder):
    """The same, read once."""
    return load_runs([folder])


def test_the_published_speedups_and_efficiencies(thesis):
    rows = {row["model, data set, np"]: row for row in rows_of(find(thesis, base="gpu1-r/1"), "The same of means")}
    two = next(row for label, row in rows.items() if "global batch 256" in label)
    assert (round(two["total, s"], 2), round(two["speedup"], 3)) == (3687.43, 1.792)
    assert (round(two["efficiency"], 4), round(two["speedup in training"], 4)) == (0.8960, 1.9705)
    assert round(two["efficiency in training"], 3) == 0.985
    smaller = next(row for label, row in rows.items() if "global batch 128" in label)
    assert round(smaller["speedup"], 3) == 1.587


def test_the_headline_is_batch_64_and_the_raw_one_is_next_to_it(thesis):
    found = find(thesis, base="gpu1-r/1", margin=0.025)
    row = next(row for row in rows_of(found, "Speedup at equal accuracy") if row["np"] == 2)
    assert row["by"] == "a batch of 128 (64 per rank)"
    assert row["speedup at equal accuracy"] == pytest.approx(1.58, abs=0.01)
    assert row["raw speedup"] == pytest.approx(1.79, abs=0.01)
    assert "Equal accuracy is not shown within 0.5 points." in find(thesis).answer


def test_the_cpu_as_the_base(thesis):
    rows = rows_of(find(thesis, base="cpu-r1/1"), "The same of means")
    assert rows[0]["total, s"] == pytest.approx(78522.95, abs=0.01)
    assert {round(row["speedup"], 3) for row in rows} >= {11.769, 21.295}
    gpus = [row for row in rows[1:] if ", gpu, " in row["model, data set, np"] or "np 2" in row["model, data set, np"]]
    assert gpus and not any(row["efficiency"] for row in gpus)


def test_changing_one_time_in_a_record_changes_the_table(folder, tmp_path):
    for name in ("gpu1-r1", "gpu1-r2", "gpu2-r1", "gpu2-r2"):
        shutil.copytree(folder / name, tmp_path / name)
    before = rows_of(find(load_runs([tmp_path])), "The same of means")[1]["speedup"]
    path = tmp_path / "gpu2-r1" / RUN_FILE
    record = json.loads(path.read_text())
    record["totals"]["training_seconds"] += 100
    path.write_text(json.dumps(record))
    after = rows_of(find(load_runs([tmp_path])), "The same of means")[1]
    assert after["speedup"] < before - 0.02


def test_its_study_of_resolution_and_batch(thesis):
    found = find_hyperparameters(thesis)
    rows = {
        (row["resolution"], row["batch"]): (round(row["total, s"], 1), round(row["last accuracy, %"], 1))
        for row in rows_of(found, "Time and validation accuracy")
        if row["np"] is None
    }
    assert rows == {
        ("295x222", 72): (13894.8, 11.6), ("295x222", 96): (13363.7, 81.3), ("295x222", 128): (13457.4, 64.2),
        ("148x112", 72): (3813.1, 76.4), ("148x112", 96): (3688.0, 77.9), ("148x112", 128): (3574.4, 78.4),
        ("148x112", 160): (3537.6, 73.6), ("148x112", 192): (3502.5, 58.2), ("148x112", 256): (3460.5, 38.3),
    }  # fmt: skip
    shares = {row["validation samples"]: row for row in rows_of(found, "Time by the share")}
    ten, one = shares["validation10percent"], shares["validation1percent"]
    assert (round(ten["training, s/epoch"], 2), round(ten["validation, s/epoch"], 2)) == (12.09, 23.66)
    assert (round(one["training, s/epoch"], 2), round(one["validation, s/epoch"], 2)) == (15.38, 2.71)
    assert (round(ten["total, s"]), round(one["total, s"])) == (3574, 1809)
