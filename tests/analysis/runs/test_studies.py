"""Reading many runs, putting them into cells, and what `frameworks`, `check` and `aa-test` say of them."""

import csv
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from analysis_builders import rows_of, select, study
from builders import finished_record, finished_run, make_environment, make_status, write_finished_run, write_study
from PIL import Image

from analysis.__main__ import main
from analysis.output.tables import FORMATS
from analysis.questions.aa_test import FEWEST_RUNS, paired_splits, unpaired_splits
from analysis.questions.aa_test import seconds as seconds_of
from analysis.questions.frameworks import find
from analysis.runs import folders
from analysis.runs.cells import cells_of
from analysis.runs.reading import load_runs
from analysis.runs.table import LoadedRun, curve, figures_of, runs_in, runs_to
from analysis.runs.validity import run_flags
from analysis.stats.inference import ratio
from common.measurement.energy import EnergyRecord, EnergyTotals
from common.measurement.interference import Interference
from common.run_folder.records import EPOCHS_FILE, RUN_FILE, Hashes, NotRecorded

TORCH = [10.0, 10.4, 9.8, 10.2, 10.1, 10.3]
KERAS = [8.0, 8.2, 7.9, 8.1, 8.3, 8.2]


def both(folder, **changes):
    """Write six runs of each framework; Keras is faster, accuracies are alike."""
    accuracies = [0.980, 0.981, 0.982, 0.980, 0.981, 0.983]
    write_study(folder, name="torch", framework="torch", seconds=TORCH, accuracy=accuracies, **changes)
    write_study(folder, name="keras", framework="keras", seconds=KERAS,
                accuracy=[value + 0.0005 for value in accuracies], **changes)  # fmt: skip
    return folder


def shown(capsys, *arguments, code=0):
    assert main([str(argument) for argument in arguments]) == code
    captured = capsys.readouterr()
    return captured.out if code == 0 else captured.err


# Reading


def test_folders_of_folders_are_found_in_the_order_of_their_numbers(tmp_path):
    for number in (10, 2, 1):
        write_finished_run(tmp_path / "study" / f"run-r{number}", seed=number)
    write_finished_run(tmp_path / "study" / "set-aside" / "old")
    write_finished_run(tmp_path / "study" / "run-r2-verify")
    (tmp_path / "study" / "logs").mkdir()
    names = load_runs([tmp_path, tmp_path / "study" / "run-r2"]).runs["name"].tolist()
    assert names == ["run-r1", "run-r2", "run-r10"], "each once, reruns aside"
    assert len(load_runs([tmp_path, tmp_path / "study" / "run-r2-verify"]).runs) == 4, "unless they are named"


def damaged(folder, how):
    record, epochs = folder / RUN_FILE, folder / EPOCHS_FILE
    match how:
        case "half a record":
            record.write_text(record.read_text()[:500])
        case "newer schema":
            record.write_text(json.dumps(json.loads(record.read_text()) | {"schema_version": 2}))
        case "foreign":
            record.write_text('{"name": "another program"}')
        case "no record":
            record.unlink()
        case "no epochs":
            epochs.unlink()
        case "half an epoch":
            epochs.write_text(epochs.read_text()[:-20])
        case "a doubled epoch":
            epochs.write_text(epochs.read_text() + epochs.read_text().splitlines()[0])
        case "binary":
            record.write_bytes(b"\xff\xfe\x00")


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("half a record", "is not a valid run folder"),
        ("newer schema", "unknown schema version. Received: 2"),
        ("foreign", "unknown schema version. Received: None"),
        ("no record", "not a run folder: No such file"),
        ("no epochs", "not a run folder: No such file"),
        ("half an epoch", "is not a valid run folder"),
        ("a doubled epoch", "epochs are missing or duplicated"),
        ("binary", "is not a valid run folder"),
    ],
)
def test_damaged_folders_are_named_and_left_out(tmp_path, how, words):
    write_study(tmp_path, seconds=[5.0, 6.0, 7.0])
    damaged(tmp_path / "run-r3", how)
    selection = load_runs([tmp_path])
    assert len(selection.runs) == 2
    (line,) = selection.left_out
    assert line.startswith("left out: ") and words in line and "run-r3" in line


