"""`python -m analysis`: tables in every format, flags, plots, and whether two runs were the same experiment."""

import argparse
import csv
import io
import json
import math
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from analysis_builders import found, rows_of, write_described
from builders import write_both, write_finished_run, write_study
from PIL import Image

import analysis.__main__ as analysis
from analysis.__main__ import COMMANDS, main
from analysis.output.finding import show
from analysis.output.tables import FORMATS, Table, render
from analysis.questions.parity.command import parity_table
from analysis.runs.examples import NOTE as EXAMPLES
from common.checks.parity_record import PARITY_FILE, read_parity
from common.checks.parity_record import PROOFS as PROOF_FILES
from common.model.weights import save_weights
from common.run_folder.records import NotRecorded

ROOT = Path(__file__).resolve().parents[2]
DIFFERENCES = tomllib.loads(Path(__file__).with_name("runs").joinpath("differences.toml").read_text())

# Tables


def test_formats_for_readers_round_and_those_for_programs_do_not():
    rows = [["a|b", 1.23456e-9], ["50 % & more", None], ["all", float("inf")]]
    table = Table("Two | rows", ["name", "difference"], rows, {"difference": ".1e"})
    shown = {form: render(table, form) for form in FORMATS}
    assert "1.2e-09" in shown["text"] and shown["text"].startswith("Two | rows\n")
    assert "1.2e-09" in shown["md"] and "|" in shown["md"]
    assert list(csv.reader(io.StringIO(shown["csv"]))) == [
        ["name", "difference"], ["a|b", "1.23456e-09"], ["50 % & more", ""], ["all", "inf"],
    ]  # fmt: skip
    first, second, _ = json.loads(shown["json"])["rows"]
    assert first == {"name": "a|b", "difference": 1.23456e-9} and second["difference"] is None
    assert r"\begin{tabular}" in shown["latex"] and r"50 \% \& more" in shown["latex"]
    assert all("inf" in text for text in shown.values())
    empty = Table("Empty", ["name"], [], {})
    assert all("name" in render(empty, form) or form == "json" for form in FORMATS)


