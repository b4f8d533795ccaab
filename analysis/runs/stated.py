"""Run records from what a document states about a run; the rest is `NotRecorded`."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Any

from common.measurement.energy import DeviceEnergy, EnergyRecord, EnergyTotals, energy_delay, energy_delay_squared
from common.measurement.power_trace import kind_of
from common.model.specs import model_spec
from common.run_folder.records import DataRecord, ModelRecord, NotRecorded, Totals, World

STARTUP, WORK = "startup", "training"  # phases; documents do not separate training, validation and test
SAMPLING_SECONDS = 0.5


def stated_world(
    devices: Sequence[str], *, host: str, controller: str, cores: int, threads: int | NotRecorded
) -> World:
    """Return the ranks on one host, one per device."""
    return World(
        size=len(devices),
        local_size=len(devices),
        hosts=[host],
        controller=controller,
        threads_per_rank=threads,
        cores=cores,
        oversubscribed=False,
        devices=list(devices),
    )


def stated_data(
    name: str,
    *,
    samples: tuple[int, int, int],
    image_shape: tuple[int, int, int],
    global_batch: int,
    class_names: Sequence[str],
    steps_per_epoch: int | None = None,
) -> DataRecord:
    """Return a data set whose means are not known.

    Args:
        name: of the data set.
        samples: of training, validation and test.
        image_shape: height, width and channels.
        global_batch: images per update; no sample is dropped.
        class_names: one per class.
        steps_per_epoch: None: as many as these batches make.
    """
    training, validation, test = samples
    return DataRecord(
        name=name,
        training_samples=training,
        validation_samples=validation,
        test_samples=test,
        dropped_samples_per_epoch=0,
        global_batch_size=global_batch,
        steps_per_epoch=steps_per_epoch or math.ceil(training / global_batch),
        image_shape=image_shape,
        class_names=list(class_names),
        mean=[],
        standard_deviation=[],
    )


@cache
def stated_model(name: str, image_shape: tuple[int, int, int], outputs: int) -> ModelRecord:
    """Return a model for images of (height, width, channels)."""
    height, width, channels = image_shape
    spec = model_spec(name, input_shape=(channels, height, width), outputs=outputs)
    return ModelRecord(
        name=name, outputs=outputs, parameters=spec.parameters, multiply_adds_per_image=spec.multiply_adds
    )


def stated_totals(reason: NotRecorded, **known: Any) -> Totals:
    """Return totals of a run; `reason`: why values that are not given or None are not recorded."""
    unknown = {field.name: reason for field in fields(Totals) if "_to_target" not in field.name}
    return Totals(**unknown | {name: value for name, value in known.items() if value is not None})


def stated_energy(
    seconds: float,
    joules: Mapping[str, float],
    *,
    used: Collection[str],
    counted: Collection[str],
    reasons: Mapping[str, str | None],
    startup_seconds: float | None = None,
    startup_joules: Mapping[str, float] | None = None,
) -> EnergyRecord:
    """Return the energy of a run, of which idle power is not known.

    Args:
        seconds, joules: of the run, by device, start-up excluded.
        used, counted: devices in the total of used devices and in that of all devices.
        reasons: device -> a remark on its value.
        startup_seconds, startup_joules: of start-up; None: not known.
    """
    startup = {} if startup_joules is None else {name: {STARTUP: value} for name, value in startup_joules.items()}
    return EnergyRecord(
        interval_seconds=SAMPLING_SECONDS,
        counted_phases=[WORK],
        seconds=seconds,
        seconds_by_phase=({} if startup_seconds is None else {STARTUP: startup_seconds}) | {WORK: seconds},
        devices=[
            DeviceEnergy(
                name=device,
                kind=kind_of(device),
                method="integral",
                reason=reasons[device],
                used=device in used,
                idle_watts_before=None,
                idle_watts_after=None,
                joules=value,
                joules_above_idle=None,
                joules_by_phase=startup.get(device, {}) | {WORK: value},
            )
            for device, value in joules.items()
        ],
        used_devices=_totals(seconds, sum(joules[device] for device in used)),
        all_devices=_totals(seconds, sum(joules[device] for device in counted)),
    )


def _totals(seconds: float, joules: float) -> EnergyTotals:
    return EnergyTotals(
        complete=False,
        joules=joules,
        joules_by_phase={WORK: joules},
        joules_above_idle=None,
        edp_joule_seconds=energy_delay(seconds, joules),
        ed2p_joule_square_seconds=energy_delay_squared(seconds, joules),
    )
