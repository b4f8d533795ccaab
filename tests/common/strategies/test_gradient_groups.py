"""`--gradient-groups auto`: the choice by times that are known, the same on ranks of unequal speed."""

from dataclasses import replace

import pytest
from builders import make_config, make_task
from fake_ranks import alone, run_ranks
from jobs import Job, do_job, start_of
from played_run import Played

from common.measurement.metrics import Sums
from common.run.measured import Measured
from common.run_folder.checkpoints import Checkpoint, save_checkpoint
from common.run_folder.records import write_record
from common.run_folder.sharing import MeasuredGroups, with_measured
from common.strategies.balance import prepare_on_all_ranks
from common.strategies.gradient_groups import choose, measure_groups
from common.task.task import Task

AUTO = {"gradient_groups": "auto"}
# Seconds of an update on each rank: the first waits least for 4 groups, but the second rank is slowest with them.
SECONDS = [
    {"one": 1.0, "2": 0.9, "4": 0.5, "each": 1.1},
    {"one": 1.0, "2": 0.8, "4": 1.2, "each": 1.3},
]


class Timed:
    """Takes a known time for each update, and a long one for the first of a block."""

    def __init__(self, task, seconds):
        self.task, self.seconds_of_update, self.blocks = task, seconds, 0

    def train(self, updates):
        self.blocks += 1
        waiting = 100.0 if self.blocks % 2 else 0.0
        return Measured(sums=Sums(0.0, 0, updates), seconds=waiting + updates * self.seconds_of_update)


@pytest.mark.parametrize(
    ("times", "chosen"),
    [
        ({"one": [10.0] * 3, "2": [9.9] * 3, "4": [9.81] * 3, "each": [12.0] * 3}, "one"),  # less than 2 %
        ({"one": [10.0] * 3, "2": [9.9] * 3, "4": [9.7] * 3, "each": [12.0] * 3}, "4"),
        ({"one": [10.0] * 3, "2": [9.0] * 3, "4": [9.7] * 3, "each": [8.0] * 3}, "each"),
        ({"one": [10.0, 20.0, 10.0], "2": [5.0, 5.0, 10.5], "4": [9.0, 9.5, 9.0], "each": [11.0] * 3}, "4"),
    ],
)
def test_one_group_stays_unless_another_number_is_faster_by_more_than_the_noise(times, chosen):
    assert choose(times) == chosen


@pytest.mark.parametrize("batch_size", [30, 60])  # 2 updates in an epoch, and a single one
def test_ranks_of_unequal_speed_agree_by_the_time_of_the_slowest(tmp_path, batch_size):
    config = make_config(tmp_path, device=AUTO, training={"batch_size": batch_size})

    def work(comm):
        def build(task, **_):
            assert task.groups
            assert task.measured_config.device.gradient_groups == task.groups.chosen
            return Timed(task, SECONDS[comm.rank][task.groups.chosen])

        return prepare_on_all_ranks(config, comm=comm, device="cpu", build=build)

    setups = run_ranks(2, work)
    assert all(isinstance(task, Task) and task.config == config for task in setups), setups
    assert setups[0].groups == setups[1].groups
    measured = setups[0].groups
    assert measured and measured.chosen == "2"
    assert measured.milliseconds == pytest.approx({"one": 1000, "2": 900, "4": 1200, "each": 1300})


@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_a_run_keeps_what_it_measured_and_one_that_is_set_aside_does_not(tmp_path, has_checkpoint):
    config = make_config(tmp_path, device=AUTO, record={"resume_or_start": True}, training={"batch_size": 30})
    played = Played(config, alone())
    write_record(tmp_path / "run", replace(played.run.recorder._writer.record, groups=MeasuredGroups(chosen="each")))
    if has_checkpoint:
        save_checkpoint(tmp_path / "run", Checkpoint(0, 0, played.strategy.own_weights, {}))

    def work(comm):
        def build(task, **_):
            return Timed(task, SECONDS[comm.rank][task.groups.chosen])

        return prepare_on_all_ranks(config, comm=comm, device="cpu", build=build).groups.chosen

    assert run_ranks(2, work) == ["each" if has_checkpoint else "2"] * 2


@pytest.mark.parametrize("settings", [{"device": AUTO}, {"balance": {"shares": "auto"}}])
def test_nothing_is_measured_where_nothing_is_trained(settings, tmp_path):
    config = make_config(tmp_path, training={"epochs": 0, "batch_size": 30}, **settings)

    def work(comm):
        task = prepare_on_all_ranks(config, comm=comm, device="cpu", build=lambda *_, **__: pytest.fail("built"))
        return task.measured_config.device.gradient_groups, task.samples_of_ranks

    assert run_ranks(2, work) == [("one", (30, 30))] * 2


def test_one_rank_measures_nothing_and_a_repetition_has_the_choice_in_place_of_auto(tmp_path):
    config = make_config(tmp_path, device=AUTO)
    task = make_task(config)
    assert measure_groups(task, comm=alone(), build=lambda task: pytest.fail("built")) == MeasuredGroups(chosen="one")
    repeated = with_measured(config, MeasuredGroups(chosen="4"))
    assert (repeated.device.gradient_groups, repeated.device.groups) == ("4", 4)
    assert replace(repeated, device=config.device) == config and with_measured(config, None) == config


@pytest.mark.ranks
@pytest.mark.ci
def test_of_the_models_that_were_measured_none_is_left(framework, tmp_path):
    """They would stay in the memory of a GPU beside the model that is trained."""
    job = Job("measure", (framework,), program="trial_models_worker:run")
    outcomes = do_job(job, start=start_of(framework, launcher="mpirun2", arguments=()), folder=tmp_path)
    assert [outcome.value for outcome in outcomes] == [0, 0]
