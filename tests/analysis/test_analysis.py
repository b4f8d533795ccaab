"""`python -m analysis`: tables in every format, flags, plots, and whether two runs were the same experiment."""

import argparse
import csv
import io
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from analysis_builders import rows_of
from builders import make_status, make_world, write_finished_run
from PIL import Image

import analysis.__main__ as analysis
from analysis.__main__ import COMMANDS, main
from analysis.output.finding import Finding, show
from analysis.output.tables import FORMATS, Table, render
from analysis.questions.parity.command import parity_table
from analysis.questions.parity.plots import plot_losses, plot_ranks
from analysis.runs.examples import NOTE as EXAMPLES
from analysis.runs.sameness import why_not_the_same
from common.checks.parity_record import PARITY_FILE, ArrayComparison, Curve, ParityRecord, ParitySettings, read_parity
from common.checks.result_file import SCHEMA_VERSION, write_result
from common.model.weights import save_weights
from common.run_folder.environment import describe_environment
from common.run_folder.records import Hashes, NotRecorded, now, read_run

ROOT = Path(__file__).resolve().parents[2]

# Tables

TABLE = Table("Two | rows", ["name", "difference"], [["a|b", 1.23456e-9], ["50 % & more", None]], {"difference": ".1e"})


def test_formats_for_readers_round_and_those_for_programs_do_not():
    assert "1.2e-09" in render(TABLE, "text") and render(TABLE, "text").startswith("Two | rows\n")
    assert "1.2e-09" in render(TABLE, "md") and "|" in render(TABLE, "md")
    assert list(csv.reader(io.StringIO(render(TABLE, "csv")))) == [
        ["name", "difference"],
        ["a|b", "1.23456e-09"],
        ["50 % & more", ""],
    ]
    assert json.loads(render(TABLE, "json"))["rows"][0] == {"name": "a|b", "difference": 1.23456e-9}
    assert json.loads(render(TABLE, "json"))["rows"][1]["difference"] is None
    latex = render(TABLE, "latex")
    assert r"\begin{tabular}" in latex and r"50 \% \& more" in latex


@pytest.mark.parametrize("form", FORMATS)
def test_an_empty_table_and_infinity_are_shown(form):
    assert "name" in render(replace(TABLE, rows=[]), form) or form == "json"
    assert "inf" in render(replace(TABLE, rows=[["a", float("inf")]]), form)


# Proofs


def compared(**changes):
    values = {
        "model": "mlp",
        "what": "50 updates",
        "optimizer": "momentum",
        "between": ("keras np 1", "torch np 1"),
        "dropout": "none",
        "dtype": "float64",
        "difference": 1e-15,
        "where": "weights/fc1.bias",
        "tolerance": 1e-8,
    }
    return ArrayComparison(**{**values, **changes})


def curve(**changes):
    values = {
        "model": "mlp",
        "optimizer": "momentum",
        "between": ("keras np 1", "torch np 1"),
        "dtype": "float64",
        "exchanged": False,
        "losses": ([2.0, 1.0], [2.0, 1.0 + 1e-12]),
        "weights_difference": [0.0, 1e-13],
    }
    return Curve(**{**values, **changes})


def proofs(**changes):
    settings = ParitySettings(
        models=["mlp", "resnet34"], optimizers=["momentum", "adam"], np=[1, 2], updates=2, exchanged_updates=2,
        controller="mpi", dataset="mnist", epochs=0,
    )  # fmt: skip
    ranks = ("keras np 2", "keras np 1")
    values = {
        "schema_version": SCHEMA_VERSION,
        "started_at": "2026-11-21T08:00:00.000+00:00",
        "ended_at": now(),
        "settings": settings,
        "environment": describe_environment(),
        "comparisons": [
            compared(),
            compared(difference=3e-12, optimizer="adam"),
            compared(dtype="float32", difference=2e-6, tolerance=None),
            compared(between=("keras np 2", "torch np 2"), difference=2e-12, optimizer="adam"),
            compared(between=ranks, tolerance=1e-11),
            compared(between=ranks, tolerance=1e-11, optimizer="adam", difference=2e-15),
            compared(model="resnet34", what="2 updates, free", tolerance=None, difference=0.5),
        ],
        "curves": [
            curve(),
            curve(dtype="float32", losses=([2.0, 1.0], [2.0, 1.1])),
            curve(between=ranks),
            curve(between=ranks, dtype="float32", weights_difference=[1e-8, 1e-6]),
            curve(model="resnet34", weights_difference=[]),
            curve(model="resnet34", exchanged=True),
        ],
    }
    return ParityRecord(**{**values, **changes})


