"""Fits find planted efficiencies, and predict what was left out; studies from runs and as files."""

import json
from dataclasses import asdict, astuple, replace
from pathlib import Path

import numpy as np
import pytest
from analysis_builders import made_record, select
from made_steps import MACHINE, PEAKS, PLANTED, made_steps

from analysis.projection import recorded
from analysis.projection.fitting import Steps, fitted, held_out
from analysis.projection.measured import MeasuredStep, measured_steps
from analysis.projection.peaks import Peaks, measured_peaks
from analysis.projection.study import STUDY_FILE, read_study, study_of, write_study
from analysis.runs.table import FIGURES, LoadedRun
from common.errors import UserError
from common.run_folder.records import ModelRecord, NotRecorded

MOST_BYTES = 40_000

# Fits


def test_planted_efficiencies_are_found_and_only_products_with_peaks_are_known():
    found = fitted(made_steps(), PEAKS)
    for name in ("compute", "dense", "half", "step_seconds", "thread_seconds", "byte_seconds"):
        assert getattr(found, name) == pytest.approx(getattr(PLANTED, name), rel=0.15), name
    steps = Steps(made_steps(), PEAKS)
    assert steps.seconds(found) == pytest.approx(steps.measured, rel=0.02)
    twice = {
        threads: replace(one, flops_per_second=2 * one.flops_per_second, bytes_per_second=2 * one.bytes_per_second)
        for threads, one in PEAKS.items()
    }
    halved = fitted(made_steps(), twice)
    assert halved.compute == pytest.approx(found.compute / 2, rel=0.05)
    assert halved.step_seconds == pytest.approx(found.step_seconds, rel=0.05)


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
    alone = [step for step in steps if getattr(step, by) == value]
    assert held_out(alone, PEAKS, by=by) == {}, "one value leaves nothing to fit to"


def test_ranks_of_a_machine_share_its_peaks_and_exchange_gradients():
    last = made_steps()[-3]

    def seconds(**changes):
        step = MeasuredStep(**{**vars(last), "threads": 1, "ranks": 1, **changes})
        return float(Steps([step], shared).seconds(PLANTED)[0])

    one = Peaks(device="", threads=1, flops_per_second=1e11, bytes_per_second=3e10)
    shared = {1: one, 2: replace(one, threads=2)}  # a second thread brings nothing
    overhead = PLANTED.step_seconds + PLANTED.operation_seconds * len(last.operations())
    exchange = 2 * PLANTED.latency_seconds + 4 * last.spec.parameters * PLANTED.byte_seconds
    assert seconds(ranks=2) == pytest.approx(2 * (seconds() - overhead) + overhead + exchange)


def test_steps_of_nothing_but_overhead_still_say_the_least():
    steps = made_steps(planted=replace(PLANTED, step_seconds=10.0))
    fit = study_of(steps, machine=MACHINE, date="2026-01-01", packages={}, peaks=list(PEAKS.values())).fits["torch"]
    assert 0 < fit.lowest < fit.highest < 1


# From runs


def run_of(seconds, *, seed=1, **settings):
    """Return a run with these training seconds of epochs of 10 steps."""
    figures = np.full((len(seconds), len(FIGURES)), np.nan)
    figures[:, FIGURES.index("training_seconds")] = seconds
    figures[:, FIGURES.index("steps")] = 10
    record = made_record(seconds=sum(seconds), epochs=len(seconds), seed=seed, devices="cpu", **settings)
    return LoadedRun(Path(f"run-{seed}"), record, "finished", figures)


def test_the_time_of_a_step_is_that_of_the_fastest_epoch_of_any_run():
    found, unused = measured_steps(select([run_of([5.0, 1.0, 2.0]), run_of([3.0, 4.0, 6.0], seed=2)]))
    assert unused == [] and list(found) == ["example, 2 cores"]
    (step,) = found["example, 2 cores"]
    assert step.seconds == (0.1, 0.3) and step.undisturbed == 0.1
    assert (step.model, step.image, step.outputs, step.threads, step.ranks) == ("mlp", (1, 28, 28), 10, 1, 1)


def test_the_peaks_are_measured_on_the_machine_of_the_runs(monkeypatch):
    measured = []

    def measure(device, *, threads):
        measured.append((device, threads))
        return Peaks(device=device, threads=threads, flops_per_second=1e11, bytes_per_second=1e10)

    monkeypatch.setattr(recorded, "measured_peaks", measure)
    monkeypatch.setattr(recorded, "this_machine", lambda: "example, 2 cores")
    other = {"model": ModelRecord(name="dense500", outputs=10, parameters=1, multiply_adds_per_image=1)}
    runs = [run_of([1.0]), run_of([1.0], seed=2, ranks=2, global_batch=128, **other)]
    imported = run_of([1.0], seed=3, environment=NotRecorded("not in the source"))
    found, unused = recorded.study_of_runs(select([imported, *runs]))
    assert len(unused) == 1 and "machine are not recorded" in unused[0]
    assert measured == [("example, 2 cores", 1), ("example, 2 cores", 2)]
    assert (found.machine, found.runs, [one.threads for one in found.peaks]) == ("example, 2 cores", 2, [1, 2])
    with pytest.raises(UserError, match=r"left out of it. Received: torch with mlp alone. Name runs of two models"):
        recorded.study_of_runs(select(runs[:1]))


@pytest.mark.ci
def test_peaks_are_measured_in_a_process_with_one_thread_for_each_product():
    found = measured_peaks("this", threads=1)
    assert found.device == "this" and 1e9 < found.flops_per_second < 1e14 and 1e8 < found.bytes_per_second < 1e13


# Files


def test_a_study_is_read_as_it_was_written_and_anything_else_is_refused_in_one_line(tmp_path, study):
    write_study(study, tmp_path / "folder" / "study.json")
    assert read_study(tmp_path / "folder" / "study.json") == study
    (tmp_path / "other.json").write_text("{}")
    for name, message in (("none", r"^cannot read the study.*$"), ("other", r"^.* is not a study of steps: .*$")):
        with pytest.raises(UserError, match=message):
            read_study(tmp_path / f"{name}.json")


def test_the_shipped_study_is_small_neutral_and_what_its_steps_give():
    text, study = STUDY_FILE.read_text(), read_study()
    assert len(text) < MOST_BYTES and "/" not in text.replace("+cpu", "") and MACHINE not in text
    assert study.machine == "AMD EPYC, 2 cores" and set(study.fits) == {"torch", "keras"}
    again = study_of(study.steps, machine=study.machine, date=study.date, packages=study.packages, peaks=study.peaks)
    for framework, fit in study.fits.items():
        expected, found = (json.loads(json.dumps(asdict(one))) for one in (fit, again.fits[framework]))
        assert found.pop("efficiencies") == pytest.approx(expected.pop("efficiencies"), rel=0.02)
        assert found.pop("errors") == pytest.approx(expected.pop("errors"), rel=0.02)
        assert found == pytest.approx(expected, rel=0.02)
