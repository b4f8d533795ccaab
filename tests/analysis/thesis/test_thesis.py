"""`python -m analysis import-thesis` and `thesis` on small raw files, whose numbers can be added by hand.

`test_numbers.py` has every number of the thesis, and reads the originals.
"""

import errno
import json
import shutil
import tomllib
from pathlib import Path

import pytest
from analysis_builders import rows_of
from made_thesis import EPOCHS, RESULTS, make_thesis

from analysis.__main__ import main
from analysis.runs.reading import load_runs
from analysis.thesis import import_command as import_thesis
from analysis.thesis.command import find
from common.run_folder.power_file import POWER_FILE, read_power
from common.run_folder.records import EPOCHS_FILE, RUN_FILE, NotRecorded, read_run

GPU1 = RESULTS / "Resultados_1GPU"
FIGURES = {
    "thesis-3.3-hybrid", "thesis-3.5-295x222", "thesis-3.6-148x112", "thesis-3.7-validation", "thesis-4.3-phases",
    "thesis-4.4-speedups", "thesis-4.5-accuracy", "thesis-4.6-accuracy", "thesis-4.7-left-power",
    "thesis-4.8-left-power", "thesis-4.8-right-power", "thesis-4.12-energy",
}  # fmt: skip
FACTS = tomllib.loads(Path(__file__).with_name("imported.toml").read_text())


def import_runs(thesis, folder, *, code=0):
    """Import a folder of raw files; return that of its runs."""
    assert main(["import-thesis", str(thesis), "--folder", str(folder)]) == code
    return folder


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """The synthetic files, imported once."""
    folder = tmp_path_factory.mktemp("imported")
    return import_runs(make_thesis(folder / "thesis"), folder / "runs")


def test_every_run_has_a_folder_that_can_be_read(imported):
    assert {folder.name for folder in imported.iterdir()} == FACTS.keys()
    for folder in imported.iterdir():
        run = read_run(folder)
        assert run.state == "finished" and run.record.site == "thesis-machine"
        assert run.record.origin == ("published" if folder.name.endswith("published") else "imported")
        for field in ("config", "environment", "hashes", "status", "isolation"):
            assert isinstance(getattr(run.record, field), NotRecorded)
        assert (run.record.energy is None) == ("energy" not in folder.name)


def contents_of(folder):
    """Return what is in a run folder, in the form of `imported.toml`."""
    record = json.loads((folder / RUN_FILE).read_text())
    if record["energy"]:
        record["energy"]["devices"] = {device["name"]: device for device in record["energy"]["devices"]}
    lines = [json.loads(line) for line in (folder / EPOCHS_FILE).read_text().splitlines()]
    ends = {"first": lines[0], "second": lines[1], "last": lines[-1]} if lines else {}
    return record | {"epochs": {"lines": len(lines), **ends}}


def check(found, expected, name):
    if isinstance(expected, dict):
        for key, value in expected.items():
            check(found[key], value, f"{name}.{key}")
    else:
        assert found == (pytest.approx(expected, rel=1e-12) if isinstance(expected, float) else expected), name


@pytest.mark.parametrize("name", FACTS)
def test_a_run_folder_has_the_numbers_of_the_raw_files(imported, name):
    check(contents_of(imported / name), FACTS[name], name)


def test_its_power_over_time(imported):
    (trace,) = read_power(imported / "gpu1-energy1" / POWER_FILE)
    assert list(trace.series) == ["cpu0", "ram0", "cpu1", "ram1", "gpu0", "gpu1"]
    assert trace.seconds.tolist() == [0, 0.5, 1, 1.5, 2, 2.5, 3]
    assert trace.phases == ["startup"] * 4 + ["training"] * 3
    assert trace.series["gpu0"].watts.tolist() == [47, 16, 16, 90, 110, 110, 110]
    assert trace.series["gpu0"].joules.tolist() == [0, 8, 8, 45, 55, 55, 55]


def test_other_runs_stay_and_what_was_imported_is_counted(tmp_path, capsys):
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    runs = import_runs(make_thesis(tmp_path / "thesis"), tmp_path / "runs")
    assert len(list(runs.iterdir())) == 41
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"40 runs of the thesis written to {runs}"
    assert lines[-2] == "missing in its files: the CPU's power over time; cpu-energy1 has its sums"
    assert "within 0.0005 s, their means within 0.0400 s" in lines[-1]


