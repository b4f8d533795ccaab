"""The fit finds planted efficiencies, and predicts what was left out of it."""

from dataclasses import astuple, replace

import numpy as np
import pytest
from made_steps import PEAKS, PLANTED, made_steps

from analysis.projection.fitting import Steps, fitted, held_out
from analysis.projection.measured import MeasuredStep
from analysis.projection.peaks import Peaks


def test_planted_efficiencies_are_found():
    found = fitted(made_steps(), PEAKS)
    for name in ("compute", "dense", "half", "step_seconds", "thread_seconds", "byte_seconds"):
        assert getattr(found, name) == pytest.approx(getattr(PLANTED, name), rel=0.15), name
    steps = Steps(made_steps(), PEAKS)
    assert steps.seconds(found) == pytest.approx(steps.measured, rel=0.02)


def test_only_products_of_efficiencies_and_peaks_are_found():
    twice = {
        threads: Peaks(device="", threads=threads, flops_per_second=2e11 * threads, bytes_per_second=6e10)
        for threads in PEAKS
    }
    once, halved = fitted(made_steps(), PEAKS), fitted(made_steps(), twice)
    assert halved.compute == pytest.approx(once.compute / 2, rel=0.05)
    assert halved.step_seconds == pytest.approx(once.step_seconds, rel=0.05)


def test_a_disturbed_step_hardly_changes_the_fit():
    steps = made_steps()
    disturbed = [replace(steps[0], seconds=(20 * steps[0].undisturbed,)), *steps[1:]]
    logs = [np.log(astuple(fitted(of_fit, PEAKS))) for of_fit in (steps, disturbed)]
    assert np.exp(np.abs(logs[1] - logs[0])[0]) < 1.1  # compute
    rest = Steps(steps[1:], PEAKS)
    assert rest.seconds(fitted(disturbed, PEAKS)) == pytest.approx(rest.measured, rel=0.15)


@pytest.mark.parametrize("by", ["model", "batch"])
def test_what_is_left_out_is_predicted_and_takes_no_part(by):
    steps = made_steps()
    found = held_out(steps, PEAKS, by=by)
    assert list(found) != [] and set(found) == set(steps)
    assert all(projected == pytest.approx(measured, rel=0.2) for measured, projected in found.values())
    value = getattr(steps[0], by)
    wrong = [replace(step, seconds=(9 * step.undisturbed,)) if getattr(step, by) == value else step for step in steps]
    again = held_out(wrong, PEAKS, by=by)
    for old, new in zip(steps, wrong, strict=True):
        if getattr(old, by) == value:
            assert again[new][1] == pytest.approx(found[old][1])


def test_one_value_leaves_nothing_to_fit_to():
    assert held_out([step for step in made_steps() if step.model == "mlp"], PEAKS, by="model") == {}


def test_ranks_of_a_machine_share_its_peaks_and_exchange_gradients():
    def seconds(**changes):
        step = MeasuredStep(**{**vars(made_steps()[-3]), "threads": 1, "ranks": 1, **changes})
        return float(Steps([step], shared).seconds(PLANTED)[0])

    one = Peaks(device="", threads=1, flops_per_second=1e11, bytes_per_second=3e10)
    shared = {1: one, 2: replace(one, threads=2)}  # a second thread brings nothing
    parameters = made_steps()[-3].spec.parameters
    overhead = PLANTED.step_seconds + PLANTED.operation_seconds * len(made_steps()[-3].operations())
    exchange = 2 * PLANTED.latency_seconds + 4 * parameters * PLANTED.byte_seconds
    assert seconds(ranks=2) == pytest.approx(2 * (seconds() - overhead) + overhead + exchange)
