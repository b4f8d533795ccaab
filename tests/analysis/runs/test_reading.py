"""Reading run folders: their order, what is left out and why, the tables of runs and epochs; their text is safe."""

import csv
import io
import math
import os
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from analysis_builders import found
from builders import make_epoch, write_finished_run, write_study

from analysis.__main__ import main
from analysis.output.tables import Table, in_figures, render
from analysis.runs import folders, reading
from analysis.runs.reading import load_runs
from analysis.runs.table import curve, runs_in, runs_to
from common.errors import UserError
from common.run_folder.records import EPOCHS_FILE, NotRecorded, write_epochs
from common.utils import workers


def test_runs_are_found_once_in_the_order_of_their_numbers_with_reruns_aside(tmp_path, monkeypatch):
    study = tmp_path / "study"
    for number in (10, 2, 1):
        write_finished_run(study / f"run-r{number}", seed=number)
    write_finished_run(study / "set-aside" / "old")
    write_finished_run(study / "run-r2-verify")
    (tmp_path / "empty").mkdir()
    (study / "run.log").touch()
    links = {"loop": "loop", "gone": "nothing", "through-a-file": "run.log/x", "again": "run-r1", "../link": "study"}
    for name, target in links.items():
        (study / name).symlink_to(target)
    monkeypatch.chdir(tmp_path)
    selection = load_runs(["study", study, "link", "study/../study/run-r1", "empty"])
    assert selection.runs["name"].tolist() == ["again", "run-r2", "run-r10"]
    assert selection.runs["folder"][1] == Path("study/run-r2"), "as it was named first"
    assert selection.left_out == ["left out: no run.json in empty"]
    assert len(load_runs([tmp_path, study / "run-r2-verify"]).runs) == 4, "reruns too, if they are named"


