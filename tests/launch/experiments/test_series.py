"""The order of runs in lanes, budget and failures, with runs that only say when they are made."""

from pathlib import Path

import pytest
from builders import make_record, make_status

from common.run_folder.records import RunWriter, World
from common.sites.table import read_sites
from launch.experiments import series
from launch.experiments.plan import read_plan
from launch.experiments.report import Estimator
from launch.experiments.survey import SurveyedRun
from launch.starting import lanes
from launch.starting.lanes import WHOLE_HOST, Lane

PLAN = """
[experiment]
repeats = 2
metered = [2]

[settings]
framework = "torch"
model = "mlp"
dataset = "synthetic:600x8x8x1x3"
epochs = 1

"""
CELLS = '[[cells]]\nname = "{}"\n'
ALL = PLAN + "".join(map(CELLS.format, "abc"))
TWO = [Lane(1, 2, (0,)), Lane(2, 2, (1,))]
A, B, C = (f"{name}-torch-mlp-np1-r1" for name in "abc")
METERED = [f"{name}-torch-mlp-np1-r2" for name in "abc"]


@pytest.fixture
def made(tmp_path, monkeypatch):
    """What happens, with runs of one step; cell c fails, and cell b takes nine."""
    events = []

    def make_run(plan, planned, *, lane, advance):
        events.append(f"{planned.name} in {lane.number} of {lane.of}")
        for _ in range(9 if planned.name.startswith("b") else 1):
            yield
        advance(1.0, planned.name)
        events.append(f"{planned.name} ends")
        return SurveyedRun(planned, "failed" if planned.name == C else "finished", reason="of the test")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(series, "make_run", make_run)
    monkeypatch.setattr(series, "outcome", lambda ended: ended.state)
    monkeypatch.setattr(lanes, "POLL_SECONDS", 0.001)
    return events


def estimator(text=ALL):
    Path("made.toml").write_text(text)
    plan = read_plan("made.toml", runs_folder=Path("runs"))
    plan.folder.mkdir(parents=True, exist_ok=True)
    return Estimator(plan, read_sites(), "local")


def test_runs_are_made_side_by_side_and_metered_ones_alone_after_them(made, capsys):
    assert not series.make_missing(estimator(), TWO)
    assert made == [
        f"{A} in 1 of 2", f"{B} in 2 of 2", f"{A} ends", f"{C} in 1 of 2", f"{C} ends", f"{B} ends",
        *(event for name in METERED for event in (f"{name} in 1 of 1", f"{name} ends")),
    ]  # fmt: skip
    shown = capsys.readouterr().out
    assert f"1/6 {A}: finished; about " in shown and f"2/6 {C}: failed; about " in shown
    assert f"6/6 {METERED[2]}: finished; about 0.0 s left" in shown
    assert "1 run failed; the same command runs what is missing once more" in shown


def test_in_one_lane_runs_follow_each_other_in_the_order_of_the_plan(made, tmp_path):
    assert series.make_missing(estimator(PLAN + CELLS.format("a") + CELLS.format("b")), [WHOLE_HOST])
    assert [event.split()[0] for event in made[::2]] == [A, B, METERED[0], METERED[1]]


def test_a_task_of_an_array_notes_what_it_has_finished(made, tmp_path):
    note = tmp_path / "note"
    only_c = estimator(PLAN.replace("metered = [2]", "").replace("repeats = 2", "") + CELLS.format("c"))
    assert not series.make_missing(only_c, [Lane(number=1, of=2)], note=note)
    assert made[0] == f"{C} in 1 of 2" and not note.exists()
    series.make_missing(estimator(), [Lane(number=1, of=2)], note=note)
    assert note.exists() and f"{METERED[0]} in 1 of 2" in made


@pytest.mark.parametrize("count", [1, 2])
def test_a_spent_budget_starts_nothing_more(count, made, capsys):
    poor = estimator(ALL.replace("repeats = 2", "repeats = 2\nbudget_minutes = 0.0001"))
    assert not series.make_missing(poor, TWO[:count])
    assert made == []
    assert capsys.readouterr().out.count("the budget of 0.0001 minutes is spent: 6 runs not started") == 1


def test_runs_that_were_made_otherwise_are_pointed_out(made, capsys):
    one = estimator()
    planned = one.plan.runs[0]
    values = {"size": 1, "local_size": 1, "hosts": ["a"], "controller": "none", "threads_per_rank": 1,
                              "cores": 1, "oversubscribed": False, "devices": ["cpu"]}  # fmt: skip
    record = make_record(config=planned.config, status=make_status(), world=World(**values, at_once=4))
    RunWriter.create(one.plan.folder / planned.name, record).end("finished")
    series.make_missing(one, TWO)
    assert "note: 1 of 6 runs was not made 2 at once: times do not" in capsys.readouterr().out
    series.make_missing(one, [Lane(number=1, of=4)])
    assert "note" not in capsys.readouterr().out
