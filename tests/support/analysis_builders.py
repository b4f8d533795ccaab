"""Builders of what the commands of `analysis` work on and find: runs with chosen times and accuracies, findings."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from builders import (
    SAMPLE,
    finished_record,
    finished_run,
    make_environment,
    study_runs,
    write_finished_run,
)

from analysis.output.finding import Finding
from analysis.output.tables import Table
from analysis.report.page import Chapter, Page, html_of
from analysis.runs import table
from analysis.runs.table import FIGURES, LoadedRun
from common.run_folder.records import RUN_FILE, Hashes, ModelRecord, NotRecorded
from common.run_folder.search_record import SearchRecord, TrialRecord, write_search

IMAGES = 6400  # of an epoch
PARAMETERS = 1_000_000
OF_CONFIG = ("strategy", "balance", "parts", "device", "optimizer", "schedule")


def made_record(
    *,
    seconds,
    ranks=1,
    global_batch=64,
    accuracy=0.9,
    seed=1,
    validation=0.0,
    test=0.0,
    epochs=2,
    size=(28, 28),
    samples=(IMAGES, 0),
    devices="cuda:0",
    threads=1,
    at_once=1,
    classes=10,
    steps=None,
    **changes,
):
    """Return the record of a finished run on `ranks` GPUs by default.

    Args:
        size: width and height.
        steps: of all epochs; None: as many as the samples make.
        samples: of training and of validation.
        changes: further fields of the record; those of `OF_CONFIG`: settings of these subjects.
    """
    steps_per_epoch = samples[0] // global_batch
    settings = {subject: changes.pop(subject, None) or {} for subject in OF_CONFIG}
    settings["training"] = {"epochs": epochs}
    data = replace(
        SAMPLE.record.data, name="made", training_samples=samples[0], validation_samples=samples[1], test_samples=100,
        global_batch_size=global_batch, steps_per_epoch=steps_per_epoch, image_shape=(size[1], size[0], 1),
        class_names=[str(number) for number in range(classes)],
    )  # fmt: skip
    values = {
        "environment": make_environment(),
        "world": {
            "hosts": ["a"], "threads_per_rank": threads, "cores": 64, "devices": [devices] * ranks, "at_once": at_once,
        },
        "data": data,
        "model": ModelRecord(name="mlp", outputs=classes, parameters=PARAMETERS, multiply_adds_per_image=1),
        "hashes": Hashes(initial_weights=f"w{seed}", sample_order=f"o{seed}"),
        "totals": {
            "steps": epochs * steps_per_epoch if steps is None else steps, "startup_seconds": 1.0,
            "validation_seconds": validation, "test_seconds": test, "test_loss": 1.0, "first_epoch_seconds": None,
            "images_per_second": epochs * samples[0] / (seconds or 1.0),
        },
        "isolation": None,
    }  # fmt: skip
    of_run = {"np": ranks, "seed": seed, "seconds": seconds, "accuracy": accuracy, "settings": settings}
    return finished_record(**of_run, **{**values, **changes})


def made_run(name, *, curve=(), **settings):
    """Return a run; `curve`: its validation accuracy after each epoch, all of which take as long."""
    epochs = settings["epochs"] = len(curve) or settings.get("epochs", 2)
    record = made_record(**settings)
    figures = np.full((epochs, len(FIGURES)), np.nan)
    if len(curve):
        columns = {"training_loss": 1.0, "validation_accuracy": curve, "training_seconds": settings["seconds"] / epochs}
        columns["steps"] = np.nan if isinstance(record.totals, NotRecorded) else record.totals.steps / epochs
        for column, values in columns.items():
            figures[:, FIGURES.index(column)] = values
    state = "finished" if isinstance(record.status, NotRecorded) else record.status.state
    return LoadedRun(Path(name), record, state, figures)


def made_runs(name, *, seconds, first=1, accuracy=0.9, accuracies=(), **settings):
    """Return runs of the seeds from `first` on with these training seconds."""
    results = accuracies or [accuracy + 0.0001 * number for number in range(len(seconds))]
    return [
        made_run(f"{name}-r{seed}", seconds=one, accuracy=of_run, seed=seed, **settings)
        for seed, (one, of_run) in enumerate(zip(seconds, results, strict=True), start=first)
    ]


SPREAD = (1.0, 1.01, 0.99, 1.005, 0.995, 1.002, 0.998)  # of seven runs, whose median is 1


def spread_runs(name, seconds, *, spread=SPREAD, experiment="", **settings):
    """Return a run for each factor of `spread`, which takes so many times these seconds; or the seconds of a list.

    `experiment`: the folder of their folders.
    """
    times = seconds if isinstance(seconds, list) else [seconds * factor for factor in spread]
    return made_runs(f"{experiment}/{name}" if experiment else name, seconds=times, **settings)


def study(name="run", *, seconds=(5.0,), **changes):
    """Return what `write_study` writes and `load_runs` reads, in no folder."""
    return [
        LoadedRun(Path(folder), record, record.status.state, table.figures_of(epochs))
        for folder, one in study_runs(name=name, seconds=seconds, **changes).items()
        for record, epochs in [finished_run(Path(folder), **one)]
    ]


def select(*groups):
    """Return what a command works on."""
    return table.select([run for group in groups for run in group])


def write_described(folder, *, record=None, **changes):
    """Write a finished run and return its folder; `record`: what else its run.json holds."""
    file = write_finished_run(folder, **changes) / RUN_FILE
    file.write_text(json.dumps(_merged(json.loads(file.read_text()), record or {})))
    return folder


def _merged(old, new):
    if not isinstance(old, dict) or not isinstance(new, dict) or "not_recorded" in new:
        return new
    return old | {name: _merged(old.get(name), value) for name, value in new.items()}


def rows_of(found, title=None):
    """Return the rows by heading: of a table, or of the table of a finding whose title begins so, or of this number."""
    if isinstance(title, str):
        found = next(table for table in found.tables if table.title.startswith(title))
    elif title is not None:
        found = found.tables[title]
    return [dict(zip(found.headings, row, strict=True)) for row in found.rows]


def said(found):
    """Return the answer, the flags and the notes, as a terminal shows them."""
    flags = [f"flag: {flag}" for flag in found.flags]
    notes = [f"note: {note}" for note in found.notes]
    return "\n".join([found.answer, *flags, *notes])


def plot_of(found, name):
    return next(plot for plot in found.plots if plot.name == name)


def found(*, tables=(), plots=(), **changes):
    values = {"name": "example", "question": "Why?", "answer": "Because.", "tables": tables}
    return Finding(**{**values, "plots": plots, **changes})


def html_with(*findings, first_plots=(), **changes):
    chapters = [Chapter.of(finding, command=finding.name, first_plots=first_plots) for finding in findings]
    none = Table("", ["folder, and why"], [], {})
    return html_of(Page(**{"title": "A page", "facts": {}, "chapters": chapters, "left_out": none, **changes}))


EVIL = "<script>alert(1)</script>\"&'"


# Searches that have ended

SPACE = {
    "learning_rate": {
        "name": "FloatDistribution",
        "attributes": {"low": 0.001, "high": 0.1, "log": True, "step": None},
    },
    "momentum": {"name": "CategoricalDistribution", "attributes": {"choices": [0.0, 0.5]}},
}


def rate_of(point):
    return 0.001 * 10 ** (point / 10)


def made_trial(framework, point, *, score, **changes):
    values = {
        "framework": framework, "number": point, "point": point, "state": "finished", "run": f"{framework}-t{point}",
        "params": {"learning_rate": rate_of(point), "momentum": 0.5 * (point % 2)}, "score": score, "seconds": 10.0,
        "ended_at": f"2026-01-01T00:{point:02}:00.000+00:00", "worker": 1,
    }  # fmt: skip
    return TrialRecord(**{**values, **changes})


def made_search(trials, **changes):
    values = {
        "title": "made", "sampler": "random", "pruner": "none", "metric": "last_validation_accuracy", "seed": 1,
        "drawn_once": True, "trials_each": 12, "space": SPACE, "trials": trials,
    }  # fmt: skip
    return SearchRecord(**{**values, **changes})


def write_searched(folder, record):
    """Write a search with the run folders of its trials; return its folder."""
    for trial in record.trials:
        if trial.run:
            optimizer = {"learning_rate": trial.params["learning_rate"], "momentum": trial.params["momentum"]}
            write_finished_run(
                folder / trial.run,
                framework=trial.framework,
                settings={"optimizer": optimizer, "device": {"compression": "fp16", "threads": 2}},
                accuracies=[0.1, 0.2, trial.score],
            )
    write_search(folder, record)
    return folder