@pytest.mark.parametrize("name", [b"caf\xe9", b"red\x1b[31m", b"two\nlines"])
def test_a_name_that_is_no_text_is_left_out_of_every_report(name, tmp_path, capsys):
    write_study(tmp_path, name="good", seconds=[5.0, 6.0])
    named = tmp_path / os.fsdecode(name)
    (tmp_path / "good-r2").rename(named)
    assert main(["times", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    shown.encode("utf-8")
    assert "flag: left out: the name of a run folder has control characters or is not UTF-8. Received: " in shown
    assert "\x1b" not in shown
    assert main(["report", str(tmp_path), "-o", str(tmp_path / "page.html")]) == 0
    with pytest.raises(UserError, match="there are no runs"):
        load_runs([named])


def test_a_run_that_is_removed_while_folders_are_searched_is_named(tmp_path, monkeypatch):
    write_study(tmp_path, seconds=[5.0, 5.0])
    search = folders._run_folders

    def search_and_remove(path, depth=0):
        found = search(path, depth)
        if depth == 0:
            shutil.rmtree(found[0])
        return found

    monkeypatch.setattr(folders, "_run_folders", search_and_remove)
    selection = load_runs([tmp_path])
    assert selection.runs["name"].tolist() == ["run-r2"]
    assert len(selection.left_out) == 1 and str(tmp_path / "run-r1") in selection.left_out[0]


def test_what_processes_read_together_is_in_the_order_of_the_folders(tmp_path, monkeypatch):
    for number in range(1, 8):
        write_finished_run(tmp_path / f"run-{number}", accuracies=[0.1 * number, 0.9])
    (tmp_path / "run-4" / EPOCHS_FILE).write_text("no JSON\n")
    alone = load_runs([tmp_path])
    monkeypatch.setattr(reading, "_MANY", 2)
    for module in (reading, workers):
        monkeypatch.setattr(module, "usable_cores", lambda: 3)
    shared = load_runs([tmp_path])
    assert shared.runs["name"].tolist() == alone.runs["name"].tolist() == [f"run-{one}" for one in (1, 2, 3, 5, 6, 7)]
    assert shared.epochs.equals(alone.epochs)
    assert shared.left_out == alone.left_out and "run-4" in shared.left_out[0]


def test_the_tables_have_a_row_per_run_and_a_row_per_epoch_and_nan_where_nothing_is_known(tmp_path):
    write_finished_run(tmp_path / "a", accuracies=[0.5, 0.6, None])
    write_finished_run(tmp_path / "b", accuracies=[0.7], data=NotRecorded("lost"))
    (tmp_path / ".epochs.npz").write_bytes(b"an index of an earlier version")
    selection = load_runs([tmp_path])
    assert selection.left_out == []
    runs, epochs = selection.runs, selection.epochs
    assert runs["name"].tolist() == ["a", "b"] and runs["recorded_epochs"].tolist() == [3, 1]
    assert epochs["run"].tolist() == [0, 0, 0, 1] and epochs["epoch"].tolist() == [1, 2, 3, 1]
    np.testing.assert_array_equal(epochs["validation_accuracy"], [0.5, 0.6, np.nan, 0.7])
    assert [curve(epochs, run, "validation_accuracy").size for run in runs_in(runs)] == [3, 1]
    assert runs["last_validation_accuracy"].tolist() == [0.6, 0.7] and runs["best_validation_accuracy"][0] == 0.6
    assert runs["global_batch"][1] is None and math.isnan(runs["samples"][1]) and runs["data"][1] == "lost"
    assert runs["max_steps"][0] is None, "a setting that is off"
    assert runs["record"][0].framework == "torch"
    waits = [0.5, 0.25, NotRecorded("inside the step")]  # without the last one, there is a quicker way to read them
    for count, expected in ((2, [0.5, 0.25]), (3, [0.5, 0.25, np.nan])):
        lines = [make_epoch(number, data_wait_seconds=wait) for number, wait in enumerate(waits[:count], start=1)]
        write_epochs(tmp_path / "a", lines)
        epochs = load_runs([tmp_path / "a"]).epochs
        np.testing.assert_array_equal(epochs["data_wait_seconds"], expected)
        assert epochs["training_seconds"].tolist() == [2.0] * count


def test_seconds_to_a_target_are_those_of_the_first_epoch_that_reaches_it(tmp_path):
    write_finished_run(tmp_path / "run", seconds=9.0, accuracies=[0.5, 0.91, 0.9], lines={"validation_seconds": 0.5})
    selection = load_runs([tmp_path])
    seconds = [runs_to(selection, accuracy)["seconds_to_target"][0] for accuracy in (0.9, 0.5, 0.92)]
    np.testing.assert_array_equal(seconds, [7.0, 3.5, np.nan])
    (run,) = selection.rows
    assert run.total_seconds == 14.0 and run.epoch_seconds == 3.0 and run.steady_epoch_seconds == 2.25


# Text from records


@pytest.mark.usefixtures("drawn")
def test_dollars_and_control_characters_of_a_record_are_shown_as_they_are(tmp_path, capsys):
    for site in ("$\\frac$", "red\x1b[31m\u202e\x9b"):
        for seed in (1, 2):
            write_finished_run(tmp_path / f"$cost_{{{seed}$-{len(site)}", site=site, seed=seed)
    assert main(["clouds", str(tmp_path), "--plots", str(tmp_path / "plots")]) == 0
    shown = capsys.readouterr().out
    assert "$\\frac$" in shown and r"red\x1b[31m\u202e\x9b" in shown and "\x1b" not in shown
    plots = sorted((tmp_path / "plots").glob("*.svg"))
    assert any("$\\frac$" in " ".join(ElementTree.parse(plot).getroot().itertext()) for plot in plots)


def test_text_that_a_spreadsheet_would_run_is_neutralized():
    cells = ["=HYPERLINK(1)", "+1+A1", "-2 to +A3", "@SUM(A1)", "\t=1", "plain", -1.5, None]
    intervals = ["-0.38 to +0.20", "+1.5e-07 to +3", "-2 to -1 %", "+1,234.5"]  # which are no formulas
    table = Table("made", ["text"], [[cell] for cell in [*cells, *intervals]], {})
    rows = [row[0] for row in csv.reader(io.StringIO(render(table, "csv")))][1:]
    guarded = ["'=HYPERLINK(1)", "'+1+A1", "'-2 to +A3", "'@SUM(A1)", "'\t=1", "plain", "-1.5", ""]
    assert rows == [*guarded, *intervals]


def test_a_flag_is_said_once_with_a_count_and_examples():
    flags = [f"cell {number}: the seed differs" for number in range(20)]
    flags += ["cell 3: another: thing", "plain", "plain", "cell 1: the seed differs"]
    expected = ["cell 0; cell 1; cell 2 and 17 more: the seed differs", "cell 3: another: thing", "plain"]
    assert found(flags=flags).flags == expected


@pytest.mark.parametrize(
    ("value", "figures", "text"),
    [
        (150.4, 2, "150"), (1.54, 2, "1.5"), (2.0, 3, "2"), (12345.0, 2, "12,000"), (0.0000123, 2, "0.000012"),
        (0, 3, "0"), (9.996, 3, "10"),
    ],
)  # fmt: skip
def test_figures_are_never_in_scientific_notation(value, figures, text):
    assert in_figures(value, figures) == text
    assert in_figures(-value, figures) == (f"-{text}" if value else text)