@pytest.mark.parametrize("command", ["frameworks", "check"])
def test_a_damaged_folder_is_flagged_by_commands_and_refused(tmp_path, capsys, command):
    both(tmp_path)
    damaged(tmp_path / "torch-r3", "half a record")
    assert f"flag: {load_runs([tmp_path]).left_out[0]}" in shown(capsys, command, tmp_path)
    assert "torch-r3" in shown(capsys, command, tmp_path, "--strict", code=2)


def test_links_that_lead_nowhere_are_passed_by(tmp_path):
    write_study(tmp_path, seconds=[1.0, 2.0])
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "gone").symlink_to("nothing")
    (tmp_path / "run.log").touch()
    (tmp_path / "through-a-file").symlink_to("run.log/x")
    assert len(load_runs([tmp_path]).runs) == 2


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


def test_a_run_that_is_named_twice_is_read_once_and_a_folder_without_runs_is_named(tmp_path, monkeypatch):
    write_study(tmp_path / "study", seconds=[5.0, 5.0])
    (tmp_path / "link").symlink_to(tmp_path / "study")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    selection = load_runs(["study", tmp_path / "study", "link", "study/../study/run-r1", "empty"])
    assert selection.runs["folder"].tolist() == [Path("study/run-r1"), Path("study/run-r2")]
    assert selection.left_out == ["left out: no run.json in empty"]


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


# Cells


def of(subject, **values):
    return {"settings": {subject: values}}


def prepared(path, mean):
    return {"data": replace(finished_record().data, name=f"prepared:{path}", mean=[mean])}


@pytest.mark.parametrize(
    ("runs", "cells"),
    [
        (
            [{"seconds": [5.0, 5.0]}, of("optimizer", learning_rate=0.05)],
            {"cnn, mnist, np 1, learning rate 0.01": 2, "cnn, mnist, np 1, learning rate 0.05": 1},
        ),
        (
            [{"np": 2, "world": {"controller": name}} for name in ("gloo", "mpi")],
            {"cnn, mnist, np 2, controller gloo": 1, "cnn, mnist, np 2, controller mpi": 1},
        ),
        (
            [{}, of("training", max_steps=4), of("model", dropout=False)],
            {
                "cnn, mnist, np 1, dropout, no max steps": 1,
                "cnn, mnist, np 1, dropout, max steps 4": 1,
                "cnn, mnist, np 1, no dropout, no max steps": 1,
            },
        ),
        (
            [of("device", **{name: value}) for name, value in (
                ("threads", None), ("channels_last", False), ("pinned_memory", True), ("cudnn_benchmark", True))],
            {
                "cnn, mnist, np 1, no cudnn benchmark, channels last, no pinned memory": 1,
                "cnn, mnist, np 1, no cudnn benchmark, no channels last, no pinned memory": 1,
                "cnn, mnist, np 1, no cudnn benchmark, channels last, pinned memory": 1,
                "cnn, mnist, np 1, cudnn benchmark, channels last, no pinned memory": 1,
            },
        ),
        (
            [{}, *(of("strategy", strategy="averaging", average_every=every) for every in (8, 32, "epoch"))],
            {
                "cnn, mnist, np 1, allreduce": 1,
                **{f"cnn, mnist, np 1, averaging, every {every}": 1 for every in (8, 32, "epoch")},
            },
        ),
        (
            [{}, {"environment": NotRecorded("an example")}],
            {"cnn, mnist, np 1": 1, "cnn, mnist, np 1, machine not recorded": 1},
        ),
        (
            [{"np": 2}, {"np": 2, "world": {"hosts": ["node1", "node2"], "local_size": 1}}],
            {"cnn, mnist, np 2, hosts 1": 1, "cnn, mnist, np 2, hosts 2": 1},
        ),
        # The same images in another place, and those of other pixels.
        (
            [prepared("runs/a.safetensors", 0.5), prepared("/x/a.safetensors", 0.5), prepared("a.safetensors", 0.25)],
            {
                "cnn, prepared:a.safetensors, np 1, mean of pixels 0.5": 2,
                "cnn, prepared:a.safetensors, np 1, mean of pixels 0.25": 1,
            },
        ),
    ],
)  # fmt: skip
def test_what_differs_makes_another_cell_and_is_its_label(runs, cells):
    found = cells_of(select(*(study(f"study{number}", **one) for number, one in enumerate(runs))).runs)
    assert [(cell.label, len(cell.runs)) for cell in found] == [*cells.items()]


