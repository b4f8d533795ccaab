"""Builders of what the commands of `analysis` work on and find: runs with chosen times and accuracies, findings."""

from pathlib import Path

import numpy as np
from builders import make_config, make_record, make_status

from analysis.output.finding import Finding
from analysis.runs import table
from analysis.runs.table import FIGURES, LoadedRun
from common.config import config_from_dict
from common.run_folder.records import DataRecord, Hashes, ModelRecord, NotRecorded, Totals, World, now

IMAGES = 6400  # of an epoch
PARAMETERS = 1_000_000


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
    classes=10,
    steps=None,
    strategy=None,
    balance=None,
    parts=None,
    device=None,
    **changes,
):
    """Return the record of a finished run on `ranks` GPUs by default.

    Args:
        size: width and height.
        steps: of all epochs; None: as many as the samples make.
        samples: of training and of validation.
        strategy, balance, parts, device: settings of these subjects.
        changes: further fields of the record.
    """
    data = DataRecord(
        name="made", training_samples=samples[0], validation_samples=samples[1], test_samples=100,
        dropped_samples_per_epoch=0, global_batch_size=global_batch, steps_per_epoch=samples[0] // global_batch,
        image_shape=(size[1], size[0], 1), class_names=[str(number) for number in range(classes)], mean=[0.5],
        standard_deviation=[0.5],
    )  # fmt: skip
    totals = Totals(
        epochs=epochs, steps=epochs * data.steps_per_epoch if steps is None else steps, startup_seconds=1.0,
        training_seconds=seconds, validation_seconds=validation, test_seconds=test, test_loss=1.0,
        test_accuracy=accuracy, images_per_second=epochs * samples[0] / (seconds or 1.0),
    )  # fmt: skip
    world = World(
        size=ranks, local_size=ranks, hosts=["a"], controller="mpi" if ranks > 1 else "none", threads_per_rank=threads,
        cores=64, oversubscribed=False, devices=[devices] * ranks,
    )  # fmt: skip
    settings = {"training": {"seed": seed, "epochs": epochs}, "strategy": strategy or {}, "balance": balance or {}}
    settings |= {"parts": parts or {}, "device": device or {}}
    values = {
        "config": config_from_dict(settings, base=make_config(Path("runs"))),
        "world": world,
        "data": data,
        "model": ModelRecord(name="mlp", outputs=classes, parameters=PARAMETERS, multiply_adds_per_image=1),
        "hashes": Hashes(initial_weights=f"w{seed}", sample_order=f"o{seed}"),
        "status": make_status(state="finished", ended_at=now()),
        "totals": totals,
    }
    return make_record(**{**values, **changes})


def made_run(name, *, curve=(), **settings):
    """Return a run; `curve`: its validation accuracy after each epoch."""
    figures = np.full((settings.get("epochs", 2), len(FIGURES)), np.nan)
    if len(curve):
        figures = np.full((len(curve), len(FIGURES)), np.nan)
        figures[:, FIGURES.index("validation_accuracy")] = curve
        settings["epochs"] = len(curve)
    record = made_record(**settings)
    state = "finished" if isinstance(record.status, NotRecorded) else record.status.state
    return LoadedRun(Path(name), record, state, figures)


def made_runs(name, *, seconds, accuracies=(), **settings):
    """Return runs of seeds 1, 2, 3, ... with these training seconds."""
    results = accuracies or [0.9 + 0.0001 * number for number in range(len(seconds))]
    return [
        made_run(f"{name}-r{seed}", seconds=one, accuracy=accuracy, seed=seed, **settings)
        for seed, (one, accuracy) in enumerate(zip(seconds, results, strict=True), start=1)
    ]


def select(*groups):
    """Return what a command works on."""
    return table.select([run for group in groups for run in group])


def rows_of(finding, title):
    """Return the rows of the table whose title begins so, by heading."""
    table = next(table for table in finding.tables if table.title.startswith(title))
    return [dict(zip(table.headings, row, strict=True)) for row in table.rows]


def found(*, tables=(), plots=(), **changes):
    values = {"name": "example", "question": "Why?", "answer": "Because.", "tables": tables}
    return Finding(**{**values, "plots": plots, **changes})


EVIL = "<script>alert(1)</script>\"&'"
