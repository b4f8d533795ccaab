"""Runs put into cells, and what `frameworks`, `check` and `aa-test` say of them."""

import math
import tomllib
from pathlib import Path

import numpy as np
import pytest
from analysis_builders import rows_of, select, study, write_described
from builders import make_status, make_trace, study_runs, write_finished_run, write_study
from PIL import Image

import analysis
from analysis.__main__ import main
from analysis.questions import check, frameworks
from analysis.questions.aa_test import FEWEST_RUNS, paired_splits, unpaired_splits
from analysis.questions.aa_test import seconds as seconds_of
from analysis.questions.frameworks import find
from analysis.report import chapters
from analysis.runs.cells import cells_of
from analysis.runs.reading import load_runs

TORCH = [10.0, 10.4, 9.8, 10.2, 10.1, 10.3]
KERAS = [8.0, 8.2, 7.9, 8.1, 8.3, 8.2]
METERED = [make_trace({"training": 1}, {"cpu0": {"training": 1.0}})]
SHIPPED = Path(analysis.__file__).with_name("data")
DIFFERENCES = tomllib.loads(Path(__file__).with_name("differences.toml").read_text())
ANSWERS = tomllib.loads(Path(__file__).with_name("answers.toml").read_text())["answers"]


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


# Cells


@pytest.mark.parametrize("row", DIFFERENCES["cells"], ids=lambda row: next(iter(row["labels"])))
def test_what_differs_makes_another_cell_and_is_its_label(tmp_path, row):
    for number, run in enumerate(row["runs"]):
        write_described(tmp_path / f"run-{number}", **run)
    found = {cell.label: len(cell.runs) for cell in cells_of(load_runs([tmp_path]).runs)}
    assert found == row["labels"]


def test_a_cell_has_a_result_for_each_seed_and_the_times_of_plain_finished_runs():
    others = [
        study("metered", first=1, seconds=[50.0], traces=METERED),  # unpairs no time
        study("again", first=2, seconds=[7.0], accuracy=0.81),
        study(first=3, accuracy=0.7, traces=METERED),
        study(first=4, accuracy=0.1, status=make_status()),
        study(first=5, accuracy=0.8, seconds=[0.0]),
    ]
    (cell,) = cells_of(select(study(seconds=[5.0, 6.0], accuracy=[0.9, 0.8]), *others).runs)
    assert cell.seconds("training_seconds") == {1: 5.0, "run-r2": 6.0, "again-r2": 7.0}
    assert cell.results("accuracy") == {1: 0.9, 2: pytest.approx(0.805), 3: 0.7, 5: 0.8}


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
        "Keras takes 0.80 times PyTorch's training time (95 % interval 0.79 to 0.82, n = 6). "
        "The accuracy is the same to within 0.5 points."
    )
    torch = next(row for row in rows_of(finding, 1) if "PyTorch" in row.values())
    assert torch["training, s"] == pytest.approx(10.15) and torch["95 % interval"] == "9.80 to 10.40"
    assert torch["images/s"] == pytest.approx(6 / sum(seconds / 360 for seconds in TORCH))
    assert torch["s/epoch"] == pytest.approx(10.15 / 3) and torch["s/epoch after the first"] == pytest.approx(10.15 / 4)
    assert not finding.flags
    assert shown(capsys, "frameworks", tmp_path, "--strict")


def test_plots_have_the_command_that_made_them(tmp_path, capsys, plots):
    runs, folder = both(tmp_path / "runs"), tmp_path / "plots"
    text = shown(capsys, "frameworks", runs, "--plots", folder)
    names = [f"frameworks-{name}.{kind}" for name in ("accuracy", "rate", "time") for kind in ("csv", "png", "svg")]
    assert sorted(path.name for path in folder.iterdir()) == names
    assert all(f"plot: {folder / name}" in text for name in names)
    command = f"python -m analysis frameworks {runs} --plots {folder}"
    with Image.open(folder / "frameworks-time.png") as picture:
        assert picture.text["Description"] == command
    assert command in (folder / "frameworks-time.svg").read_text()