def test_a_record_is_read_as_it_was_written(tmp_path):
    record = proofs(comparisons=[compared(difference=float("inf"))])
    write_result(tmp_path / PARITY_FILE, record)
    assert read_parity(tmp_path) == record


def test_the_table_has_the_worst_of_each_row():
    rows = rows_of(parity_table(proofs()))
    assert [(row["compared"], row["between"], row["optimizer"], row["verdict"]) for row in rows] == [
        ("50 updates", "keras and torch, np 1, 2", "momentum, adam", "same"),
        ("50 updates", "np 2 and 1, keras", "momentum, adam", "same"),
        ("2 updates, free", "keras and torch, np 1", "momentum", "shown"),
    ]
    first = rows[0]
    assert (first["float64"], first["limit float64"], first["float32"], first["limit float32"]) == (
        3e-12, 1e-8, 2e-6, "not judged",
    )  # fmt: skip
    assert [row["limit float64"] for row in rows] == [1e-8, 1e-11, "not judged"]
    assert [row["float32"] for row in rows] == [2e-6, None, None]
    assert len(parity_table(proofs(), every=True).rows) == 6  # float32 beside its float64


@pytest.mark.parametrize("difference", [1.1e-8, float("inf"), float("nan")])
def test_what_differs_is_reported_and_refused(tmp_path, capsys, difference):
    write_result(
        tmp_path / PARITY_FILE,
        proofs(comparisons=[compared(difference=difference), compared(optimizer="adam")], curves=[]),
    )
    assert main(["parity", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "DIFFERS" in shown and "flag: differs: mlp, 50 updates, momentum, float64, keras np 1 against torch" in shown
    assert ("inf" in shown.split("flag:")[0]) == (difference != 1.1e-8)
    assert main(["parity", str(tmp_path), "--strict"]) == 2
    error = capsys.readouterr().err.splitlines()
    assert len(error) == 1 and "mlp, 50 updates, momentum" in error[0]


def test_a_record_of_nothing_proves_nothing(tmp_path, capsys):
    write_result(tmp_path / PARITY_FILE, proofs(comparisons=[], curves=[]))
    assert main(["parity", str(tmp_path), "--format", "latex"]) == 0
    shown = capsys.readouterr()
    assert shown.err.splitlines()[1] == "flag: nothing was compared" and r"\begin{tabular}{llll" in shown.out
    assert main(["parity", str(tmp_path), "--strict"]) == 2


def test_proofs_that_were_not_finished_are_flagged(tmp_path, capsys):
    write_result(tmp_path / PARITY_FILE, proofs(ended_at=None, curves=[]))
    assert main(["parity", str(tmp_path)]) == 0
    assert "flag: the proofs were not finished" in capsys.readouterr().out
    assert main(["parity", str(tmp_path), "--strict"]) == 2


@pytest.mark.ci
@pytest.mark.usefixtures("drawn")
def test_a_proof_of_all_is_shown_with_its_plots(tmp_path, capsys):
    write_result(tmp_path / PARITY_FILE, proofs())
    shows = ["parity", str(tmp_path), "--strict"]
    assert main(shows) == 0
    assert not (tmp_path / "plots").exists()  # nothing is written unasked
    assert main([*shows, "--plots", str(tmp_path / "plots")]) == 0
    shown = capsys.readouterr().out
    assert "Nothing to flag" in shown
    names = ["losses.csv", "losses.png", "losses.svg", "ranks.csv", "ranks.png", "ranks.svg"]
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == names
    assert all(f"plot: {tmp_path / 'plots' / name}" in shown for name in names)
    for name in names[1::3]:
        with Image.open(tmp_path / "plots" / name) as picture:
            assert (
                picture.width > 500 and len(np.unique(np.asarray(picture.convert("RGB")).reshape(-1, 3), axis=0)) > 50
            )
    text = (tmp_path / "plots" / "losses.svg").read_text()
    assert all(
        word in text
        for word in ("mlp (float32)", "resnet34 (float64, free: not judged)", "PyTorch", "Keras", "from one state")
    )
    before = (tmp_path / "plots" / "losses.svg").read_bytes()
    assert main([*shows, "--plots", str(tmp_path / "plots")]) == 0
    assert (tmp_path / "plots" / "losses.svg").read_bytes() == before, "the same command gives the same picture"


def test_plots_show_the_numbers():
    figure = plot_losses(proofs())
    losses, _, differences, exchanged, weights, _ = figure.axes
    assert [line.get_ydata().tolist() for line in losses.lines] == [[2.0, 1.1], [2.0, 1.0]]  # PyTorch below
    assert [line.get_ydata()[1] for line in differences.lines] == pytest.approx([1e-12, 0.1 / 1.1], rel=1e-3)
    assert np.isnan(differences.lines[0].get_ydata()[0])  # no difference, no point
    assert len(exchanged.lines) == 2
    assert [line.get_ydata()[-1] for line in weights.lines] == [1e-13, 1e-13, 1e-8]  # and the limit
    assert all(ax.get_ylim()[0] <= 1e-12 and ax.get_ylim()[1] >= 0.09 for ax in (differences, exchanged))
    ranks = plot_ranks(proofs())
    float32, float64 = ranks.axes
    assert [line.get_ydata().tolist() for line in float32.lines] == [[1e-8, 1e-6]]
    assert float64.lines[0].get_ydata()[1] == 1e-13 and float64.lines[1].get_ydata()[0] == 1e-11
    assert plot_losses(proofs(curves=[])) is None and plot_ranks(proofs(curves=[curve()])) is None


@pytest.mark.parametrize("form", FORMATS)
def test_flags_are_shown_in_every_format(tmp_path, capsys, form):
    write_result(tmp_path / PARITY_FILE, proofs(ended_at=None, curves=[curve()]))
    folder = ["--folder", str(tmp_path / "tables")] if form == "csv" else []
    assert main(["parity", str(tmp_path), "--format", form, "--plots", str(tmp_path / "elsewhere"), *folder]) == 0
    shown = capsys.readouterr()
    assert "flag: the proofs were not finished" in (shown.out if form == "text" else shown.err)
    assert ("flag:" in shown.out) == (form == "text") and ("plot:" in shown.out) == (form == "text")
    if form == "json":
        assert len(json.loads(shown.out)["tables"][0]["rows"]) == 3
    assert (tmp_path / "elsewhere" / "losses.png").exists() and not (tmp_path / "plots").exists()


@pytest.mark.parametrize(("rows", "is_all", "more"), [(25, False, ""), (40, False, "15 more: "), (40, True, "")])
def test_long_tables_are_shortened_in_a_terminal_only(capsys, monkeypatch, rows, is_all, more):
    table = Table("Long", ["row"], [[f"row {number}"] for number in range(rows)], {})
    finding = Finding(name="made", question="Why?", answer="Because.", tables=[table])
    options = argparse.Namespace(format="text", plots=None, strict=False, all=is_all)
    show(finding, options)
    assert f"row {rows - 1}\n" in capsys.readouterr().out, "a pipe or file gets all"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    show(finding, options)
    shown = capsys.readouterr().out
    assert (f"row {rows - 1}\n" in shown) == (not more) and "row 24\n" in shown
    assert more in shown and ("more: --format json" in shown) == bool(more) and "Because." in shown


def test_a_closed_pipe_is_quiet(tmp_path):
    write_result(tmp_path / PARITY_FILE, proofs(comparisons=[compared()] * 5000))
    command = f"{sys.executable} -m analysis parity {tmp_path} --all --format md | head -1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and "rror" not in done.stderr and done.stdout.startswith("| model ")


def test_each_command_is_found_in_its_module_and_listed(capsys):
    for name in COMMANDS:
        with pytest.raises(SystemExit, match="0"):
            main([name, "--help"])
        assert f"python -m analysis {name} " in capsys.readouterr().out
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    listed = re.findall(r"^    (\S+)", capsys.readouterr().out, flags=re.MULTILINE)
    assert listed == [*COMMANDS] and all(f"python -m analysis {name} " in str(analysis.__doc__) for name in COMMANDS)


def test_the_examples_are_marked_and_taken_beside_runs(tmp_path, capsys):
    assert main(["times", "--examples"]) == 0
    shown = capsys.readouterr().out
    assert f"note: {EXAMPLES}" in shown and "cnn, mnist, np 2" in shown
    write_finished_run(tmp_path / "mine", seconds=1e6)
    assert main(["layers", "--examples"]) == 0  # of the experiment of that name
    assert "profiled step takes" in capsys.readouterr().out
    assert main(["times", str(tmp_path), "--examples"]) == 0
    assert "1,000,001.00" in capsys.readouterr().out  # with 1 s of test


def test_times_of_different_work_are_flagged(capsys):
    examples = ROOT / "analysis" / "data" / "examples"
    runs = [str(examples / f"batch-{framework}-cnn-np1-batchsize128-r1") for framework in ("keras", "torch")]
    assert main(["frameworks", *runs]) == 0  # one reached its target an epoch earlier
    assert "images: times not of the same work" in capsys.readouterr().out


@pytest.mark.ci
def test_the_report_marks_the_examples(tmp_path):
    assert main(["report", "--examples", "-o", str(tmp_path / "report.html")]) == 0
    page = (tmp_path / "report.html").read_text()
    assert EXAMPLES in page and "python -m analysis report --examples" in page


# Two runs


def write_run(folder, *, epochs=None, **changes):
    """Write a finished run with its weights; `epochs`: fields of every epoch, the rest see `finished_record`."""
    hashes = Hashes(initial_weights="aa", sample_order="bb", final_weights="cc")
    write_finished_run(folder, lines=epochs, **{"hashes": hashes, **changes})
    save_weights(folder / "weights.safetensors", {"fc1.bias": np.array([1.0, 2.0])})


UNKNOWN = NotRecorded("published without them")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"framework": "keras", "hashes": Hashes(initial_weights="aa", sample_order="bb", final_weights="zz")}, None),
        ({"settings": {"training": {"batch_size": 15, "eval_batch_size": 7}, "device": {"threads": 1}}}, None),
        ({"hashes": Hashes(initial_weights="ab", sample_order="bb")}, "the first weights differ: aa and ab"),
        ({"hashes": Hashes(initial_weights="aa", sample_order="bc")}, "the order of the samples differ: bb and bc"),
        ({"settings": {"training": {"seed": 2}}}, "training.seed differs: 1 and 2"),
        ({"settings": {"optimizer": {"momentum": 0.5}}}, "optimizer.momentum differs: 0.9 and 0.5"),
        ({"settings": {"model": {"dtype": "float64"}}}, "model.dtype differs: float32 and float64"),
        ({"settings": {"device": {"compression": "fp16"}}}, "device.compression differs: none and fp16"),
        ({"epochs": {"learning_rate": 0.02}}, "the learning rates differ"),
        ({"status": make_status(state="interrupted", ended_at=now())}, "second is interrupted, not finished"),
        ({"hashes": UNKNOWN, "origin": "published"}, "second (published) has no hashes: published without them"),
        (
            {"hashes": Hashes(initial_weights=UNKNOWN, sample_order="bb"), "origin": "imported"},
            "second (imported) has no hash of its first weights: published without them",
        ),
        ({"config": UNKNOWN, "origin": "imported"}, "second (imported) has no settings: published without them"),
    ],
)
def test_two_runs_were_the_same_experiment_or_why_not(tmp_path, capsys, changes, reason):
    write_run(tmp_path / "first")
    write_run(tmp_path / "second", **changes)
    folders = [str(tmp_path / "first"), str(tmp_path / "second")]
    assert main(["parity", *folders]) == 0
    shown = capsys.readouterr().out
    flags = [line for line in shown.splitlines() if line.startswith("flag: ")]
    assert main(["parity", *folders, "--strict"]) == (2 if reason else 0)
    error = capsys.readouterr().err.splitlines()
    if reason is None:
        assert flags == [] and error == [] and "Nothing to flag" in shown
    else:
        assert len(flags) == 1 and reason in flags[0]
        assert len(error) == 1 and reason in error[0]


