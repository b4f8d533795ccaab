"""Readers of the power traces and energy sums in the thesis's raw files.

    energiaN.dat                         watts of six devices every half second, one file per run, including start-up
    consumos.dat, consumos_medios.dat    joules per device and seconds, the mean over an environment's runs

A trace counts from the sample after the first GPU first exceeds 20 W; before that it is start-up or idle time.
T = interval x (samples - 1) and e = interval x sum of samples give the published energies to the digit. The published
energy-delay products use the seconds in the sums instead, which differ from T.
"""

import csv
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.errors import UserError
from common.measurement.energy import energy_delay, sampled_energy

INTERVAL_SECONDS = 0.5
WORKING_WATTS = 20.0  # of the first GPU; idle it takes about 16
# Device names, in the order of the columns in all files.
DEVICES = ("cpu0", "ram0", "cpu1", "ram1", "gpu0", "gpu1")
TRACE_HEADER = ("core_0_pkg", "core_0_ram", "core_6_pkg", "core_6_ram", "nvd_0", "nvd_1")
SUMS_HEADER = ("CPU0", "RAM0", "CPU1", "RAM1", "GPU0", "GPU1", "TIEMPO")
# RAM is in neither sum of the thesis.
ALL_DEVICES = ("cpu0", "cpu1", "gpu0", "gpu1")
USED_DEVICES = {
    "Resultados_CPU": ("cpu0", "cpu1"),
    "Resultados_1GPU": ("cpu0", "cpu1", "gpu0"),
    "Resultados_Distribuido_1GPU": ("cpu0", "cpu1", "gpu0"),
    "Resultados_Distribuido_2GPU": ALL_DEVICES,
}


@dataclass(frozen=True, kw_only=True)
class ThesisEnergy:
    """Time and energy of a run, or their means over runs: seconds, and device -> joules."""

    seconds: float
    joules: dict[str, float]

    def sum(self, devices: Collection[str]) -> float:
        """Return the energy of some devices, in joules."""
        return sum(self.joules[device] for device in devices)

    def edp(self, devices: Collection[str]) -> float:
        """Return the energy-delay product over some devices, in joule seconds."""
        return energy_delay(self.seconds, self.sum(devices))


@dataclass(frozen=True, kw_only=True)
class ThesisTrace:
    """A power trace.

    Attributes:
        watts: (samples, 6) float64, columns as DEVICES, a row every INTERVAL_SECONDS.
        first: index of the first counted sample.
    """

    watts: NDArray[np.float64]
    first: int

    def energy(self) -> ThesisEnergy:
        """Return time and energy from the first counted sample."""
        counted = self.watts[self.first :]
        joules = sampled_energy(counted, interval_seconds=INTERVAL_SECONDS)
        return ThesisEnergy(
            seconds=INTERVAL_SECONDS * (len(counted) - 1), joules=dict(zip(DEVICES, joules.tolist(), strict=True))
        )


def read_trace(path: Path) -> ThesisTrace:
    """Read an energiaN.dat.

    Raises:
        UserError: it cannot be read, has another format, or its GPU never exceeds WORKING_WATTS.
    """
    header, rows = _read_table(path, delimiter=" ")
    if tuple(name.replace("-", "_") for name in header) != TRACE_HEADER:  # some files have core-0-pkg
        raise _invalid(path, f"the header {' '.join(header)}")
    working = rows[:, DEVICES.index("gpu0")] > WORKING_WATTS
    rises = np.flatnonzero(working[1:] & ~working[:-1]) + 1
    if len(rises) == 0 or rises[0] + 1 == len(rows):
        raise _invalid(path, f"a first GPU whose power never exceeds {WORKING_WATTS:g} W")
    return ThesisTrace(watts=rows, first=int(rises[0]) + 1)


def read_sums(path: Path) -> ThesisEnergy:
    """Read a consumos.dat or consumos_medios.dat.

    Raises:
        UserError: it cannot be read, or has another format.
    """
    header, rows = _read_table(path, delimiter=",")
    if header != SUMS_HEADER or len(rows) != 1:
        raise _invalid(path, f"the header {','.join(header)} and {len(rows)} rows")
    *joules, seconds = rows[0].tolist()
    return ThesisEnergy(seconds=seconds, joules=dict(zip(DEVICES, joules, strict=True)))


def mean_energy(runs: Sequence[ThesisEnergy]) -> ThesisEnergy:
    """Return the means over the runs of an environment, which the thesis compares."""
    return ThesisEnergy(
        seconds=float(np.mean([run.seconds for run in runs])),
        joules={device: float(np.mean([run.joules[device] for run in runs])) for device in DEVICES},
    )


def _invalid(path: Path, received: str) -> UserError:
    return UserError(f"{path} is not an energy file of the thesis. Received: {received}. Name an original file")


def _read_table(path: Path, *, delimiter: str) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    """Return the header and (rows, columns) float64, all finite and none negative, at least one row."""
    try:
        with path.open(encoding="ascii", newline="") as file:
            header, *lines = csv.reader(file, delimiter=delimiter)
        rows = np.array([[float(value) for value in line] for line in lines])
    except OSError as error:
        raise UserError(
            f"cannot read an energy file: {error.strerror}. Received: {path}. Name an original file"
        ) from None
    except (ValueError, csv.Error) as error:
        raise _invalid(path, str(error)) from None
    if rows.ndim != 2 or rows.shape[1] != len(header) or not np.isfinite(rows).all() or rows.min() < 0:
        raise _invalid(path, f"rows without {len(header)} non-negative numbers each")
    return tuple(header), rows
