"""Experiments without trainers: what is shown, the order of runs and lanes, and which runs that are there count."""

import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from builders import make_environment, make_record, make_status, make_world
from made_trials import made_run
from processes import ROOT, call

from common.run_folder.run_writer import RunWriter
from launch import __main__ as launch
from launch.experiments import series
from launch.experiments.plan import read_plan
from launch.starting import lanes

SETTINGS = """
[settings]
framework = "torch"
model = "mlp"
dataset = "synthetic:600x8x8x1x3"
launcher = "python"
epochs = 1
"""
REPEATS = "[experiment]\nrepeats = 2\nmetered = [2]\n"
CELLS = "".join(f'[[cells]]\nname = "{name}"\n' for name in "abc")
A, B, C = (f"{name}-torch-mlp-np1-r1" for name in "abc")
METERED = [f"{name}-torch-mlp-np1-r2" for name in "abc"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder on a host of 4 cores, without GPU."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lanes, "own_cores", lambda: frozenset({3, 5, 6, 7}))
    monkeypatch.setattr(lanes, "ask_nvidia", lambda *_: "")
    monkeypatch.setattr(lanes, "POLL_SECONDS", 0.001)
    monkeypatch.delenv("HOROVOD_CYCLE_TIME", raising=False)
    return tmp_path


@pytest.fixture
def events(monkeypatch):
    """What happens, with runs that take no time; cell c fails, and cell b takes nine steps."""
    happened = []

    def run(plan, planned, *, lane, advance):
        happened.append(f"{planned.name} in {lane.number} of {lane.of}")
        for _ in range(9 if planned.name.startswith("b") else 0):
            yield
        ended = yield from made_run(plan, planned, lane=lane, advance=advance)
        happened.append(f"{planned.name} ends")
        if planned.name == C:
            return series.SurveyedRun(planned, "failed", reason="of the test")
        return ended

    monkeypatch.setattr(series, "make_run", run)
    return happened


def experiment(text, *words, **expected):
    """Run an experiment; see `call`."""
    Path("made.toml").write_text(text)
    return call(launch.main, "experiment", "run", "made.toml", *words, **expected)


def test_runs_are_made_side_by_side_and_metered_ones_alone_after_them(events):
    shown = experiment(REPEATS + SETTINGS + CELLS, "--at-once", "2", code=1)
    assert events == [
        f"{A} in 1 of 2", f"{B} in 2 of 2", f"{A} ends", f"{C} in 1 of 2", f"{C} ends", f"{B} ends",
        *(event for name in METERED for event in (f"{name} in 1 of 1", f"{name} ends")),
    ]  # fmt: skip
    assert f"1/6 {A}: " in shown
    assert re.search(rf"^2/6 {C}: FAILED: of the test(; about .* left)?$", shown, re.MULTILINE)
    assert re.search(rf"^6/6 {METERED[2]}: .*[^;] *$", shown, re.MULTILINE)
    assert "1 run failed; the same command runs what is missing once more" in shown


def test_a_task_of_an_array_makes_its_part_and_notes_what_it_has_finished(folder, events):
    three = SETTINGS + CELLS
    experiment(three, "--at-once", "3", "--part", "3", code=1)
    assert events == [f"{C} in 3 of 3", f"{C} ends"] and not (folder / "runs/made/.part-3").exists()
    experiment(three, "--at-once", "2", "--part", "2")
    assert events[2:] == [f"{B} in 2 of 2", f"{B} ends"] and (folder / "runs/made/.part-2").exists()


@pytest.mark.parametrize("words", [[], ["--at-once", "2"]])
def test_a_spent_budget_starts_nothing_more(words, events, monkeypatch):
    """Here a run takes 50 s."""
    monkeypatch.setattr(series, "time", SimpleNamespace(monotonic=lambda: 25.0 * len(events)))
    shown = experiment(f"{REPEATS}budget_minutes = 1.3\n{SETTINGS}{CELLS}", *words, code=1)
    assert [event.split()[0] for event in events if " in " in event] == [A, B]
    assert shown.count("the budget of 1.3 minutes is spent: 4 runs not started") == 1


def write_finished(text, **changes):
    """Write the experiment and its first run, as it would be recorded but for these changes."""
    Path("made.toml").write_text(text)
    plan = read_plan("made.toml", runs_folder=Path("runs"))
    record = make_record(config=plan.runs[0].config, status=make_status(), **changes)
    RunWriter.create(plan.folder / plan.runs[0].name, record).end("finished")


@pytest.mark.parametrize(
    ("at_once", "notes"), [("2", ["note: 1 of 3 runs was not made 2 at once: times do not"]), ("4", [])]
)
def test_runs_that_were_made_otherwise_are_pointed_out(at_once, notes, events):
    write_finished(SETTINGS + CELLS, world=make_world("cpu", controller="none", at_once=4))
    shown = experiment(SETTINGS + CELLS, "--at-once", at_once, code=1)
    assert re.findall(r"note: .* times do not", shown) == notes


OVER_GLOO = 'launcher = "horovodrun"\nnp = 2\ncontroller = "gloo"'


def cycle_time(value):
    return make_environment(variables={"HOROVOD_CYCLE_TIME": value})


@pytest.mark.parametrize(
    ("cell", "recorded", "refused"),
    [
        ("", {"environment": cycle_time("0.2")}, ""),  # Horovod's own value
        ("HOROVOD_CYCLE_TIME = 0.2", {"environment": cycle_time("0.2")}, ""),
        ("HOROVOD_CYCLE_TIME = 5", {"environment": cycle_time("5")}, ""),
        ("HOROVOD_CYCLE_TIME = 1", {"environment": cycle_time("5")}, "HOROVOD_CYCLE_TIME 5. Received: 1"),
        ("", {"environment": cycle_time("5")}, "HOROVOD_CYCLE_TIME 5. Received: None"),
        (OVER_GLOO, {"world": make_world("cpu", "cpu")}, "controller mpi. Received: gloo"),
    ],
)
def test_a_run_of_other_settings_does_not_count(cell, recorded, refused):
    text = f"{SETTINGS}[[cells]]\n{cell}\n"
    write_finished(text, **recorded)
    if refused:
        experiment(text, "--dry-run", code=2, shows=f"was run with {refused} in made.toml")
    else:
        experiment(text, "--dry-run", shows="nothing is left to do: 1 run")


def test_a_run_of_another_site_is_not_used():
    text = f"{SETTINGS}[[cells]]\n"
    write_finished(text, site="cte-power")
    experiment(text, code=2, shows="was run at another site, cte-power. Received: local. Give the runs")
    experiment(text, "--site", "cte-power", "--dry-run", shows="nothing is left to do: 1 run")
    assert launch.main(["experiment", "status", "made.toml"]) == 0
    on_hosts = ["--hosts", "a:1", "--dry-run"]
    experiment(text, *on_hosts, code=2, shows="was run at another site, cte-power. Received: hosts")
    experiment(text, *on_hosts, "--runs-folder", "elsewhere", shows="1 run of 1 to do on hosts")


def test_a_dry_run_shows_commands_and_estimate_and_does_nothing(folder):
    prepare = '[[prepare]]\ncommand = ["images", "draw", "{folder}/drawn"]\nmakes = "{folder}/drawn"\n'
    text = f'{prepare}{SETTINGS}[[cells]]\n[[cells]]\nname = "gpu"\ngpus = 64\n'
    lines = experiment(text, "--dry-run", "--site", "aws-p3-2xlarge").splitlines()
    program = os.path.relpath(ROOT / "torch_impl/train.py")
    assert lines[0] == "python -m common images draw runs/made/drawn"
    assert lines[1].startswith(f"python {program} --model mlp --dataset synthetic:600x8x8x1x3 ")
    # There are enough on that site, on as many nodes as needed.
    assert lines[2].endswith("--name gpu-torch-mlp-np1-r1 --site aws-p3-2xlarge")
    assert re.fullmatch(
        r"2 runs of 2 to do on aws-p3-2xlarge: about 24\.0 s \(roughly, within a factor of 3\); .*; \$0\.\d\d",
        lines[-1],
    )
    experiment(text, "--dry-run", shows="left out: gpu-torch-mlp-np1, needs 64 GPUs, there are 0\n")
    assert [path.name for path in folder.iterdir()] == ["made.toml"]


def test_what_needs_more_than_there_is_is_left_out():
    cores = f"{SETTINGS}[[cells]]\ncores = 2\n"
    at_once = ["--dry-run", "--at-once", "2"]
    assert "left out" not in experiment(cores, *at_once)
    experiment(cores, *at_once, "--cores-per-run", "1", shows="left out: torch-mlp-np1, needs 2 cores, there are 1")
    slots = SETTINGS.replace('launcher = "python"', "np = [2, 3]") + "[[cells]]\n"
    shown = experiment(slots, "--hosts", "a:1,b:1", "--dry-run")
    assert "horovodrun -np 2 -H a:1,b:1" in shown and "--site hosts" in shown
    assert "left out: torch-mlp-np3, needs 3 slots, there are 2" in shown


@pytest.mark.parametrize(("repeats", "is_whole"), [(4, True), (3, True), (2, False), (1, False)])
def test_a_part_has_all_runs_of_a_repeat_or_parts_take_turns(repeats, is_whole):
    """Each may be made on another node: what is compared is not."""
    cells = '[[cells]]\nframework = ["torch", "keras"]\nmodel = ["mlp", "simplecnn"]\n'
    text = f"[experiment]\nrepeats = {repeats}\n{SETTINGS}{cells}"
    parts = {}
    for part in "123":
        shown = experiment(text, "--dry-run", "--at-once", "3", "--part", part)
        runs = re.findall(r"--name (\S+)-r(\d)$", shown, re.MULTILINE)
        parts |= dict.fromkeys(runs, part)
    assert len(parts) == 4 * repeats
    of_repeats = [{part for (_, of_run), part in parts.items() if of_run == str(one + 1)} for one in range(repeats)]
    assert all(len(of_repeat) == 1 for of_repeat in of_repeats) == is_whole
    if not is_whole:
        runs_of_parts = [list(parts.values()).count(part) for part in "123"]
        assert max(runs_of_parts) - min(runs_of_parts) <= 1
        names = {name for name, _ in parts}
        assert all(len({parts[name, str(one + 1)] for one in range(repeats)}) == repeats for name in names)


def test_the_parts_of_an_experiment_are_all_of_its_runs():
    text = f"[experiment]\nrepeats = 6\n{SETTINGS}[[cells]]\n"
    repeats = []
    for part in "1234":
        shown = experiment(text, "--dry-run", "--at-once", "4", "--part", part)
        repeats.append(re.findall(r"--name torch-mlp-np1-r(\d)$", shown, re.MULTILINE))
    assert repeats == [["1", "5"], ["2", "6"], ["3"], ["4"]]