def test_what_is_unknown_for_another_reason_is_another_cell():
    reasons = ("10 % for validation", "10 % for validation", "1 % for validation")
    found = cells_of(select(*(study(f"s{place}", data=NotRecorded(one)) for place, one in enumerate(reasons))).runs)
    assert [(cell.words, len(cell.runs)) for cell in found] == [("10 % for validation", 2), ("1 % for validation", 1)]


def test_runs_on_shared_gpus_count_for_accuracy_alone():
    runs = select(study("plain"), study("shared", **of("device", share_gpu=True))).runs
    assert list(runs.groupby("share_gpu")["timed"].sum()) == [1, 0]
    (shared,) = (run for run in runs_in(runs) if not run.timed)
    assert run_flags(shared) == ["its ranks shared GPUs (--share-gpu): its times are left out"]
    plain, other = cells_of(runs)
    assert (len(plain.timed), len(other.finished), len(other.timed)) == (1, 1, 0)


def test_runs_with_a_straggler_are_timed_only_if_it_is_the_subject():
    slow = {"slow": "1:2"}
    balances = ({}, slow, {**slow, "slow_is_subject": True})
    runs = select(*(study(f"s{place}", **of("balance", **one)) for place, one in enumerate(balances))).runs
    flags = [run_flags(run) for run in runs_in(runs) if not run.timed]
    assert flags == [["a straggler was planted (--slow 1:2): its times are left out"]]
    assert len(runs) == 3 and len(cells_of(runs)) == 3


def test_times_of_metered_unfinished_and_timeless_runs_do_not_count():
    others = [
        {"seconds": 50.0, "accuracy": 0.7, "energy": metered()},
        {"seconds": 60.0, "accuracy": 0.1, "status": make_status()},
        {"seconds": 0.0, "accuracy": 0.8},
    ]
    (cell,) = cells_of(
        select(study(seconds=[5.0, 6.0]), *(one_run(3 + place, **one) for place, one in enumerate(others))).runs
    )
    assert cell.seconds("training_seconds") == {1: 5.0, 2: 6.0}
    assert cell.results("accuracy") == {1: 0.9, 2: 0.9, 3: 0.7, 5: 0.8}


def one_run(seed, *, name="other", **changes):
    """Return the run of a seed, alone."""
    record, epochs = finished_run(Path(f"{name}-{seed}"), seed=seed, **changes)
    return [LoadedRun(Path(f"{name}-{seed}"), record, record.status.state, figures_of(epochs))]


def test_runs_of_one_seed_are_one_result_and_a_metered_one_unpairs_no_time():
    again, other = one_run(2, name="again", seconds=7.0, accuracy=0.81), one_run(1, seconds=50.0, energy=metered())
    (cell,) = cells_of(select(study(seconds=[5.0, 6.0], accuracy=[0.9, 0.8]), again, other).runs)
    assert cell.results("accuracy") == {1: 0.9, 2: pytest.approx(0.805)}
    assert cell.seconds("training_seconds") == {1: 5.0, "run-r2": 6.0, "again-2": 7.0}


def test_seconds_to_a_target_are_those_of_the_first_epoch_that_reaches_it():
    selection = select(study(seconds=[9.0], accuracies=[0.5, 0.91, 0.9]))
    assert [runs_to(selection, accuracy)["seconds_to_target"][0] for accuracy in (0.9, 0.5)] == [6.0, 3.0]
    assert math.isnan(runs_to(selection, 0.92)["seconds_to_target"][0])
    (run,) = runs_in(selection.runs)
    assert run.total_seconds == 14.0 and run.epoch_seconds == 3.0 and run.steady_epoch_seconds == 2.25


