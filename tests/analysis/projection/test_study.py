"""Studies from runs and as files; the project's own is what its steps give."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from analysis_builders import made_record, select
from builders import make_environment
from made_steps import MACHINE, PEAKS, PLANTED, made_steps

from analysis.projection import peaks, recorded
from analysis.projection.measured import measured_steps
from analysis.projection.study import STUDY_FILE, read_study, study_of, write_study
from analysis.runs.table import FIGURES, LoadedRun
from common.errors import UserError
from common.run_folder.records import ModelRecord

MOST_BYTES = 40_000


def run_of(seconds, *, steps=10, seed=1, **settings):
    """Return a run with these training seconds of epochs."""
    figures = np.full((len(seconds), len(FIGURES)), np.nan)
    figures[:, FIGURES.index("training_seconds")] = seconds
    figures[:, FIGURES.index("steps")] = steps
    record = made_record(seconds=sum(seconds), devices="cpu", epochs=len(seconds), seed=seed, **settings)
    return LoadedRun(Path(f"run-{seed}"), record, "finished", figures)


def test_the_time_of_a_step_is_that_of_the_fastest_epoch_of_any_run():
    found, unused = measured_steps(select([run_of([5.0, 1.0, 2.0]), run_of([3.0, 4.0, 6.0], seed=2)]))
    assert unused == [] and list(found) == ["example, 2 cores"]
    (step,) = found["example, 2 cores"]
    assert step.seconds == (0.1, 0.3) and step.undisturbed == 0.1
    assert (step.model, step.image, step.outputs, step.threads, step.ranks) == ("mlp", (1, 28, 28), 10, 1, 1)


def test_runs_that_say_nothing_about_float32_on_a_cpu_are_named():
    gpu = LoadedRun(Path("gpu"), made_record(seconds=1.0), "finished", np.full((2, len(FIGURES)), np.nan))
    found, unused = measured_steps(select([gpu]))
    assert found == {} and unused == ["PyTorch, mlp, made, np 1: not used: not on a CPU"]
    with pytest.raises(UserError, match=r"runs of one machine. Received: PyTorch, mlp, made, np 1: not used: not on a"):
        recorded.study_of_runs(select([gpu]))


def test_runs_of_two_machines_or_of_another_than_this_one_are_refused():
    other = run_of([1.0], seed=2, environment=make_environment(processor="other"))
    with pytest.raises(UserError, match=r"Received: example, 2 cores; other, 2 cores. Name runs"):
        recorded.study_of_runs(select([run_of([1.0]), other]))
    with pytest.raises(UserError, match=r"measured on it. Received: runs of example, 2 cores, on "):
        recorded.study_of_runs(select([run_of([1.0])]))


def test_the_peaks_are_measured_on_the_machine_of_the_runs(monkeypatch):
    measured = []

    def measure(device, *, threads):
        measured.append((device, threads))
        return peaks.Peaks(device=device, threads=threads, flops_per_second=1e11, bytes_per_second=1e10)

    monkeypatch.setattr(recorded, "measured_peaks", measure)
    monkeypatch.setattr(recorded, "this_machine", lambda: "example, 2 cores")
    other = {"model": ModelRecord(name="dense500", outputs=10, parameters=1, multiply_adds_per_image=1)}
    runs = [run_of([1.0]), run_of([1.0], seed=2, ranks=2, global_batch=128, **other)]
    found, _ = recorded.study_of_runs(select(runs))
    assert measured == [("example, 2 cores", 1), ("example, 2 cores", 2)]
    assert (found.machine, found.runs, [one.threads for one in found.peaks]) == ("example, 2 cores", 2, [1, 2])
    with pytest.raises(UserError, match=r"left out of it. Received: torch with mlp alone. Name runs of two models"):
        recorded.study_of_runs(select(runs[:1]))


def test_steps_of_nothing_but_overhead_still_say_the_least():
    idle = replace(PLANTED, step_seconds=10.0)
    steps = made_steps(planted=idle)
    fit = study_of(steps, machine=MACHINE, date="2026-01-01", packages={}, peaks=list(PEAKS.values())).fits["torch"]
    assert 0 < fit.lowest < fit.highest < 1


def test_peaks_are_positive_and_more_threads_are_no_slower(monkeypatch):
    monkeypatch.setattr(peaks, "_SECONDS", 0.02)
    flops, moved = peaks._measure(1)
    assert 1e8 < flops < 1e14 and 1e8 < moved < 1e13


@pytest.mark.ci
def test_peaks_are_measured_in_a_process_with_one_thread_for_each_product():
    found = peaks.measured_peaks("this", threads=1)
    assert found.device == "this" and 1e9 < found.flops_per_second < 1e14


def test_a_study_is_read_as_it_was_written(tmp_path, study):
    write_study(study, tmp_path / "folder" / "study.json")
    assert read_study(tmp_path / "folder" / "study.json") == study


@pytest.mark.parametrize(("text", "message"), [(None, "reading the study"), ("{}", "is not a study of steps: ")])
def test_a_file_that_is_no_study_is_one_line(tmp_path, text, message):
    file = tmp_path / "study.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UserError, match=message) as error:
        read_study(file)
    assert "\n" not in str(error.value)


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
