"""`python -m analysis thesis`: the thesis's tables and figures from run folders, with published values.

On synthetic files with numbers that can be added by hand (`made_thesis`); `test_numbers.py` has those of the thesis.
"""

import json
import shutil
from collections import defaultdict
from typing import Any

import pytest
from analysis_builders import rows_of
from builders import write_study
from made_thesis import EPOCHS, RESULTS, make_thesis

from analysis.__main__ import main
from analysis.runs.reading import load_runs
from analysis.thesis.command import find
from common.run_folder.records import EPOCHS_FILE, RUN_FILE

FIGURES = {
    "thesis-3.3-hybrid", "thesis-3.5-295x222", "thesis-3.6-148x112", "thesis-3.7-validation", "thesis-4.3-phases",
    "thesis-4.4-speedups", "thesis-4.5-accuracy", "thesis-4.6-accuracy", "thesis-4.7-left-power",
    "thesis-4.8-left-power", "thesis-4.8-right-power", "thesis-4.12-energy",
}  # fmt: skip

Row = dict[str, Any]


def imported(thesis, folder):
    """Import a folder of raw files; return that of its runs."""
    assert main(["import-thesis", str(thesis), "--folder", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    return imported(make_thesis(folder / "thesis"), folder / "runs")


@pytest.fixture(scope="module")
def tables(runs):
    """The tables of the runs as they are."""
    return tables_of(runs)


def tables_of(runs):
    """Return the part of each title before the colon -> rows, as the command computes them."""
    found = defaultdict(list)
    for table in find(load_runs([runs])).tables:
        found[table.title.partition(":")[0]] += rows_of(table)
    return found


def figure(rows, of, what):
    (row,) = [row for row in rows if (row["of"], row["what"]) == (of, what)]
    return row


# Files: epochs of a run train 60 (+ 0.5 per run), 50, 40, 600 s, the first 2 s more; validation 5.25 s, test 34.5 s.


def test_times_and_speedups_by_hand(tables):
    training = figure(tables["Figure 4.3"], "1 GPU", "training, s")
    assert training["n"] == 2
    assert training["from the runs"] == pytest.approx(100 * 60.25 + 2)
    assert (training["min"], training["max"]) == (pytest.approx(6002.0), pytest.approx(6052.0))
    total = {"cpu": 60_002 + 525 + 34.5, "gpu1": 6027 + 525 + 34.5, "gpu2": 4027 + 525 + 34.5}
    speedups = tables["Figure 4.4"]
    to_cpu, to_one = figure(speedups, "1 GPU", "speedup over CPU"), figure(speedups, "2 GPUs", "speedup over 1 GPU")
    assert to_cpu["from the runs"] == pytest.approx(total["cpu"] / total["gpu1"])
    assert to_one["from the runs"] == pytest.approx(total["gpu1"] / total["gpu2"])
    assert (to_one["published"], to_one[""]) == (1.79, "differs")
    efficiency = figure(speedups, "2 GPUs", "efficiency of training alone")
    assert efficiency["from the runs"] == pytest.approx(6027 / 4027 / 2)


def test_energies_and_products_by_hand(runs):
    """Three samples of 0.5 s count, 1 s apart: 30 W of both processors, and 100, 120 and 110 W of the GPU."""
    rows = tables_of(runs)["Table 4.2 and figure 4.12"]
    assert figure(rows, "1 GPU", "cpu, J")["from the runs"] == pytest.approx(0.5 * 3 * 30)
    assert figure(rows, "1 GPU", "gpu0, J")["from the runs"] == pytest.approx(0.5 * (100 + 120 + 110))
    assert figure(rows, "1 GPU", "gpu1, J")["from the runs"] == pytest.approx(0.5 * 3 * (16 + 17 + 18) / 3)
    assert figure(rows, "1 GPU", "used devices, J")["from the runs"] == pytest.approx(45 + 165)
    assert figure(rows, "1 GPU", "EDP / that of 1 GPU")["from the runs"] == 1.0
    both = 45 + 165 + 0.5 * 3 * 17  # of 2 GPUs, which last as long
    assert figure(rows, "2 GPUs", "EDP / that of 1 GPU")["from the runs"] == pytest.approx(both / 210)
    # The sums of the CPU: 30 + 15 J in 100 s, against 210 J in 1 s.
    assert figure(rows, "CPU", "EDP / that of 1 GPU")["from the runs"] == pytest.approx(100 * 45 / 210)


def test_differences_from_the_published_figure_are_reported(runs):
    """No reason is made up for figures that the published ones are not the origin of."""
    rows = [row for of_table in tables_of(runs).values() for row in of_table if row.get("") == "differs"]
    assert any(row.get("why", "").startswith("no reason known") for row in rows)
    assert not any("rounded speedup" in (row.get("why") or "") for row in rows)
    assert not any("uses" in (row.get("why") or "") for row in rows)


def changed(runs, folder, name, **totals):
    """Return a copy of the runs in which totals of one are others."""
    if folder != runs:
        shutil.copytree(runs, folder)
    file = folder / name / RUN_FILE
    record = json.loads(file.read_text())
    record["totals"].update(totals)
    file.write_text(json.dumps(record))
    return folder


@pytest.mark.ci
@pytest.mark.parametrize(
    ("name", "totals", "table", "of", "what"),
    [
        ("gpu1-r1", {"training_seconds": 7002.0}, "Figure 4.3", "1 GPU", "training, s"),
        ("gpu2-r2", {"training_seconds": 9000.0}, "Figure 4.4", "2 GPUs", "speedup over 1 GPU"),
        ("cpu-r1", {"training_seconds": 1.0}, "Figure 4.4", "1 GPU", "speedup over CPU"),
        ("gpu2-r1", {"test_accuracy": 0.1}, "Figure 4.6", "2 GPUs (2 runs)", "min, %"),
        ("hybrid-r1", {"validation_seconds": 9.0}, "Figure 3.3", "2 GPUs and CPU", "training + validation, s"),
        (
            "size148x112-batch96",
            {"training_seconds": 9.0},
            "Figures 3.5 and 3.6",
            "148x112, batch 96",
            "training + val",
        ),
        ("validation1percent", {"validation_seconds": 9.0}, "Figure 3.7", "1 % for validation", "validation per epoch"),
        ("table31-keras-cpu", {"training_seconds": 9.0}, "Table 3.1", "Keras, cpu", "seconds"),
    ],
)
def test_one_raw_value_changes_the_table(runs, tables, tmp_path, name, totals, table, of, what):
    before, after = (
        [row["from the runs"] for row in found[table] if row["of"] == of and row["what"].startswith(what)]
        for found in (tables, tables_of(changed(runs, tmp_path / "runs", name, **totals)))
    )
    assert len(before) == 1
    assert before != after


@pytest.mark.ci
def test_one_value_in_the_raw_files_changes_the_tables(tmp_path):
    """The first epoch of the first run on 1 GPU trains 100 s longer: one more second in the mean of 100 epochs x 2."""
    made = make_thesis(tmp_path / "thesis")
    before = tables_of(imported(made, tmp_path / "before"))
    file = made / RESULTS / "Resultados_1GPU" / "Entrenamientos.csv"
    file.write_text(file.read_text().replace("62.000000", "162.000000", 1))
    power = made / RESULTS / "Resultados_Distribuido_2GPU" / "energia1.dat"
    power.write_text(power.read_text().replace("120.000000", "180.000000"))
    after = tables_of(imported(made, tmp_path / "after"))
    (old,), (new,) = (
        [row["from the runs"] for row in found["Figure 4.3"] if (row["of"], row["what"]) == ("1 GPU", "training, s")]
        for found in (before, after)
    )
    assert new - old == pytest.approx(100 / 2)
    products = [
        [row["from the runs"] for row in found["Table 4.2 and figure 4.12"] if row["of"] == "2 GPUs"]
        for found in (before, after)
    ]
    assert products[0] != products[1]


@pytest.mark.ci
def test_every_figure_is_drawn(runs, tmp_path, capsys):
    assert main(["thesis", str(runs), "--plots", str(tmp_path)]) == 0
    assert {file.stem for file in tmp_path.glob("*.png")} == FIGURES
    printed = capsys.readouterr().out
    assert "figure 4.7, right half: not drawn, the power over time of CPU is missing, only its sums" in printed
    assert f"epochs              {EPOCHS}" in printed


@pytest.mark.ci
def test_a_damaged_trace_is_named_and_another_drawn(runs, tmp_path):
    shutil.copytree(runs, tmp_path / "runs")
    drawn = {plot.name: plot.figure.get_suptitle() for plot in find(load_runs([runs])).plots}["thesis-4.8-right-power"]
    (name,) = [word for word in drawn.replace(":", " ").replace(",", " ").split() if word.startswith("gpu2-energy")]
    (tmp_path / "runs" / name / "power.csv").write_text("nothing")
    found = find(load_runs([tmp_path / "runs"]))
    assert any(flag.startswith("left out: ") and name in flag for flag in found.flags)
    again = {plot.name: plot.figure.get_suptitle() for plot in found.plots}["thesis-4.8-right-power"]
    assert name not in again and "gpu2-energy" in again


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


@pytest.mark.parametrize(
    "totals",
    [
        {"training_seconds": 0.0, "validation_seconds": 0.0, "test_seconds": 0.0},
        {"training_seconds": float("nan"), "test_accuracy": float("nan")},
    ],
)
@pytest.mark.ci
@pytest.mark.parametrize("name", ["gpu1-r", "gpu2-r", "cpu-r", "hybrid-r", "table31-", "validation"])
@pytest.mark.usefixtures("drawn")
def test_times_that_are_zero_or_missing(runs, tmp_path, name, totals):
    """No traceback, and every figure can be drawn."""
    folder = tmp_path / "runs"
    for number, one in enumerate(run.name for run in sorted(runs.iterdir()) if run.name.startswith(name)):
        changed(folder if number else runs, folder, one, **totals)
    finding = find(load_runs([folder]))
    assert finding.tables
    for plot in finding.plots:
        plot.figure.canvas.draw()


def test_a_run_that_lacks_epochs(runs, tmp_path):
    folder = tmp_path / "runs"
    shutil.copytree(runs, folder)
    epochs = folder / "gpu1-r1" / EPOCHS_FILE
    epochs.write_text("".join(epochs.read_text().splitlines(keepends=True)[:60]))
    finding = find(load_runs([folder]))
    assert any("epochs are missing: 100 were trained, 60 are recorded" in flag for flag in finding.flags)
    assert {plot.name for plot in finding.plots} == FIGURES


@pytest.mark.ci
@pytest.mark.parametrize("form", ["md", "json", "latex"])
def test_every_format(runs, form, capsys):
    assert main(["thesis", str(runs), "--format", form]) == 0
    assert "Figure 4.4" in capsys.readouterr().out
