"""Run records of the thesis. What its files and its text do not state is `NotRecorded`, with the reason.

A power trace does not separate phases: samples before the first counted one are `startup`, the rest `training`, which
here includes validation and test. RAM is among the devices but in no total, because the thesis counts it in neither of
its sums (used devices, all devices); both totals are therefore marked incomplete.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.runs.stated import STARTUP, WORK, stated_data, stated_energy, stated_model, stated_totals, stated_world
from analysis.thesis.tables import EPOCHS, Parameters
from analysis.thesis.traces import ALL_DEVICES, DEVICES, INTERVAL_SECONDS, ThesisEnergy, ThesisTrace
from common.json_records import SCHEMA_VERSION
from common.measurement.energy import EnergyRecord
from common.measurement.power_trace import PowerTrace, Series, kind_of
from common.run_folder.records import DataRecord, EpochRecord, NotRecorded, RunRecord, World

SITE = "thesis-machine"
CLASSES = 9
HYBRID_FACTOR = 12  # batch and share of a GPU / those of the hybrid's CPU

NOT_IN_FILES = NotRecorded("not in the files of the thesis")
WITHIN_TRAINING = NotRecorded("counted within training_seconds")
METERED = NotRecorded("the thesis wrote no times of metered runs, and a power trace does not separate phases")
RAM_REASON = "measured, but in no total: the thesis counts RAM in neither of its sums"
SUM_REASON = "only a sum: the samples are not in the files of the thesis"

# Ranks on its machine, which has 24 logical cores of 2 Xeon E5-2620, one per device.
world_of = partial(stated_world, host="batel", cores=24, threads=NOT_IN_FILES)
totals_record = partial(stated_totals, NOT_IN_FILES, epochs=EPOCHS)


def run_record(**known: Any) -> RunRecord:
    """Return the record of a run: what is known besides what all runs of the thesis share.

    Without a model it is ResNet-34 for the run's data.
    """
    shared: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "origin": "imported",
        "framework": "torch",
        "config": NotRecorded("the thesis gives its settings in its text, not with its runs"),
        "environment": NotRecorded("the thesis recorded no versions; its text describes the machine in section 4.2.1"),
        "site": SITE,
        "hashes": NotRecorded("the thesis kept neither weights nor the order of its samples"),
        "status": NotRecorded("its files do not record when a run started or ended; they hold finished runs only"),
        "isolation": NotRecorded("the thesis did not record what else its machine did"),
    }
    if "model" not in known:
        known["model"] = stated_model("resnet34", known["data"].image_shape, CLASSES)
    return RunRecord(**shared | known)


def recorded_world(parameters: Parameters) -> World:
    """Return the ranks of a timed or metered run."""
    wrapper = "gloo" if "cpu" in parameters.devices else "ddp"
    return world_of(parameters.devices, controller=wrapper if parameters.wrapped else "none")


def recorded_data(parameters: Parameters) -> DataRecord:
    """Return the samples of a timed or metered run; the hybrid's CPU gets fewer, in smaller batches."""
    devices = parameters.devices
    slow = devices.count("cpu") if len(devices) > 1 else 0
    slow_samples = slow * parameters.training_samples // (HYBRID_FACTOR * len(devices))
    samples = (parameters.training_samples - slow_samples) / (len(devices) - slow)
    height, width = parameters.image_shape
    return data_record(
        samples=(parameters.training_samples, parameters.validation_samples, parameters.test_samples),
        image_shape=(height, width, 1),
        global_batch=parameters.batch_size * (len(devices) - slow) + parameters.batch_size // HYBRID_FACTOR * slow,
        steps_per_epoch=math.ceil(math.ceil(samples) / parameters.batch_size),
    )


# Masks of nine kinds of fish, scaled to [0, 1] and not normalized further.
data_record = partial(stated_data, "fish", class_names=[str(number) for number in range(1, CLASSES + 1)])
_UNKNOWN_EPOCH: dict[str, Any] = {one.name: NOT_IN_FILES for one in fields(EpochRecord)}


def epoch_records(
    data: DataRecord, accuracies: NDArray[np.float64], seconds: NDArray[np.float64] | None = None
) -> list[EpochRecord]:
    """Return the epochs of a run.

    Args:
        data: its samples.
        accuracies: (epochs,) float64, on the validation samples.
        seconds: (2, epochs) float64, of training and of validation; None: not known.
    """
    unknown: Sequence[Any] = [NOT_IN_FILES] * len(accuracies)
    training, validation, speeds = unknown, unknown, unknown
    if seconds is not None:
        training, validation = seconds.tolist()
        speeds = (data.training_samples / seconds[0]).tolist()
    columns = zip(accuracies.tolist(), training, validation, speeds, strict=True)
    return [
        EpochRecord(
            **_UNKNOWN_EPOCH
            | {
                "epoch": number,
                "steps": data.steps_per_epoch,
                "validation_accuracy": accuracy,
                "training_seconds": training_seconds,
                "validation_seconds": validation_seconds,
                "images_per_second": speed,
            }
        )
        for number, (accuracy, training_seconds, validation_seconds, speed) in enumerate(columns, start=1)
    ]


def energy_record(energy: ThesisEnergy, *, used: Collection[str], trace: ThesisTrace | None = None) -> EnergyRecord:
    """Return time and energy as the thesis counts them.

    Args:
        energy: from the first counted sample.
        used: the devices in the thesis's sum of used devices.
        trace: the samples; None: not in its files.
    """
    startup = None if trace is None else _joules(trace)[: trace.first].sum(axis=0).tolist()
    of_sum = SUM_REASON if trace is None else None
    return stated_energy(
        energy.seconds,
        energy.joules,
        used=used,
        counted=ALL_DEVICES,
        reasons={device: RAM_REASON if kind_of(device) == "ram" else of_sum for device in DEVICES},
        startup_seconds=None if trace is None else INTERVAL_SECONDS * trace.first,
        startup_joules=startup and dict(zip(DEVICES, startup, strict=True)),
    )


def power_trace(trace: ThesisTrace) -> PowerTrace:
    """Return the samples for power.csv, including start-up."""
    joules = _joules(trace)
    return PowerTrace(
        host="",
        seconds=INTERVAL_SECONDS * np.arange(len(trace.watts), dtype=np.float64),
        phases=[STARTUP] * trace.first + [WORK] * (len(trace.watts) - trace.first),
        series={
            device: Series(method="integral", watts=trace.watts[:, column], joules=joules[:, column])
            for column, device in enumerate(DEVICES)
        },
    )


def _joules(trace: ThesisTrace) -> NDArray[np.float64]:
    """Return (samples, 6) float64, energy in joules since the previous sample; 0 for the first."""
    joules: NDArray[np.float64] = INTERVAL_SECONDS * trace.watts
    joules[0] = 0.0
    return joules
