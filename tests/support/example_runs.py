"""Small experiments and records, made without a framework, for the tests of what stands around the epochs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from common.config import Config, config_from_dict
from common.model.weights import Weights
from common.run_folder.environment import Environment
from common.run_folder.records import (
    SCHEMA_VERSION,
    DataRecord,
    EpochRecord,
    Hashes,
    NotRecorded,
    Run,
    RunRecord,
    Status,
    Totals,
    World,
    now,
)
from common.training.run_setup import RunSetup, prepare_run

DATASET = "synthetic:120x8x8x1x3"  # and 20 test images


def make_config(runs_folder: Path, **subjects: dict[str, Any]) -> Config:
    """Return settings for 4 steps of 30 images, 3 epochs, without warm-up, as a run named `run`."""
    base = config_from_dict(
        {
            "data": {"dataset": DATASET},
            "model": {"model": "mlp"},
            "schedule": {"lr_scaling": "none", "warmup_epochs": 0.0},
            "training": {"epochs": 3, "batch_size": 30},
            "record": {"runs_folder": str(runs_folder), "name": "run"},
        }
    )
    return config_from_dict(subjects, base=base)


def make_setup(config: Config, *, size: int = 1) -> RunSetup:
    """Return an experiment on `size` ranks."""
    return prepare_run(config, size=size, progress=False)


def make_status(**changes: Any) -> Status:
    """Return the status of a run that has just been started by a process that is gone."""
    values = {"state": "running", "host": "elsewhere", "process": 1, "started_at": now(), "heartbeat_at": now()}
    return Status(**{**values, **changes})


def make_environment(**changes: Any) -> Environment:
    """Return a made machine."""
    values: dict[str, Any] = {
        "host": "node1",
        "operating_system": "Linux 6.1",
        "architecture": "x86_64",
        "processor": "example",
        "cores": 2,
        "memory_bytes": 8_000_000_000,
        "python": "3.11.9",
        "packages": {"numpy": "2.0"},
        "variables": {},
        "source_revision": "unknown",
        "command": ["train.py", "--epochs", "1"],
    }
    return Environment(**{**values, **changes})


def make_record(**changes: Any) -> RunRecord:
    """Return a record in which most is not recorded."""
    unknown = NotRecorded("an example")
    values: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "origin": "measured",
        "framework": "torch",
        "config": Config(),
        "environment": make_environment(),
        "site": "local",
        "world": unknown,
        "data": unknown,
        "model": unknown,
        "hashes": unknown,
        "status": make_status(),
    }
    return RunRecord(**{**values, **changes})


def make_epoch(epoch: int, **changes: Any) -> EpochRecord:
    """Return a line of epochs.jsonl."""
    values: dict[str, Any] = {
        "epoch": epoch,
        "steps": 4,
        "learning_rate": 0.01,
        "training_loss": 1.0 / epoch,
        "training_accuracy": 0.5,
        "validation_loss": None,
        "validation_accuracy": None,
        "training_seconds": 2.0,
        "data_wait_seconds": NotRecorded("read inside the step"),
        "validation_seconds": 0.0,
        "checkpoint_seconds": 0.25,
        "images_per_second": 60.0,
        "weights_hash": f"{epoch:032x}",
    }
    return EpochRecord(**{**values, **changes})


def random_weights(experiment: RunSetup, *, seed: int = 0) -> Weights:
    """Return arrays of the model's shapes, all values random."""
    random = np.random.default_rng(seed)
    return {
        weight.name: random.normal(size=weight.shape).astype(experiment.config.model.dtype)
        for weight in experiment.spec.weights
    }


def make_finished_run(folder: Path = Path("runs/made"), **changes: Any) -> Run:
    """Return a finished run of two ranks: 90 % of 1000 test images, 2 s per epoch.

    Args:
        folder: of the run.
        changes: fields of config's subjects, environment, world, data, hashes and totals, as dictionaries; or of the
            record; or `seconds` of training of each epoch.
    """
    parts: dict[str, Any] = {
        "environment": make_environment(
            packages={"numpy": "2.0", "horovod": "0.28.1", "torch": "2.13.0", "openmpi": "4.1.8", "mpi4py": "4"},
            source_revision="a" * 40,
        ),
        "world": World(size=2, local_size=2, hosts=["node1"], controller="mpi", threads_per_rank=1, cores=2,
                       oversubscribed=False, devices=["cpu", "cpu"]),
        "data": DataRecord(name="made", training_samples=120, validation_samples=0, test_samples=1000,
                           dropped_samples_per_epoch=0, global_batch_size=60, steps_per_epoch=2, image_shape=(8, 8, 1),
                           class_names=["a", "b", "c"], mean=[0.0], standard_deviation=[1.0]),
        "hashes": Hashes(initial_weights="first", sample_order="order", final_weights="final"),
        "totals": Totals(epochs=3, steps=6, startup_seconds=1.0, training_seconds=6.0, validation_seconds=0.0,
                         test_seconds=0.1, images_per_second=60.0, test_loss=0.3, test_accuracy=0.9),
    }  # fmt: skip
    seconds = changes.pop("seconds", (3.0, 2.0, 2.0))
    config = make_config(folder.parent, **changes.pop("config", {}))
    for name in list(parts):
        value = changes.pop(name, {})
        parts[name] = replace(parts[name], **value) if isinstance(value, dict) else value
    record = make_record(config=config, status=make_status(state="finished"), **parts)
    epochs = [make_epoch(number, training_seconds=value) for number, value in enumerate(seconds, start=1)]
    return Run(folder, replace(record, **changes), epochs, "finished")