KERAS_ON_TWO = {"framework": "keras", "world": make_world("cpu", "cpu")}
CNN = {"model": {"model": "cnn"}}
RESNET = {"model": {"model": "resnet34"}}


@pytest.mark.parametrize(
    ("both", "second", "reason"),
    [
        (CNN, {}, None),
        (CNN, {"framework": "keras"}, "the masks of dropout differ: cnn was trained with it"),
        (CNN, {"world": make_world("cpu", "cpu")}, "the masks of dropout differ"),
        (
            {"model": {"model": "cnn", "dropout": False}},
            KERAS_ON_TWO,
            None,
        ),
        ({"model": {"model": "mlp"}}, KERAS_ON_TWO, None),
        (RESNET, {"framework": "keras"}, None),
        (RESNET, {"settings": RESNET | {"training": {"batch_size": 15}}}, "BatchNorm saw other batches: 30 and 15"),
        (
            {},
            {"settings": {"device": {"share_gpu": True}}},
            "second is of shared GPUs, its times are not to be compared",
        ),
    ],
)
def test_what_no_setting_makes_alike_is_flagged(tmp_path, both, second, reason):
    write_run(tmp_path / "first", settings=both)
    write_run(tmp_path / "second", **({"settings": both} | second))
    reasons = why_not_the_same(read_run(tmp_path / "first"), read_run(tmp_path / "second"))
    assert len(reasons) == (reason is not None)
    assert reason is None or reason in reasons[0]


