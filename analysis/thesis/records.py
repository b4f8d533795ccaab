"""Run records of the thesis. What its files and its text do not state is `NotRecorded`, with the reason.

A power trace does not separate phases: samples before the first counted one are `startup`, the rest `training`, which
here includes validation and test. RAM is among the devices but in no total, because the thesis counts it in neither of
its sums (used devices, all devices); both totals are therefore marked incomplete.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import fields
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.thesis.tables import EPOCHS, Parameters
from analysis.thesis.traces import ALL_DEVICES, DEVICES, INTERVAL_SECONDS, ThesisEnergy, ThesisTrace
from common.measurement.energy import DeviceEnergy, EnergyRecord, EnergyTotals, energy_delay_squared
from common.measurement.power_trace import PowerTrace, Series, kind_of
from common.model.specs import model_spec
from common.run_folder.records import (
    SCHEMA_VERSION,
    DataRecord,
    EpochRecord,
    ModelRecord,
    NotRecorded,
    RunRecord,
    Totals,
    World,
)

SITE = "thesis-machine"
HOST = "batel"
CORES = 24  # logical ones, of 2 Xeon E5-2620
CLASSES = 9
HYBRID_FACTOR = 12  # batch and share of a GPU / those of the hybrid's CPU
STARTUP, WORK = "startup", "training"

NOT_IN_FILES = NotRecorded("not in the files of the thesis")
WITHIN_TRAINING = NotRecorded("counted within training_seconds")
METERED = NotRecorded("the thesis wrote no times of metered runs, and a power trace does not separate phases")
RAM_REASON = "measured, but in no total: the thesis counts RAM in neither of its sums"
SUM_REASON = "only a sum: the samples are not in the files of the thesis"


def run_record(
    *,
    world: World | NotRecorded,
    data: DataRecord | NotRecorded,
    totals: Totals | NotRecorded,
    model: ModelRecord | None = None,
    **others: Any,
) -> RunRecord:
    """Return the record of a run.

    Args:
        world, data, totals: what is known.
        model: None: resnet34 for these data.
        others: further fields; they override those that all runs of the thesis share.
    """
    if model is None:
        assert isinstance(data, DataRecord), "the data determine the model"
        model = model_record("resnet34", data.image_shape, CLASSES)
    defaults = {
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
    return RunRecord(**{**defaults, **others}, world=world, data=data, model=model, totals=totals)


def world_of(devices: Sequence[str], *, controller: str) -> World:
    """Return the processes, one per device."""
    return World(
        size=len(devices),
        local_size=len(devices),
        hosts=[HOST],
        controller=controller,
        threads_per_rank=NOT_IN_FILES,
        cores=CORES,
        oversubscribed=False,
        devices=list(devices),
    )


def recorded_world(parameters: Parameters) -> World:
    """Return the processes of a timed or metered run."""
    if not parameters.wrapped:
        return world_of(parameters.devices, controller="none")
    return world_of(parameters.devices, controller="gloo" if "cpu" in parameters.devices else "ddp")


def recorded_data(parameters: Parameters) -> DataRecord:
    """Return the samples of a timed or metered run; the hybrid's CPU gets fewer, in smaller batches."""
    devices = parameters.devices
    slow = devices.count("cpu") if len(devices) > 1 else 0
    slow_samples = slow * parameters.training_samples // (HYBRID_FACTOR * len(devices))
    samples = (parameters.training_samples - slow_samples) / (len(devices) - slow)
    return data_record(
        samples=(parameters.training_samples, parameters.validation_samples, parameters.test_samples),
        image_shape=parameters.image_shape,
        batch_sizes=[parameters.batch_size] * (len(devices) - slow) + [parameters.batch_size // HYBRID_FACTOR] * slow,
        steps_per_epoch=math.ceil(math.ceil(samples) / parameters.batch_size),
    )


def data_record(
    *, samples: tuple[int, int, int], image_shape: tuple[int, int], batch_sizes: Sequence[int], steps_per_epoch: int
) -> DataRecord:
    """Return the data set, masks of nine kinds of fish.

    Args:
        samples: of training, validation and test.
        image_shape: height and width in pixels.
        batch_sizes: of each rank; the last batch of an epoch may be smaller, none is dropped.
        steps_per_epoch: maximum over ranks.
    """
    training_samples, validation_samples, test_samples = samples
    return DataRecord(
        name="fish",
        training_samples=training_samples,
        validation_samples=validation_samples,
        test_samples=test_samples,
        dropped_samples_per_epoch=0,
        global_batch_size=sum(batch_sizes),
        steps_per_epoch=steps_per_epoch,
        image_shape=(*image_shape, 1),
        class_names=[str(number) for number in range(1, CLASSES + 1)],
        # Samples are scaled to [0, 1] and not normalized further; their mean is not stated.
        mean=[],
        standard_deviation=[],
    )


@cache
def model_record(name: str, image_shape: tuple[int, int, int], outputs: int) -> ModelRecord:
    """Return a model for images of (height, width, channels)."""
    height, width, channels = image_shape
    spec = model_spec(name, input_shape=(channels, height, width), outputs=outputs)
    return ModelRecord(
        name=name, outputs=outputs, parameters=spec.parameters, multiply_adds_per_image=spec.multiply_adds
    )


def epoch_records(
    data: DataRecord,
    accuracies: NDArray[np.float64],
    seconds: NDArray[np.float64] | None = None,
) -> list[EpochRecord]:
    """Return the epochs of a run.

    Args:
        data: its samples.
        accuracies: (epochs,) float64, on the validation samples.
        seconds: (2, epochs) float64, of training and of validation; None: not known.
    """
    unknown = [NOT_IN_FILES] * len(accuracies)
    training, validation, speeds = unknown, unknown, unknown
    if seconds is not None:
        training, validation = seconds.tolist()
        speeds = (data.training_samples / seconds[0]).tolist()
    columns = zip(accuracies.tolist(), training, validation, speeds, strict=True)
    return [
        EpochRecord(
            epoch=number,
            steps=data.steps_per_epoch,
            learning_rate=NOT_IN_FILES,
            training_loss=NOT_IN_FILES,
            training_accuracy=NOT_IN_FILES,
            validation_loss=NOT_IN_FILES,
            validation_accuracy=accuracy,
            training_seconds=training_seconds,
            data_wait_seconds=NOT_IN_FILES,
            validation_seconds=validation_seconds,
            checkpoint_seconds=NOT_IN_FILES,
            images_per_second=speed,
            weights_hash=NOT_IN_FILES,
        )
        for number, (accuracy, training_seconds, validation_seconds, speed) in enumerate(columns, start=1)
    ]


def totals_record(**known: Any) -> Totals:
    """Return totals of a run, of EPOCHS by default; values that are not given are marked as not recorded."""
    unknown = {field.name: NOT_IN_FILES for field in fields(Totals) if "_to_target" not in field.name}
    return Totals(**{**unknown, "epochs": EPOCHS, **known})


def energy_record(energy: ThesisEnergy, *, used: Collection[str], trace: ThesisTrace | None = None) -> EnergyRecord:
    """Return time and energy as the thesis counts them.

    Args:
        energy: from the first counted sample.
        used: the devices in the thesis's sum of used devices.
        trace: the samples; None: not in its files.
    """
    startup = (
        {} if trace is None else dict(zip(DEVICES, _joules(trace)[: trace.first].sum(axis=0).tolist(), strict=True))
    )
    return EnergyRecord(
        interval_seconds=INTERVAL_SECONDS,
        counted_phases=[WORK],
        seconds=energy.seconds,
        seconds_by_phase={
            **({} if trace is None else {STARTUP: INTERVAL_SECONDS * trace.first}),
            WORK: energy.seconds,
        },
        devices=[
            DeviceEnergy(
                name=device,
                kind=kind_of(device),
                method="integral",
                reason=_reason(device, trace),
                used=device in used,
                idle_watts_before=None,
                idle_watts_after=None,
                joules=energy.joules[device],
                joules_above_idle=None,
                joules_by_phase={
                    **({STARTUP: startup[device]} if startup else {}),
                    WORK: energy.joules[device],
                },
            )
            for device in DEVICES
        ],
        used_devices=_totals(energy, used),
        all_devices=_totals(energy, ALL_DEVICES),
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


def _reason(device: str, trace: ThesisTrace | None) -> str | None:
    if kind_of(device) == "ram":
        return RAM_REASON
    return None if trace else SUM_REASON


def _totals(energy: ThesisEnergy, devices: Collection[str]) -> EnergyTotals:
    joules = energy.sum(devices)
    return EnergyTotals(
        complete=False,
        joules=joules,
        joules_by_phase={WORK: joules},
        joules_above_idle=None,
        edp_joule_seconds=energy.edp(devices),
        ed2p_joule_square_seconds=energy_delay_squared(energy.seconds, joules),
    )