def test_a_changed_raw_value_changes_the_run_to_its_last_digit(tmp_path, capsys):
    """Also where it contradicts another file, which is reported."""
    thesis = make_thesis(tmp_path / "thesis")
    edits = {
        "Entrenamientos.csv": ("60.5", "61.5"),
        "energia0.dat": ("110.0", "111.0"),
        "General.csv": ("34.5", "33.66019892692566"),
    }
    for name, (old, new) in edits.items():
        file = thesis / GPU1 / name
        file.write_text(file.read_text().replace(old, new, 1))
    runs = import_runs(thesis, tmp_path / "runs")
    assert read_run(runs / "gpu1-r2").record.totals.training_seconds == 6053
    assert read_run(runs / "gpu1-r1").record.totals.test_seconds == 33.66019892692566
    assert read_run(runs / "gpu1-energy1").record.energy.used_devices.joules == 210.5
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "note: gpu1-r2: its total time is -0.9995 s from the sum over its epochs"


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("step", ["write_power", "rename"])
def test_a_full_disk_leaves_nothing(tmp_path, capsys, monkeypatch, step, there):
    rename = Path.rename

    def full(path, *arguments):
        if step == "rename" and path.name != "gpu2-energy1":
            return rename(path, arguments[0])
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(*(Path, "rename") if step == "rename" else (import_thesis, "write_power"), full)
    if there:
        (tmp_path / "runs").mkdir()
    runs = import_runs(make_thesis(tmp_path / "thesis"), tmp_path / "runs", code=2)
    assert "writing the imported runs failed: No space left on device" in capsys.readouterr().err
    assert list(runs.iterdir()) == [] if there else not runs.exists()


# The command


def test_differences_are_reported_without_made_up_reasons_and_runs_have_a_range(imported, tmp_path):
    rows = [row for table in find(load_runs([imported])).tables for row in rows_of(table)]
    reasons = [row.get("why") or "" for row in rows if row.get("") == "differs"]
    assert any(reason.startswith("no reason known") for reason in reasons)
    assert not any("rounded speedup" in reason or "uses" in reason for reason in reasons)
    (training,) = [row for row in rows if (row.get("of"), row.get("what")) == ("1 GPU", "training, s")]
    assert (training["min"], training["from the runs"], training["max"]) == pytest.approx((6002, 6027, 6052))
    shutil.copytree(imported / "table31-keras-cpu", tmp_path / "table31-keras-cpu")
    change_totals(tmp_path / "table31-keras-cpu" / RUN_FILE, training_seconds=9.0)
    (seconds, _) = rows_of(find(load_runs([tmp_path])), "Table 3.1")
    assert (seconds["from the runs"], seconds["published"], seconds[""]) == (9.0, 9.4, "differs")


def change_totals(file, **totals):
    record = json.loads(file.read_text())
    record["totals"].update(totals)
    file.write_text(json.dumps(record))


@pytest.mark.ci
def test_every_figure_is_drawn(imported, tmp_path, capsys):
    assert main(["thesis", str(imported), "--plots", str(tmp_path)]) == 0
    assert {file.stem for file in tmp_path.glob("*.png")} == FIGURES
    printed = capsys.readouterr().out
    assert "figure 4.7, right half: not drawn, the power over time of CPU is missing, only its sums" in printed
    assert f"epochs              {EPOCHS}" in printed


def test_what_is_missing_is_reported(imported, tmp_path, capsys):
    for name in ("gpu1-r1", "gpu1-r2"):
        shutil.copytree(imported / name, tmp_path / "few" / name)
    assert main(["thesis", str(tmp_path / "few"), "--plots", str(tmp_path / "plots")]) == 0
    printed = capsys.readouterr().out
    assert "Table 3.1: both frameworks on MNIST: no runs to compute it from (table31-*)" in printed
    assert {file.stem for file in (tmp_path / "plots").glob("*.png")} == {
        "thesis-4.3-phases", "thesis-4.4-speedups", "thesis-4.5-accuracy", "thesis-4.6-accuracy",
    }  # fmt: skip


@pytest.mark.ci
@pytest.mark.usefixtures("drawn")
@pytest.mark.parametrize("name", ["gpu1-r", "hybrid-r", "table31-", "validation"])
@pytest.mark.parametrize(
    "totals",
    [
        {"training_seconds": 0.0, "validation_seconds": 0.0, "test_seconds": 0.0},
        {"training_seconds": float("nan"), "test_accuracy": float("nan")},
    ],
)
def test_times_that_are_zero_or_missing(imported, tmp_path, name, totals):
    """No traceback, and every figure can be drawn."""
    shutil.copytree(imported, tmp_path / "runs")
    for file in (tmp_path / "runs").glob(f"{name}*/{RUN_FILE}"):
        change_totals(file, **totals)
    finding = find(load_runs([tmp_path / "runs"]))
    assert finding.tables
    for plot in finding.plots:
        plot.figure.canvas.draw()
