"""Run folders that tests make with the figures they need."""

from pathlib import Path
from typing import Any

import numpy as np
from example_runs import make_config, make_epoch, make_record, make_status

from common.config import config_from_dict
from common.measurement.energy import energy_record
from common.measurement.power_trace import PowerTrace, Series
from common.run_folder.power_file import POWER_FILE, write_power
from common.run_folder.records import DataRecord, Hashes, ModelRecord, NotRecorded, RunWriter, Totals, World, now

DATA = DataRecord(
    name="synthetic", training_samples=120, validation_samples=0, test_samples=20, dropped_samples_per_epoch=0,
    global_batch_size=30, steps_per_epoch=4, image_shape=(8, 8, 1), class_names=["0", "1", "2"], mean=[0.5],
    standard_deviation=[0.5],
)  # fmt: skip
MODEL = ModelRecord(name="mlp", outputs=3, parameters=1000, multiply_adds_per_image=1000)


def make_world(*devices: str, hosts: int = 1, **changes: Any) -> World:
    """Return the ranks of a run, one for each device."""
    values: dict[str, Any] = {
        "size": len(devices), "local_size": len(devices) // hosts,
        "hosts": [f"node{number}" for number in range(hosts)],
        "controller": "mpi", "threads_per_rank": 1, "cores": 8, "oversubscribed": False, "devices": list(devices),
    }  # fmt: skip
    return World(**{**values, **changes})


def make_totals(training: float, **changes: Any) -> Totals:
    """Return totals of two epochs of 4 steps, 10 s of start-up, 4 s of validation and 1 s of test."""
    values: dict[str, Any] = {
        "epochs": 2, "steps": 8, "startup_seconds": 10.0, "training_seconds": training, "validation_seconds": 4.0,
        "test_seconds": 1.0, "images_per_second": 240 / training if training else None, "test_loss": 0.1,
        "test_accuracy": 0.9,
    }  # fmt: skip
    return Totals(**{**values, **changes})


def write_made_run(folder: Path, *, training: float = 100.0, seed: int = 1, **changes: Any) -> Path:
    """Write a finished run of two epochs.

    Args:
        folder: is made.
        training: seconds.
        seed: of the run.
        changes: `totals` and `epochs` change fields of those, `settings` of the config, `traces` (of power, with
            `used_gpus`) make it a metered run; the rest are fields of the record.
    """
    totals, epochs = changes.pop("totals", {}), changes.pop("epochs", {})
    settings, traces = changes.pop("settings", {}), changes.pop("traces", None)
    used_gpus = changes.pop("used_gpus", {})
    config = config_from_dict({"training": {"epochs": 2, "seed": seed}}, base=make_config(folder.parent))
    if traces is not None:
        changes["energy"] = energy_record(traces, used_gpus=used_gpus, interval_seconds=1.0)
    values: dict[str, Any] = {
        "config": config_from_dict(settings, base=config),
        "hashes": Hashes(initial_weights=f"first{seed}", sample_order=f"order{seed}", final_weights="last"),
        "status": make_status(state="finished", ended_at=now()),
        "data": DATA,
        "model": MODEL,
        "world": make_world("cpu"),
        "totals": totals if isinstance(totals, NotRecorded) else make_totals(training, **totals),
    }
    writer = RunWriter.create(folder, make_record(**{**values, **changes}))
    for number in (1, 2):
        lines: dict[str, Any] = {"training_seconds": training / 2, "validation_seconds": 2.0} | epochs
        writer.add_epoch(make_epoch(number, **lines))
    writer._ended.set()
    if traces is not None:
        write_power(folder / POWER_FILE, traces)
    return folder


def make_trace(phases: dict[str, int], watts: dict[str, dict[str, float]], **changes: Any) -> PowerTrace:
    """Return a trace with a sample a second, of devices whose power is the same within a phase.

    Args:
        phases: phase -> its seconds, in this order after a first sample.
        watts: device -> phase -> power.
        changes: fields of the trace.
    """
    of_sample = [next(iter(phases)), *(phase for phase, seconds in phases.items() for _ in range(seconds))]
    series = {}
    for device, by_phase in watts.items():
        power = np.array([by_phase[phase] for phase in of_sample])
        series[device] = Series(method="integral", watts=power, joules=np.concatenate([[0.0], power[1:]]))
    seconds = np.arange(len(of_sample), dtype=np.float64)
    return PowerTrace(**{"host": "node0", "seconds": seconds, "phases": of_sample, "series": series, **changes})