def metered():
    nothing = EnergyTotals(
        complete=True, joules=1.0, joules_by_phase={}, joules_above_idle=None, edp_joule_seconds=1.0,
        ed2p_joule_square_seconds=1.0,
    )  # fmt: skip
    return EnergyRecord(
        interval_seconds=0.5, counted_phases=["training"], seconds=1.0, seconds_by_phase={"training": 1.0}, devices=[],
        used_devices=nothing, all_devices=nothing,
    )  # fmt: skip


# frameworks


def test_frameworks_are_compared_by_seed(tmp_path, capsys):
    finding = find(load_runs([both(tmp_path)]))
    (row,) = rows_of(finding, 0)
    assert row["pairs"] == "6 by seed" and row["verdict"] == "Keras faster" and row["within 0.5 points"] == "same"
    walsh = sorted(math.log(KERAS[a] * KERAS[b] / TORCH[a] / TORCH[b]) / 2 for a in range(6) for b in range(a, 6))
    assert row["Keras / PyTorch time"] == pytest.approx(math.exp(walsh[10]))
    assert row["95 % interval"] == f"{math.exp(walsh[0]):.3f} to {math.exp(walsh[-1]):.3f}"
    assert row["p"] == pytest.approx(2 / 64)
    assert row["accuracy: Keras - PyTorch, points"] == pytest.approx(0.05)
    assert finding.answer == (
        "Keras trains 1.25 times as fast as PyTorch (n = 6). The accuracy is the same to within 0.5 points."
    )
    torch = next(row for row in rows_of(finding, 1) if "PyTorch" in row.values())
    assert torch["training, s"] == pytest.approx(10.15) and torch["95 % interval"] == "9.80 to 10.40"
    assert torch["mean of the middle"] == pytest.approx(10.15) and torch["mean"] == pytest.approx(10.1333, abs=1e-4)
    assert torch["images/s"] == pytest.approx(6 / sum(seconds / 360 for seconds in TORCH))
    assert torch["s/epoch"] == pytest.approx(10.15 / 3) and torch["s/epoch after the first"] == pytest.approx(10.15 / 4)
    assert not finding.flags
    assert shown(capsys, "frameworks", tmp_path, "--strict")


def test_every_format_and_plot_has_all_points(tmp_path, capsys, plots):
    both(tmp_path / "runs")
    found = json.loads(shown(capsys, "frameworks", tmp_path / "runs", "--format", "json"))
    assert [len(table["rows"]) for table in found["tables"]] == [1, 2, 2] and found["answer"].startswith("Keras")
    tables = tmp_path / "tables"
    assert shown(capsys, "frameworks", tmp_path / "runs", "--format", "csv", "--folder", tables) == ""
    files = {file.name: list(csv.reader(file.open())) for file in tables.iterdir()}
    assert sorted(files) == [
        "frameworks-1-keras-against-pytorch.csv", "frameworks-2-times.csv", "frameworks-3-accuracies.csv",
    ]  # fmt: skip
    assert [len(rows) for _, rows in sorted(files.items())] == [2, 3, 3], "one header each"
    assert r"\begin{tabular}" in shown(capsys, "frameworks", tmp_path / "runs", "--format", "latex")
    assert "| Keras" in shown(capsys, "frameworks", tmp_path / "runs", "--format", "md")
    text = shown(capsys, "frameworks", tmp_path / "runs", "--plots", tmp_path / "plots")
    names = [f"frameworks-{name}.{kind}" for name in ("accuracy", "rate", "time") for kind in ("csv", "png", "svg")]
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == names
    assert all(f"plot: {tmp_path / 'plots' / name}" in text for name in names)
    command = f"python -m analysis frameworks {tmp_path}/runs --plots {tmp_path}/plots"
    with Image.open(tmp_path / "plots" / "frameworks-time.png") as picture:
        assert picture.text["Description"] == command
    assert command in (tmp_path / "plots" / "frameworks-time.svg").read_text()
    time, _, accuracy = find(load_runs([tmp_path / "runs"])).plots
    (ax,) = time.figure.axes
    points = [line.get_xdata().tolist() for line in ax.lines if len(line.get_xdata()) == 6]
    assert sorted(points) == sorted([KERAS, TORCH]) and ax.get_xlabel() == "seconds"
    assert len(time.data.rows) == 12 and {row[3] for row in time.data.rows} == {*KERAS, *TORCH}
    assert accuracy.figure.axes[0].get_xlabel() == "%"