@pytest.mark.parametrize("form", FORMATS)
def test_programs_get_tables_and_readers_the_answer_and_flags(tmp_path, capsys, form):
    runs, tables, plots = write_both(tmp_path / "runs", seeds=6), tmp_path / "tables", tmp_path / "plots"
    command = ["frameworks", str(runs), "--format", form, *(["--folder", str(tables)] if form == "csv" else [])]
    assert main([*command, "--strict"]) == 0
    captured = capsys.readouterr()
    assert "Keras takes 0.81 times" in (captured.out if form == "text" else captured.err)
    (runs / "broken").mkdir()
    (runs / "broken" / "run.json").write_text("{")
    assert main([*command, "--plots", str(plots)]) == 0
    captured = capsys.readouterr()
    read, other = (captured.out, captured.err) if form == "text" else (captured.err, captured.out)
    assert "flag: left out: " in read and "flag: " not in other and "note: " in read and "note: " not in other
    match form:
        case "json":
            assert [len(table["rows"]) for table in json.loads(captured.out)["tables"]] == [1, 2, 2]
        case "csv":
            names = ["1-keras-against-pytorch", "2-times", "3-accuracies"]
            assert sorted(tables.iterdir()) == [tables / f"frameworks-{name}.csv" for name in names]
            assert captured.out == "" and f"table: {tables / 'frameworks-2-times.csv'}" in captured.err
        case "latex":
            assert captured.out.count(r"\begin{tabular}") == 3
        case "md":
            assert "| Keras" in captured.out
    assert main([*command, "--strict"]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1 and "broken" in captured.err, "a refusal is a single line"


@pytest.mark.parametrize(("rows", "is_all", "more"), [(25, False, ""), (40, False, "15 more: "), (40, True, "")])
def test_long_tables_are_shortened_in_a_terminal_only(capsys, monkeypatch, rows, is_all, more):
    table = Table("Long", ["row"], [[f"row {number}"] for number in range(rows)], {})
    options = argparse.Namespace(format="text", plots=None, strict=False, all=is_all)
    show(found(tables=[table]), options)
    assert f"row {rows - 1}\n" in capsys.readouterr().out, "a pipe or file gets all"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    show(found(tables=[table]), options)
    shown = capsys.readouterr().out
    assert (f"row {rows - 1}\n" in shown) == (not more) and "row 24\n" in shown
    assert more in shown and ("more: --format json" in shown) == bool(more) and "Because." in shown


def test_each_command_is_found_in_its_module_and_listed(capsys):
    for name in COMMANDS:
        with pytest.raises(SystemExit, match="0"):
            main([name, "--help"])
        assert f"python -m analysis {name} " in capsys.readouterr().out
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    listed = re.findall(r"^    (\S+)", capsys.readouterr().out, flags=re.MULTILINE)
    assert listed == [*COMMANDS] and all(f"python -m analysis {name} " in str(analysis.__doc__) for name in COMMANDS)


@pytest.mark.ci
def test_the_report_marks_the_examples(tmp_path):
    assert main(["report", "--examples", "-o", str(tmp_path / "report.html")]) == 0
    page = (tmp_path / "report.html").read_text()
    assert EXAMPLES in page and "python -m analysis report --examples" in page


# Proofs


PROOFS = read_parity(Path(__file__).parent)  # parity.json: 7 comparisons and 6 curves


def compared(**changes):
    return replace(PROOFS.comparisons[0], **changes)


def test_the_table_has_the_worst_of_each_row():
    rows = rows_of(parity_table(PROOFS))
    assert [(row["compared"], row["between"], row["optimizer"], row["verdict"]) for row in rows] == [
        ("50 updates", "keras and torch, np 1, 2", "momentum, adam", "same"),
        ("50 updates", "np 2 and 1, keras", "momentum, adam", "same"),
        ("2 updates, free", "keras and torch, np 1", "momentum", "shown"),
    ]
    assert [row["float64"] for row in rows[:2]] == [3e-12, 2e-15]
    assert [row["limit float64"] for row in rows] == [1e-8, 1e-11, "not judged"]
    assert [row["float32"] for row in rows] == [2e-6, None, None] and rows[0]["limit float32"] == "not judged"
    assert len(parity_table(PROOFS, every=True).rows) == 6  # float32 beside its float64
    for difference, shown in ((1.1e-8, 1.1e-8), (math.inf, math.inf), (math.nan, math.inf)):
        (row,) = rows_of(parity_table(replace(PROOFS, comparisons=[compared(difference=difference), compared()])))
        assert (row["float64"], row["verdict"]) == (shown, "DIFFERS")


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"comparisons": [compared(difference=1.1e-8), compared(optimizer="adam")]}, "differs: mlp, 50 updates, mom"),
        ({"comparisons": [compared(), compared(difference=math.nan, optimizer="adam")]}, "differs: mlp, 50 updates, a"),
        ({"comparisons": []}, "nothing was compared"),
        ({"ended_at": None}, "the proofs were not finished"),
    ],
)
def test_what_is_not_proven_is_reported_and_refused(tmp_path, capsys, changes, flag):
    PROOF_FILES.write(tmp_path / PARITY_FILE, replace(PROOFS, **changes))
    assert main(["parity", str(tmp_path), "--strict"]) == 2
    captured = capsys.readouterr()
    assert f"flag: {flag}" in captured.out
    assert captured.err.count("\n") == 1 and flag in captured.err


@pytest.mark.ci
@pytest.mark.usefixtures("drawn")
def test_a_proof_of_all_is_shown_with_its_plots(tmp_path, capsys):
    PROOF_FILES.write(tmp_path / PARITY_FILE, PROOFS)
    command, folder = ["parity", str(tmp_path), "--strict", "--plots", str(tmp_path / "plots")], tmp_path / "plots"
    assert main(command[:3]) == 0
    assert not folder.exists()  # nothing is written unasked
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "Nothing to flag" in shown
    names = ["losses.csv", "losses.png", "losses.svg", "ranks.csv", "ranks.png", "ranks.svg"]
    assert sorted(path.name for path in folder.iterdir()) == names
    with Image.open(folder / "losses.png") as picture:
        colors = np.unique(np.asarray(picture.convert("RGB")).reshape(-1, 3), axis=0)
        assert picture.width > 500 and len(colors) > 50
    text = (folder / "losses.svg").read_text()
    assert all(words in text for words in ("mlp (float32)", "resnet34 (float64, free: not judged)", "from one state"))
    assert main(command) == 0
    assert (folder / "losses.svg").read_text() == text, "the same command gives the same picture"


def test_a_closed_pipe_is_quiet(tmp_path):
    PROOF_FILES.write(tmp_path / PARITY_FILE, replace(PROOFS, comparisons=[compared()] * 5000))
    command = f"{sys.executable} -m analysis parity {tmp_path} --all --format md | head -1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and "rror" not in done.stderr and done.stdout.startswith("| model ")


# Two runs


