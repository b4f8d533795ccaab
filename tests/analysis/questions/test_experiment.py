"""`python -m analysis experiment`: medians, failed runs, and energy as a ratio to a base, of synthetic run folders."""

import io
import re
from dataclasses import replace

from builders import SAMPLE, make_status, make_trace, write_finished_run

from analysis.__main__ import main
from common.json_records import as_json
from common.run_folder.experiment_status import ExperimentStatus, PlannedRunStatus


def add_run(folder, *, joules=None, **changes):
    """Write a run; `joules`: of its used devices in 10 s, an idle GPU takes as much; 0: nothing was measured."""
    traces = None
    if joules is not None:
        watts = {device: {"training": joules / 10} for device in ("cpu0", "gpu0") if joules}
        traces = [make_trace({"training": 10}, watts, not_measured={} if joules else {"cpu0": "no counter"})]
    write_finished_run(
        folder, traces=traces, used_gpus={"node0": []}, settings={"energy": {"energy": joules is not None}},
        isolation=replace(SAMPLE.record.isolation, peak_memory_bytes=[100_000_000, 250_000_000], busy_cores=[0.5, 1.5]),
        **changes,
    )  # fmt: skip


def columns(shown, cell):
    return [re.split(r" {2,}", line.strip()) for line in shown.splitlines() if line.startswith(f"{cell} ")]


def test_medians_of_each_cell_and_failed_runs(tmp_path, capsys):
    """Medians of 1, 2 and 4 s, and of 360, 180 and 90 images/s; the metered run counts for accuracy alone."""
    for number, seconds in enumerate((1.0, 2.0, 4.0), 1):
        add_run(tmp_path / f"a-r{number}", seconds=seconds)
    add_run(tmp_path / "a-r4", seconds=90.0, joules=5.0)
    add_run(tmp_path / "b-r1", status=make_status(state="failed"))
    assert main(["experiment", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert columns(shown, "a")[0] == ["a", "4/4", "2.0", "180", "0.9000", "175", "1.00"]
    assert columns(shown, "b")[0] == ["b", "0/1", "1 failed"]
    assert "4 of 5 runs finished.\n" in shown and "flag: failed: b-r1: failed" in shown


def test_planned_runs_without_folder_are_counted(tmp_path, capsys, monkeypatch):
    def stdin(content):
        return io.TextIOWrapper(io.BytesIO(content))

    def status(*states):
        runs = [PlannedRunStatus(name=f"a-r{number}", cell="a", state=state, reason="why")
                for number, state in enumerate(states, 1)]  # fmt: skip
        return stdin(as_json(ExperimentStatus(runs=runs)).encode())

    add_run(tmp_path / "a-r1")
    monkeypatch.setattr("sys.stdin", status("finished", "to do", "to do", "failed"))
    assert main(["experiment", str(tmp_path), "--status", "-"]) == 0
    shown = capsys.readouterr().out
    assert columns(shown, "a")[0][:3] == ["a", "1/4", "1 failed, 2 to do"]
    assert "flag: failed: a-r4: why" in shown
    monkeypatch.setattr("sys.stdin", status("to do", "left out"))
    assert main(["experiment", str(tmp_path / "nothing"), "--status", "-"]) == 0
    assert columns(capsys.readouterr().out, "a")[0] == ["a", "0/2", "1 to do, 1 left out"]
    monkeypatch.setattr("sys.stdin", stdin(b"\xff"))
    assert main(["experiment", str(tmp_path), "--status", "-"]) == 2
    assert "this is not the status of an experiment" in capsys.readouterr().err


def test_energy_of_metered_runs_is_a_ratio_to_a_base(tmp_path, capsys):
    """Joules, and so products, given to each run by hand: means 40 and 80 J, 10 s each; one cell not measured."""
    joules = {"a": [10.0, 30.0, 80.0], "b": [60.0, 60.0, 120.0], "none": [0.0] * 3}
    for cell, values in joules.items():
        for number, value in enumerate(values, 1):
            add_run(tmp_path / f"{cell}-r{number}", joules=value)

    def shown(*arguments):
        assert main(["experiment", str(tmp_path), *arguments]) == 0
        return capsys.readouterr().out

    text = shown()
    assert columns(text, "a")[1] == ["a", "3", "all", "40", "400", "4000", "80", "800", "8000", "1.0000", "1.0000"]
    assert columns(text, "b")[1][3:] == ["80", "800", "8000", "160", "1600", "1.6e+04", "2.0000", "2.0000"]
    assert "metered, but nothing could be measured: none" in text
    assert columns(shown("--base", "b"), "a")[1][-2:] == ["0.5000", "0.5000"]
    text = shown("--base", "none")
    assert "no energy of none was measured: nothing is divided by it" in text
    assert columns(text, "a")[1][-1] == "8000"


def test_runs_of_one_name_in_several_folders_all_count(tmp_path, capsys):
    for name in ("one", "two"):
        add_run(tmp_path / name / "a-r1")
        add_run(tmp_path / name / "a-r2")
    assert main(["experiment", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "4 of 4 runs finished." in shown
    assert columns(shown, "one/a")[0][1] == columns(shown, "two/a")[0][1] == "2/2"