def test_times_of_runs_made_at_once_are_compared_with_such_runs_alone(tmp_path, capsys):
    both(tmp_path / "beside", world={"at_once": 2})
    assert "Keras trains 1.25 times as fast" in shown(capsys, "frameworks", tmp_path / "beside", "--strict")
    write_study(tmp_path / "mixed", name="torch", framework="torch", seconds=TORCH)
    write_study(tmp_path / "mixed", name="keras", framework="keras", seconds=KERAS, world={"at_once": 2})
    assert "at once: 1 and 2" in shown(capsys, "frameworks", tmp_path / "mixed", "--strict", code=2)
    assert "made 1 and 2 at once" in shown(capsys, "experiment", tmp_path / "mixed", "--strict", code=2)
    assert "made 2 at once: times compare" in shown(capsys, "experiment", tmp_path / "beside", "--strict")
    assert "at once" not in shown(capsys, "experiment", both(tmp_path / "alone"))


def test_what_is_not_the_same_experiment_is_flagged_and_refused(tmp_path, capsys):
    write_study(tmp_path, name="torch", framework="torch", seconds=TORCH)
    write_study(tmp_path, name="keras", framework="keras", seconds=KERAS, settings={"optimizer": {"momentum": 0.5}},
                hashes=Hashes(initial_weights="zz", sample_order="order1", final_weights="f"))  # fmt: skip
    text = shown(capsys, "frameworks", tmp_path)
    assert "momentum: 0.9 and 0.5" in text and "Keras faster" in text
    assert "the first weights differ for seed 1, 2, 3 and 3 more: not the same experiment" in text
    assert "the order of the samples differ for seed 2, 3, 4 and 2 more" in text
    assert "The two are not shown to be the same experiment" in text
    error = shown(capsys, "frameworks", tmp_path, "--strict", code=2)
    assert "momentum: 0.9 and 0.5 (" in error and "flags in all" in error


def test_one_framework_alone_is_compared_with_nothing(tmp_path, capsys):
    write_study(tmp_path, seconds=TORCH)
    text = shown(capsys, "frameworks", tmp_path)
    assert "there is nothing to compare" in text and "no runs of another framework" in text and "10.15" in text


def test_equal_times_and_strange_values_are_handled(tmp_path, capsys, plots):
    for framework in ("torch", "keras"):
        write_study(tmp_path, name=framework, framework=framework, seconds=[5.0] * 6)
    (row,) = find(load_runs([tmp_path])).tables[0].rows
    assert row[2:4] == [1.0, "1.000 to 1.000"] and row[5] == "not shown" and row[8] == "same"
    write_finished_run(tmp_path / "torch-r9", seed=9, seconds=5.0, accuracy=math.nan)
    write_finished_run(tmp_path / "torch-r10", seed=10, seconds=0.0)
    write_finished_run(tmp_path / "torch-r11", seed=11, accuracy=NotRecorded("lost"))
    text = shown(capsys, "frameworks", tmp_path)
    assert "its training took no time" in text and "7 (2 without)" in text and "not shown" in text


@pytest.mark.parametrize("form", FORMATS)
def test_what_is_not_refused_is_reported_with_strict_too(tmp_path, capsys, form):
    both(tmp_path / "runs")
    folder = ["--folder", str(tmp_path / "tables")] if form == "csv" else []
    assert main(["frameworks", str(tmp_path / "runs"), "--strict", "--format", form, *folder]) == 0
    captured = capsys.readouterr()
    assert "Keras trains 1.25 times as fast as PyTorch" in (captured.out if form == "text" else captured.err)


@pytest.mark.parametrize(("n", "verdict"), [(1, "too few runs"), (3, "too few runs"), (4, "Keras faster")])
def test_few_runs_decide_nothing_or_little(n, verdict):  # 4 against 4: 2 / 70 < 5 %
    assert find(select(*both_alike(n))).tables[0].rows[0][5] == verdict