@pytest.mark.parametrize("row", DIFFERENCES["pairs"], ids=lambda row: row.get("reason", row.get("times", "the same")))
def test_two_runs_were_the_same_experiment_or_why_not(tmp_path, capsys, row):
    both, reason, times = row.get("both", {}), row.get("reason"), row.get("times")
    flag = reason or times
    write_described(tmp_path / "first", **both)
    write_described(tmp_path / "second", **both | row["second"])
    command = ["parity", str(tmp_path / "first"), str(tmp_path / "second")]
    assert main(command) == 0
    text = capsys.readouterr().out
    flags = [line for line in text.splitlines() if line.startswith("flag: ")]
    assert main([*command, "--strict"]) == (2 if flag else 0)
    error = capsys.readouterr().err.splitlines()
    assert len(flags) == len(error) == (flag is not None)
    assert "Nothing to flag" in text if flag is None else flag in flags[0] and flag in error[0]
    assert ("The same experiment, but its times do not compare" in text) == (times is not None)
    assert main(["compare", *command[1:]]) == 0
    compared = capsys.readouterr().out
    assert ("The two runs are the same experiment" in compared) == (reason is None)
    assert times is None or times in next(line for line in compared.splitlines() if line.startswith("flag: "))


def test_the_table_of_two_runs(tmp_path):
    for name, bias, changes in (("first", 2.0, {}), ("second", 2.5, {"hashes": NotRecorded("published without them")})):
        write_finished_run(tmp_path / name, **changes)
        save_weights(tmp_path / name / "weights.safetensors", {"fc1.bias": np.array([1.0, bias])})
    folders = [str(tmp_path / name) for name in ("first", "second", "tables")]
    assert main(["parity", *folders[:2], "--format", "csv", "--folder", folders[2]]) == 0
    (file,) = Path(folders[2]).iterdir()
    rows = {row[0]: row[1:] for row in csv.reader(io.StringIO(file.read_text()))}
    assert rows["first weights"] == ["first1", "not recorded: published without them"]
    assert rows["global batch"] == ["30", "30"]
    assert rows["training loss of epoch 2"] == ["0.5", "0.5"]
    assert rows["final weights, relative difference"] == ["0.25", "fc1.bias"]


def test_runs_beside_the_proofs_are_checked_too(tmp_path, capsys):
    PROOF_FILES.write(tmp_path / PARITY_FILE, replace(PROOFS, runs=["torch", "keras"]))
    write_finished_run(tmp_path / "torch")
    write_finished_run(tmp_path / "keras", framework="keras", settings={"training": {"seed": 2}})
    assert main(["parity", str(tmp_path)]) == 0
    assert "flag: training.seed differs: 1 and 2" in capsys.readouterr().out
    shutil.rmtree(tmp_path / "keras")
    assert main(["parity", str(tmp_path)]) == 2
    assert "not a run folder" in capsys.readouterr().err


OF_RUNS = ("strategies", "aa-test", "frameworks", "clouds", "scaling", "tune", "times", "energy", "layers", "faults",
           "hyperparameters", "check", "thesis")  # fmt: skip


@pytest.mark.parametrize("question", ["frameworks", "check", "compare", "times", "clouds", "layers"])
def test_every_question_flags_that_onednn_computed_one_framework_only(tmp_path, question, capsys):
    """As installed, both are still the same experiment."""
    installed = {"settings": {"model": {"onednn": "framework", "model": "mlp"}}}
    for framework, state in (("torch", "on"), ("keras", "off")):
        write_finished_run(tmp_path / framework, framework=framework, world={"onednn": [state]}, **installed)
    assert main([question, *map(str, (tmp_path / "torch", tmp_path / "keras")), "--format", "json"]) == 0
    flags = [flag for flag in json.loads(capsys.readouterr().out)["flags"] if "oneDNN" in flag]
    assert flags == [
        "cnn, mnist, np 1: PyTorch and Keras, oneDNN: as installed (in force: on) and as installed (in force: off): "
        "the times do not compare"
    ]


@pytest.mark.parametrize("question", OF_RUNS)
def test_every_question_flags_a_folder_that_cannot_be_read(tmp_path, question, capsys):
    write_study(tmp_path, seconds=[5.0, 6.0])
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "run.json").write_text("{")
    assert main([question, str(tmp_path), "--format", "json"]) == 0
    flags = json.loads(capsys.readouterr().out)["flags"]
    assert any("damaged" in flag for flag in flags), flags
    assert main([question, str(tmp_path), "--strict"]) == 2
