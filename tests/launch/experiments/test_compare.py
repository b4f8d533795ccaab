"""`launch compare`: one command from a model to a verdict."""

import contextlib
import sys

import pytest
from processes import call, run_command

from common.run_folder.records import read_run
from launch import __main__ as launch
from launch.experiments import compare

SHORT = ["--model", "mlp", "--dataset", "synthetic:600x8x8x1x3", "--np", "2", "--epochs", "1", "--repeats", "2"]
FOLDER = "compare-mlp-synthetic-600x8x8x1x3-np2-epochs1-maxsteps2-threads1"


@pytest.mark.ranks
@pytest.mark.ci
def test_pairs_of_runs_a_report_and_an_answer(tmp_path):
    """And what is there is not made again."""
    command = [sys.executable, "-m", "launch", "compare", *SHORT, "--", "--max-steps", "2", "--threads", "1"]
    shown = []
    for _ in range(2):
        done = run_command(command, folder=tmp_path)
        assert done.code == 0, done
        shown.append(done.stdout.splitlines())
    runs = tmp_path / "runs" / FOLDER
    names = ["keras-mlp-np2-r1", "keras-mlp-np2-r2", "torch-mlp-np2-r1", "torch-mlp-np2-r2"]
    assert sorted(path.parent.name for path in runs.glob("*/run.json")) == names
    assert [read_run(runs / name).record.config.training.seed for name in names] == [1, 2, 1, 2]
    first, second = shown
    assert first[0].startswith("4 runs of 4 to do on local: about ")
    assert second[0] == "nothing is left to do: 4 runs"
    for lines in shown:
        assert any(line.startswith(f"report: runs/{FOLDER}/report.html") for line in lines)
        assert lines[-1].startswith("Too few runs to show a difference in time.")


def test_a_long_comparison_says_what_would_shorten_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(compare, "make_in_folder", lambda *arguments, **options: 130)
    with contextlib.chdir(tmp_path):
        assert launch.main(["compare", "--model", "resnet34", "--dataset", "synthetic:6400x64x64x3x10"]) == 130
        assert "shorter with fewer epochs (EPOCHS=1)" in capsys.readouterr().out
        assert launch.main(["compare", *SHORT]) == 130
        assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--model", "ResNet34"], "Received: --model ResNet34. Did you mean resnet34?"),
        (["--", "--lr", "fast"], "--learning-rate takes a number. Received: --learning-rate fast."),
        (["--dataset", "images:nowhere"], "Received: "),
    ],
)
def test_what_cannot_be_compared_is_one_line_and_nothing_is_made(words, line, tmp_path):
    with contextlib.chdir(tmp_path):
        assert line in call(launch.main, "compare", *words, code=2)
    assert list(tmp_path.iterdir()) == []