def both_alike(n=6, **changes):
    return [study(framework, framework=framework, seconds=seconds[:n], **changes)
            for framework, seconds in (("torch", TORCH), ("keras", KERAS))]  # fmt: skip


def test_repeated_seeds_are_not_paired():
    again = study("again", framework="keras", seconds=[8.0] * 6)
    assert find(select(*both_alike(), again)).tables[0].rows[0][1] == "12 and 6 runs"


def test_many_comparisons_are_reported_to_find_some_by_chance():
    one = both_alike()
    assert not any("by chance" in note for note in find(select(*one)).notes)
    (note,) = [note for note in find(select(*one, *both_alike(np=2))).notes if "by chance" in note]
    assert note.startswith("2 comparisons, each at 95 %")


# check


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"world": {"oversubscribed": True, "cores": 1}}, "cores are oversubscribed: 1 ranks x 1 threads on 1 cores"),
        ({"status": make_status(state="interrupted")}, "is interrupted, not finished"),
        ({"totals": {"epochs": 4}}, "epochs are missing: 4 were trained, 3 are recorded"),
        ({"settings": {"training": {"epochs": 5}}, "accuracies": [None] * 3, "totals": {"epochs": 3}},
         "epochs are missing: 5 were asked for, 3 are recorded"),
        ({"np": 2, "settings": {"schedule": {"lr_scaling": "linear", "warmup_epochs": 3.0}}},
         "the warm-up is as long as the run: 3 of 3 epochs"),
        ({"isolation": Interference(
            load_average_before=[3.0], other_processes_before=["find, 80 % of a core"], throttled_cores=2,
            peak_memory_bytes=[1], peak_device_memory_bytes=[None])}, "another process ran on the machine: find, 80 %"),
        ({"isolation": Interference(
            load_average_before=[0.0], other_processes_before=[], throttled_cores=2, peak_memory_bytes=[1],
            peak_device_memory_bytes=[None])}, "cores were throttled 2 times"),
        ({"seconds": 0.0}, "its training took no time"),
        ({"energy": metered(), "world": {"at_once": 3}}, "its energy was measured beside other runs (3 at once)"),
    ],
)  # fmt: skip
def test_what_makes_a_run_invalid_is_reported(tmp_path, capsys, changes, words):
    write_study(tmp_path, seconds=[5.0, 5.1])
    assert "No findings in 2 runs" in shown(capsys, "check", tmp_path, "--strict")
    write_finished_run(tmp_path / "wrong", seed=3, **changes)
    text = shown(capsys, "check", tmp_path)
    assert f"wrong: {words}" in text.replace("run-r1", "")
    shown(capsys, "check", tmp_path, "--strict", code=2)


def test_what_makes_runs_together_invalid_is_reported(tmp_path, capsys):
    write_study(tmp_path, seconds=[5.0, 5.1])
    write_finished_run(tmp_path / "again", seed=2)
    write_finished_run(tmp_path / "metered", seed=3, energy=metered())
    text = shown(capsys, "check", tmp_path)
    assert "PyTorch, cnn, mnist, np 1: seeds are repeated (2)" in text
    assert "PyTorch, cnn, mnist, np 1: profiled or metered runs are among timed ones" in text
    write_finished_run(tmp_path / "other" / "alone", np=2)
    assert "one timed run alone shows nothing" in shown(capsys, "check", tmp_path / "other")