def test_another_global_batch_is_another_experiment(tmp_path):
    write_run(tmp_path / "first")
    first = read_run(tmp_path / "first")
    data = first.record.data
    other = replace(first, record=replace(first.record, data=replace(data, global_batch_size=60)))
    assert why_not_the_same(first, other) == ["the global batch differs: 30 and 60 images"]


def test_the_table_of_two_runs(tmp_path):
    write_run(tmp_path / "first")
    write_run(tmp_path / "second", hashes=UNKNOWN)
    save_weights(tmp_path / "second" / "weights.safetensors", {"fc1.bias": np.array([1.0, 2.5])})
    folders = [str(tmp_path / name) for name in ("first", "second", "tables")]
    assert main(["parity", *folders[:2], "--format", "csv", "--folder", folders[2]]) == 0
    (file,) = Path(folders[2]).iterdir()
    rows = {row[0]: row[1:] for row in csv.reader(io.StringIO(file.read_text()))}
    assert rows["first weights"] == ["aa", "not recorded: published without them"]
    assert rows["global batch"] == ["30", "30"]
    assert rows["training loss of epoch 2"] == ["0.5", "0.5"]
    assert rows["final weights, relative difference"] == ["0.25", "fc1.bias"]


def test_runs_beside_the_proofs_are_checked_too(tmp_path, capsys):
    write_result(tmp_path / PARITY_FILE, proofs(runs=["torch", "keras"]))
    write_run(tmp_path / "torch")
    write_run(tmp_path / "keras", framework="keras", settings={"training": {"seed": 2}})
    assert main(["parity", str(tmp_path)]) == 0
    assert "flag: training.seed differs: 1 and 2" in capsys.readouterr().out
    shutil.rmtree(tmp_path / "keras")
    assert main(["parity", str(tmp_path)]) == 2
    assert "not a run folder" in capsys.readouterr().err
