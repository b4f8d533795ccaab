"""The energy of metered runs as comparisons see it."""

import math
from collections.abc import Sequence

import numpy as np

from analysis.runs.cells import Cell
from analysis.runs.table import RunRow
from common.errors import UserError
from common.measurement.energy import DeviceEnergy, EnergyRecord
from common.measurement.power_trace import PowerTrace
from common.run_folder.power_file import POWER_FILE, read_power
from common.run_folder.records import DataRecord

EPOCH_PHASES = ("training", "validation")


def metered(cell: Cell) -> list[RunRow]:
    """Return those of a cell's finished runs that measured the energy of at least one device that they used."""
    return [run for run in cell.finished if run.metered and _measured(run)]


def _measured(run: RunRow) -> bool:
    energy = run.record.energy
    return isinstance(energy, EnergyRecord) and energy.used_devices.joules is not None


def energy_of(run: RunRow) -> EnergyRecord:
    """Return the energy record of a run of `metered`."""
    energy = run.record.energy
    assert isinstance(energy, EnergyRecord), "a metered run"
    return energy


def values_of(runs: Sequence[RunRow], quantity: str, *, used: bool = True) -> list[float]:
    """Return a field of `EnergyTotals` of each run; NaN where it is not known.

    Args:
        runs: metered ones.
        quantity: the field.
        used: over the devices that the run used, else over all.
    """
    totals = [energy_of(run).used_devices if used else energy_of(run).all_devices for run in runs]
    values = [getattr(one, quantity) for one in totals]
    return [math.nan if value is None else value for value in values]


def mean_of(runs: Sequence[RunRow], quantity: str, *, used: bool = True) -> float:
    """Return the mean of `values_of`: joules are paid for and add up; products are those of each run."""
    return float(np.mean(values_of(runs, quantity, used=used)))


def counted_devices(energy: EnergyRecord) -> list[DeviceEnergy]:
    """Return the measured devices that the totals count; sources such as the thesis leave a kind out, memory."""
    measured = [device for device in energy.devices if device.joules is not None]
    for left_out in (None, *dict.fromkeys(device.kind for device in measured)):
        counted = [device for device in measured if device.kind != left_out]
        if math.isclose(sum(device.joules or 0.0 for device in counted), energy.all_devices.joules or 0.0):
            return counted
    return measured


def covered(runs: Sequence[RunRow]) -> str:
    """Return in words which devices the joules of metered runs count."""
    energies = [energy_of(run) for run in runs]
    if all(energy.used_devices.complete for energy in energies):
        return "all used devices"
    missing = {
        device.kind
        for energy in energies
        for device in energy.devices
        if (device.used and device.joules is None)
        or (device.joules is not None and device not in counted_devices(energy))
    }
    if not missing:  # a published sum: its source may leave out devices that it does not name
        return "the devices that its source lists"
    return f"all used devices but {' and '.join(sorted(missing))}"


def epochs_of(run: RunRow, cell: Cell) -> float:
    """Return how many epochs a run trained; one that does not record it: as many as another of its cell; NaN: none."""
    recorded = (one.trained_epochs for one in [run, *cell.finished])
    return next((epochs for epochs in recorded if not math.isnan(epochs)), math.nan)


def joules_per_epoch(run: RunRow, epochs: float) -> float:
    """Return (joules of training + validation) / epochs, over used devices; NaN: not known."""
    spent = energy_of(run).used_devices.joules_by_phase
    return sum(spent.get(phase, 0.0) for phase in EPOCH_PHASES) / epochs if epochs > 0 and spent else math.nan


def images_per_joule(run: RunRow, epochs: float) -> float:
    """Return training images of all epochs / joules of training over used devices; NaN: not known."""
    data = run.record.data
    joules = energy_of(run).used_devices.joules_by_phase.get("training", 0.0)
    if not isinstance(data, DataRecord) or joules <= 0:
        return math.nan
    images = epochs * (data.training_samples - data.dropped_samples_per_epoch)
    # The last batch of an epoch may be a smaller one, and the last epoch be broken off.
    of_steps = run.steps * data.global_batch_size
    return (images if math.isnan(of_steps) else min(images, of_steps)) / joules


def median_trace(runs: Sequence[RunRow], *, flags: list[str]) -> tuple[RunRow, list[PowerTrace]] | None:
    """Return the run of median energy and its traces; if they cannot be read, the nearest to it whose can.

    Args:
        runs: metered ones.
        flags: get a line for every trace that cannot be read.
    """
    order = sorted(runs, key=lambda run: energy_of(run).used_devices.joules or 0.0)
    middle = (len(order) - 1) // 2
    for run in sorted(order, key=lambda run: abs(order.index(run) - middle)):
        if not (run.folder / POWER_FILE).exists():
            continue
        try:
            return run, read_power(run.folder / POWER_FILE)
        except UserError as error:
            flags.append(f"left out: {error}")
    return None
