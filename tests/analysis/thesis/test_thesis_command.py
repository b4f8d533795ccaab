"""`python -m analysis thesis`: what is drawn, missing, damaged or not of the thesis, on small files of `made_thesis`.

`test_numbers.py` has every number.
"""

import json
import shutil

import pytest
from analysis_builders import plot_of, rows_of
from builders import write_study
from made_thesis import EPOCHS, make_thesis

from analysis.__main__ import main
from analysis.runs.reading import load_runs
from analysis.thesis.command import find
from common.run_folder.records import EPOCHS_FILE, RUN_FILE

FIGURES = {
    "thesis-3.3-hybrid", "thesis-3.5-295x222", "thesis-3.6-148x112", "thesis-3.7-validation", "thesis-4.3-phases",
    "thesis-4.4-speedups", "thesis-4.5-accuracy", "thesis-4.6-accuracy", "thesis-4.7-left-power",
    "thesis-4.8-left-power", "thesis-4.8-right-power", "thesis-4.12-energy",
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    assert main(["import-thesis", str(make_thesis(folder / "thesis")), "--folder", str(folder / "runs")]) == 0
    return folder / "runs"


def test_differences_are_reported_without_made_up_reasons_and_runs_have_a_range(runs, tmp_path):
    rows = [row for table in find(load_runs([runs])).tables for row in rows_of(table)]
    reasons = [row.get("why") or "" for row in rows if row.get("") == "differs"]
    assert any(reason.startswith("no reason known") for reason in reasons)
    assert not any("rounded speedup" in reason or "uses" in reason for reason in reasons)
    (training,) = [row for row in rows if (row.get("of"), row.get("what")) == ("1 GPU", "training, s")]
    assert (training["min"], training["from the runs"], training["max"]) == pytest.approx((6002, 6027, 6052))
    shutil.copytree(runs / "table31-keras-cpu", tmp_path / "table31-keras-cpu")
    change_totals(tmp_path / "table31-keras-cpu" / RUN_FILE, training_seconds=9.0)
    (seconds, _) = rows_of(find(load_runs([tmp_path])), "Table 3.1")
    assert (seconds["from the runs"], seconds["published"], seconds[""]) == (9.0, 9.4, "differs")


def change_totals(file, **totals):
    record = json.loads(file.read_text())
    record["totals"].update(totals)
    file.write_text(json.dumps(record))


@pytest.mark.ci
def test_every_figure_is_drawn(runs, tmp_path, capsys):
    assert main(["thesis", str(runs), "--plots", str(tmp_path)]) == 0
    assert {file.stem for file in tmp_path.glob("*.png")} == FIGURES
    printed = capsys.readouterr().out
    assert "figure 4.7, right half: not drawn, the power over time of CPU is missing, only its sums" in printed
    assert f"epochs              {EPOCHS}" in printed


@pytest.mark.ci
def test_a_damaged_trace_is_named_and_another_drawn(runs, tmp_path):
    def title(found):
        return plot_of(found, "thesis-4.8-right-power").figure.get_suptitle()

    shutil.copytree(runs, tmp_path / "runs")
    (name,) = [word for word in title(find(load_runs([runs]))).split() if word.startswith("gpu2-energy")]
    name = name.strip(":,")
    (tmp_path / "runs" / name / "power.csv").write_text("nothing")
    found = find(load_runs([tmp_path / "runs"]))
    assert any(flag.startswith("left out: ") and name in flag for flag in found.flags)
    assert name not in title(found) and "gpu2-energy" in title(found)


def test_what_is_missing_is_reported(runs, tmp_path, capsys):
    for name in ("gpu1-r1", "gpu1-r2"):
        shutil.copytree(runs / name, tmp_path / "few" / name)
    assert main(["thesis", str(tmp_path / "few"), "--plots", str(tmp_path / "plots")]) == 0
    printed = capsys.readouterr().out
    assert "Table 3.1: both frameworks on MNIST: no runs to compute it from (table31-*)" in printed
    assert "energy-delay products: no runs to compute it from (*-energy*)" in printed
    assert "figure 4.8, right half: not drawn" in printed
    assert {file.stem for file in (tmp_path / "plots").glob("*.png")} == {
        "thesis-4.3-phases", "thesis-4.4-speedups", "thesis-4.5-accuracy", "thesis-4.6-accuracy",
    }  # fmt: skip


def test_other_runs_are_left_out(tmp_path, capsys):
    write_study(tmp_path / "runs", name="gpu1", seconds=[6.0, 7.0])
    assert main(["thesis", str(tmp_path / "runs")]) == 0
    assert "None of these runs is from the thesis" in capsys.readouterr().out


@pytest.mark.ci
@pytest.mark.usefixtures("drawn")
@pytest.mark.parametrize("name", ["gpu1-r", "gpu2-r", "cpu-r", "hybrid-r", "table31-", "validation"])
@pytest.mark.parametrize(
    "totals",
    [
        {"training_seconds": 0.0, "validation_seconds": 0.0, "test_seconds": 0.0},
        {"training_seconds": float("nan"), "test_accuracy": float("nan")},
    ],
)
def test_times_that_are_zero_or_missing(runs, tmp_path, name, totals):
    """No traceback, and every figure can be drawn."""
    shutil.copytree(runs, tmp_path / "runs")
    for file in (tmp_path / "runs").glob(f"{name}*/{RUN_FILE}"):
        change_totals(file, **totals)
    finding = find(load_runs([tmp_path / "runs"]))
    assert finding.tables
    for plot in finding.plots:
        plot.figure.canvas.draw()


def test_a_run_that_lacks_epochs(runs, tmp_path):
    shutil.copytree(runs, tmp_path / "runs")
    epochs = tmp_path / "runs" / "gpu1-r1" / EPOCHS_FILE
    epochs.write_text("".join(epochs.read_text().splitlines(keepends=True)[:60]))
    finding = find(load_runs([tmp_path / "runs"]))
    assert any("epochs are missing: 100 were trained, 60 are recorded" in flag for flag in finding.flags)
    assert {plot.name for plot in finding.plots} == FIGURES
