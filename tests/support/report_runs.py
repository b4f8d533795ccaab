"""Run folders and findings for tests of the report."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from example_runs import make_epoch, make_record, make_status

from analysis.output.finding import Finding, Plot
from analysis.output.tables import Table
from common.config import config_from_dict
from common.run_folder.records import (
    DataRecord,
    Hashes,
    ModelRecord,
    RunRecord,
    RunWriter,
    Totals,
    World,
    now,
)


def make_run_record(
    *, framework: str = "torch", seed: int = 1, seconds: float = 10.0, accuracy: float = 0.98, ranks: int = 1,
    name: str = "run", host: str = "node1", **changes: Any,
) -> RunRecord:  # fmt: skip
    config = config_from_dict({"training": {"seed": seed, "epochs": 2}, "model": {"model": "cnn"}})
    example = make_record()
    environment = replace(
        example.environment,
        host=host,
        command=["train.py", "--epochs", "2", "--model", "cnn", "--seed", str(seed), "--name", name],
    )
    values: dict[str, Any] = {
        "framework": framework,
        "config": config,
        "environment": environment,
        "world": World(
            size=ranks, local_size=ranks, hosts=[host] * ranks, controller="mpi" if ranks > 1 else "none",
            threads_per_rank=1, cores=2, oversubscribed=False, devices=["cpu"] * ranks,
        ),
        "data": DataRecord(
            name="mnist", training_samples=600, validation_samples=0, test_samples=100, dropped_samples_per_epoch=0,
            global_batch_size=60, steps_per_epoch=10, image_shape=(28, 28, 1), class_names=[str(n) for n in range(10)],
            mean=[0.1], standard_deviation=[0.3],
        ),
        "model": ModelRecord(name="cnn", outputs=10, parameters=21840, multiply_adds_per_image=480500),
        "hashes": Hashes(initial_weights=f"{seed:032x}", sample_order=f"{seed + 100:032x}"),
        "status": make_status(state="finished", ended_at=now()),
        "totals": Totals(
            epochs=2, steps=20, startup_seconds=1.0, training_seconds=seconds, validation_seconds=0.0,
            test_seconds=0.5, images_per_second=1200 / seconds if seconds else math.inf, test_loss=0.1,
            test_accuracy=accuracy, first_epoch_seconds=seconds / 2,
        ),
    }  # fmt: skip
    return make_record(**{**values, **changes})


def write_run(folder: Path, record: RunRecord, *, epochs: int = 2) -> Path:
    folder.parent.mkdir(parents=True, exist_ok=True)
    writer = RunWriter.create(folder, replace(record, status=make_status()))
    for epoch in range(1, epochs + 1):
        writer.add_epoch(make_epoch(epoch))
    writer.end("finished")
    writer.update(status=record.status)
    return folder


def write_both(folder: Path, *, seeds: int = 3) -> Path:
    """Write runs of both frameworks; Keras takes 8 s, PyTorch 10."""
    for seed in range(1, seeds + 1):
        for framework, seconds in (("torch", 10.0), ("keras", 8.0)):
            name = f"{framework}-{seed}"
            record = make_run_record(framework=framework, seed=seed, seconds=seconds + seed / 10, name=name)
            write_run(folder / name, record)
    return folder


def found(*, tables: Sequence[Table] = (), plots: Sequence[Plot] = (), **changes: Any) -> Finding:
    values: dict[str, Any] = {"name": "example", "question": "Why?", "answer": "Because.", "tables": tables}
    return Finding(**{**values, "plots": plots, **changes})


EVIL = "<script>alert(1)</script>\"&'"