def test_other_versions_and_variables_are_flagged(tmp_path, capsys):
    versions = [{"numpy": "2.0", "torch": "2.13.0", "torchvision": "1"}, {"numpy": "2.0", "torch": "2.14.0"}]
    for seed, packages in enumerate(versions, start=1):
        write_finished_run(tmp_path / f"torch-{seed}", seed=seed, environment=make_environment(packages=packages))
        variables = {"OMP_NUM_THREADS": "2", "OMPI_MCA_mpi_yield_when_idle": str(seed), "HOROVOD_RANK": str(seed)}
        environment = make_environment(packages={"numpy": "2.1"}, variables=variables)
        write_finished_run(tmp_path / f"keras-{seed}", seed=seed, framework="keras", environment=environment)
    text = shown(capsys, "check", tmp_path)
    torch, keras = "PyTorch, cnn, mnist, np 1, no tuning", "Keras, cnn, mnist, np 1, OMP_NUM_THREADS 2"
    assert f"flag: {torch}: torch is not the same in these runs: 2.13.0, 2.14.0" in text
    assert f"{torch} against {keras}: numpy: 2.0 and 2.1" in text
    assert f"{torch} against {keras}: tuning: None and OMP_NUM_THREADS 2" in text
    assert not any(word in text for word in ("torchvision", "HOROVOD_RANK", "yield_when_idle")), "of no effect here"
    with_mpi = [run for run in runs_in(load_runs([tmp_path]).runs) if run.framework == "keras"]
    for run in with_mpi:
        record = json.loads((run.folder / RUN_FILE).read_text())
        record["world"]["controller"] = "mpi"
        (run.folder / RUN_FILE).write_text(json.dumps(record))
    cells = [cell for cell in cells_of(load_runs([tmp_path]).runs) if cell.framework == "keras"]
    assert [cell.settings["tuning"] for cell in cells] == [
        "OMP_NUM_THREADS 2", "OMPI_MCA_mpi_yield_when_idle 2, OMP_NUM_THREADS 2",
    ], "1 is what every run sets"  # fmt: skip


# aa-test


def many(random, *, n=60, spread=0.02):
    """Return times whose noise comes and goes slowly, with a little of its own for each run."""
    drift = np.cumsum(random.normal(scale=0.01, size=n))
    return 10 * np.exp(drift + random.normal(scale=spread, size=n))


@pytest.mark.ci
def test_a_framework_is_seldom_called_faster_than_itself_and_a_delay_is_found():
    random = np.random.default_rng(1)
    studies = [many(random) for _ in range(8)]
    for splits in (paired_splits, unpaired_splits):
        assert np.mean([splits(study).false_alarms for study in studies]) < 0.055
    found = paired_splits(studies[0])
    assert found.pairs == 30 and found.power(0.05) > 0.99 and found.power(0.0) < 0.05
    assert found.power(found.smallest_delay * 1.001) >= 0.9 > found.power(found.smallest_delay * 0.9)
    assert unpaired_splits(studies[0]).smallest_delay > found.smallest_delay, "drift hides it"


def test_an_injected_delay_is_what_slower_runs_would_show():
    """Multiplying one side is the same as comparing with the multiplied times."""
    values = many(np.random.default_rng(2), n=40)
    base, others = dict(enumerate(values[::2])), values[1::2]
    plain, injected = (ratio(dict(enumerate(delay * others)), base) for delay in (1.0, 1.05))
    assert plain and plain.interval and injected and injected.interval
    assert injected.interval.low == pytest.approx(1.05 * plain.interval.low)


def test_enough_runs_are_required_and_reported(tmp_path, capsys):
    times = many(np.random.default_rng(3), n=FEWEST_RUNS).tolist()
    write_study(tmp_path, name="keras", framework="keras", seconds=times[:-1])
    assert "No setting has the 40 timed runs that an A/A test takes (the most is 39)" in shown(
        capsys, "aa-test", tmp_path
    )
    write_finished_run(tmp_path / "last", framework="keras", seed=FEWEST_RUNS, seconds=times[-1])
    text = shown(capsys, "aa-test", tmp_path, "--plots", tmp_path / "plots")
    assert "Keras, cnn is called faster than itself in" in text and "A delay of 5 % is detected in" in text
    assert "6 pairs" in text and "20 pairs" in text and (tmp_path / "plots" / "aa-test.svg").exists()


def test_splits_are_of_the_order_in_which_runs_were_made():
    runs = [
        one_run(
            second,
            seconds=float(second),
            status=make_status(state="finished", started_at=f"2026-11-21T08:00:{second}.000+00:00"),
        )
        for second in (30, 10, 20)
    ]
    (cell,) = cells_of(select(*runs).runs)
    assert seconds_of(cell).tolist() == [10.0, 20.0, 30.0]