@pytest.mark.parametrize("runs", ["results", "examples", "tuned"])
def test_commands_agree_on_which_pairs_are_the_same_experiment(runs):
    """Tuned runs have the settings of speed that are best for their framework: no objection, to no command."""
    speed = {"torch": {"device": {"gradient_groups": "each"}}, "keras": {"model": {"compile": True, "onednn": "on"}}}
    tuned = [
        study(framework, framework=framework, seconds=TORCH,
              settings=settings | {"model": settings.get("model", {}) | {"tuned": True}})
        for framework, settings in speed.items()
    ]  # fmt: skip
    selection = select(*tuned) if runs == "tuned" else load_runs([SHIPPED / runs])
    flags, checked = (
        [flag for flag in question.find(selection).flags if " against " in flag] for question in (frameworks, check)
    )
    assert flags == checked
    unlike = [flag for flag in flags if ": oneDNN: " not in flag]  # which makes no other experiment
    objected = {flag.partition(" against ")[0].removeprefix("PyTorch, ") for flag in unlike}
    verdicts = {row["model, data set, np"]: row["verdict"] for row in rows_of(chapters.parity(selection), 0)}
    assert {label for label, verdict in verdicts.items() if verdict != "same"} == objected
    assert len(objected) == (1 if runs == "examples" else 0)  # one framework reached the target accuracy earlier


# check


@pytest.mark.parametrize("row", DIFFERENCES["invalid"], ids=lambda row: row["flag"])
def test_what_makes_a_run_invalid_is_reported(tmp_path, capsys, row):
    write_study(tmp_path, seconds=[5.0, 5.1])
    subject = {"slow": "1:2", "slow_is_subject": True}
    write_study(tmp_path, name="subject", seconds=[5.0, 5.1], settings={"balance": subject})
    assert "No findings in 4 runs" in shown(capsys, "check", tmp_path, "--strict")
    write_described(tmp_path / "wrong", seed=3, **row["run"])
    assert f"wrong: {row['flag']}" in shown(capsys, "check", tmp_path).replace("run-r1", "")
    shown(capsys, "check", tmp_path, "--strict", code=2)
    timed = load_runs([tmp_path]).runs.set_index("name")["timed"]
    assert timed["wrong"] == row["timed"] and timed.drop("wrong").all()


@pytest.mark.parametrize("row", ANSWERS, ids=lambda row: row["id"])
def test_what_the_commands_say_of_runs(tmp_path, monkeypatch, capsys, row):
    monkeypatch.chdir(tmp_path)
    for study_of_row in row.get("studies", []):
        for name, run in study_runs(**study_of_row).items():
            if run.pop("metered", False):
                run["traces"] = METERED
            write_described(Path("runs", name), **run)
    text = shown(capsys, *row["command"].split(), code=row.get("code", 0))
    assert [words for words in row["words"] if words not in text] == []
    assert [words for words in row.get("absent", []) if words in text] == []


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


def test_enough_runs_are_required_and_reported(tmp_path, capsys):
    times = many(np.random.default_rng(3), n=FEWEST_RUNS).tolist()
    write_study(tmp_path, name="keras", framework="keras", seconds=times[:-1])
    few = shown(capsys, "aa-test", tmp_path)
    assert "No setting has the 40 timed runs that an A/A test takes (the most is 39)" in few
    write_finished_run(tmp_path / "last", framework="keras", seed=FEWEST_RUNS, seconds=times[-1])
    text = shown(capsys, "aa-test", tmp_path, "--plots", tmp_path / "plots")
    assert "Keras, cnn is called faster than itself in" in text and "A delay of 5 % is detected in" in text
    assert "6 pairs" in text and "20 pairs" in text and (tmp_path / "plots" / "aa-test.svg").exists()


def test_splits_are_of_the_order_in_which_runs_were_made():
    started = {second: f"2026-11-21T08:00:{second}.000+00:00" for second in (30, 10, 20)}
    runs = [
        study(first=second, seconds=[float(second)], status=make_status(state="finished", started_at=at))
        for second, at in started.items()
    ]
    (cell,) = cells_of(select(*runs).runs)
    assert seconds_of(cell).tolist() == [10.0, 20.0, 30.0]
