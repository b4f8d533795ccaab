"""Run folders of made studies, for the tests of `analysis`: small, finished, with the figures that a test asks for."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from example_runs import make_config, make_epoch, make_record, make_status

from common.config import Config, config_from_dict
from common.measurement.interference import Interference
from common.run_folder.records import (
    EPOCHS_FILE,
    RUN_FILE,
    DataRecord,
    Hashes,
    ModelRecord,
    RunRecord,
    Totals,
    World,
)

STARTED = "2026-11-21T08:00:{:02d}.000+00:00"


def study_record(runs_folder: Path, **changes: Any) -> RunRecord:
    """Return the record of a finished run of 3 epochs of 30 images; a field of it or of its parts may be changed.

    `seed`, `np`, `controller`, `settings` (subject -> name -> value) change the settings, `seconds` and `accuracy` the
    totals, `batch` is that of a rank, `totals` and `world` change fields of those, the rest fields of the record.
    """
    seed, np, batch = changes.pop("seed", 1), changes.pop("np", 1), changes.pop("batch", 30)
    seconds, accuracy = changes.pop("seconds", 6.0), changes.pop("accuracy", 0.9)
    settings = {"training": {"seed": seed, "batch_size": batch}}
    for subject, values in changes.pop("settings", {}).items():
        settings[subject] = settings.get(subject, {}) | values
    epochs = settings["training"].get("epochs", 3)
    totals: dict[str, Any] = {
        "epochs": epochs, "steps": 4 * epochs, "startup_seconds": 1.0, "training_seconds": seconds,
        "validation_seconds": 0.5, "test_seconds": 0.25, "test_loss": 0.5, "test_accuracy": accuracy,
        "images_per_second": 360 / seconds if seconds else None, "first_epoch_seconds": seconds / 2,
        "steady_images_per_second": None,
    }  # fmt: skip
    world: dict[str, Any] = {
        "size": np, "local_size": np, "hosts": ["node1"], "controller": changes.pop("controller", "none"),
        "threads_per_rank": 1, "cores": 4, "oversubscribed": False, "devices": ["cpu"] * np,
    }  # fmt: skip
    values: dict[str, Any] = {
        "config": config_from_dict(settings, base=make_config(runs_folder)),
        "hashes": Hashes(initial_weights=f"w{seed}", sample_order=f"o{seed}", final_weights=f"f{seed}"),
        "status": make_status(state="finished", started_at=STARTED.format(seed % 60), ended_at=STARTED.format(59)),
        "data": DataRecord(
            name="mnist", training_samples=120, validation_samples=0, test_samples=1000, dropped_samples_per_epoch=0,
            global_batch_size=np * batch, steps_per_epoch=4, image_shape=(28, 28, 1), class_names=["0", "1", "2"],
            mean=[0.5], standard_deviation=[0.5],
        ),
        "model": ModelRecord(name="cnn", outputs=3, parameters=1000, multiply_adds_per_image=10_000),
        "world": World(**{**world, **changes.pop("world", {})}),
        "totals": Totals(**{**totals, **changes.pop("totals", {})}),
        "isolation": Interference(
            load_average_before=[0.1], other_processes_before=[], throttled_cores=None, peak_memory_bytes=[1],
            peak_device_memory_bytes=[None],
        ),
    }  # fmt: skip
    return replace(make_record(), **{**values, **changes})


def write_study_run(folder: Path, *, accuracies: Sequence[float | None] | None = None, **changes: Any) -> Path:
    """Write the run folder of `study_record` and return it; `accuracies` are those of validation, an epoch each."""
    record = study_record(folder.parent, **changes)
    assert isinstance(record.totals, Totals)
    seconds = record.totals.training_seconds
    assert isinstance(seconds, float)
    assert isinstance(record.config, Config)
    of_epochs = accuracies if accuracies is not None else [None] * record.config.training.epochs
    lines = [
        make_epoch(number, validation_accuracy=accuracy, training_seconds=seconds / len(of_epochs))
        for number, accuracy in enumerate(of_epochs, start=1)
    ]
    folder.mkdir(parents=True)
    (folder / RUN_FILE).write_text(json.dumps(asdict(record)))
    (folder / EPOCHS_FILE).write_text("".join(json.dumps(asdict(line)) + "\n" for line in lines))
    return folder


def write_study(folder: Path, *, seconds: Sequence[float], name: str = "run", **changes: Any) -> None:
    """Write a run for each time, with the seeds 1, 2, ..."""
    for seed, value in enumerate(seconds, start=1):
        accuracy = changes.get("accuracy", 0.9)
        of_run = accuracy[seed - 1] if isinstance(accuracy, list) else accuracy
        write_study_run(folder / f"{name}-r{seed}", **(changes | {"seed": seed, "seconds": value, "accuracy": of_run}))
