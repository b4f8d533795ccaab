"""Which runs are made side by side, and which requests are refused."""

import argparse
import re
from pathlib import Path

import pytest

from launch import __main__ as launch
from launch.experiments.at_once import part_of, resources_of_lane
from launch.experiments.plan import read_plan
from launch.starting import lanes
from launch.starting.lanes import WHOLE_HOST, Lane

PLAN = """
[experiment]
repeats = 6
metered = [1, 2, 3]

[settings]
framework = "torch"
model = "mlp"
dataset = "synthetic:600x8x8x1x3"
epochs = 1

[[cells]]
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lanes, "own_cores", lambda: frozenset({3, 5, 6, 7}))
    monkeypatch.setattr(lanes, "ask_nvidia", lambda *_: "")
    (tmp_path / "made.toml").write_text(PLAN)
    return tmp_path


def dry_run(*words):
    return launch.main(["experiment", "run", "made.toml", "--dry-run", *words])


def seconds(line):
    found = re.search(r"about (?:([0-9]+) min )?([0-9.]+) s", line)
    assert found, line
    return 60 * int(found[1] or 0) + float(found[2])


def test_runs_that_are_made_at_once_share_the_estimated_time_but_for_metered_ones(folder, capsys):
    estimates = []
    for text in (PLAN, PLAN.replace("metered = [1, 2, 3]", "")):
        (folder / "made.toml").write_text(text)
        for words, how in (([], ""), (["--at-once", "3"], ", 3 at once")):
            assert dry_run(*words) == 0
            estimates.append(capsys.readouterr().out.splitlines()[-1])
            assert estimates[-1].startswith(f"6 runs of 6 to do on local{how}: ")
    some_metered, some_metered_at_once, alone, at_once = map(seconds, estimates)
    assert at_once == pytest.approx(alone / 3, rel=0.02)
    assert some_metered - some_metered_at_once == pytest.approx((alone - at_once) / 2, rel=0.05)


def test_a_cell_that_needs_more_cores_than_a_lane_has_is_left_out(folder, capsys):
    (folder / "made.toml").write_text(PLAN + "cores = 2\n")
    assert dry_run("--at-once", "2") == 0
    assert "left out" not in capsys.readouterr().out
    assert dry_run("--at-once", "2", "--cores-per-run", "1") == 0
    assert "left out: torch-mlp-np1, needs 2 cores, there are 1" in capsys.readouterr().out
    assert resources_of_lane(WHOLE_HOST) is None and resources_of_lane(Lane(number=2, of=3)) is None


def test_the_parts_of_an_experiment_are_all_of_its_runs():
    plan = read_plan("made.toml", runs_folder=Path("runs"))
    parts = [part_of(plan, argparse.Namespace(at_once=4, part=part)).runs for part in (1, 2, 3, 4)]
    assert [[run.repeat for run in runs] for runs in parts] == [[1, 5], [2, 6], [3], [4]]
    assert part_of(plan, argparse.Namespace(at_once=4, part=None)) is plan
