"""Readers of the power traces and energy sums in the thesis's raw files.

    energiaN.dat                         watts of six devices every half second, one file per run, including start-up
    consumos.dat, consumos_medios.dat    joules per device and seconds, the mean over an environment's runs

A trace counts from the sample after the first GPU first exceeds 20 W; before that it is start-up or idle time.
T = interval x (samples - 1) and e = interval x sum of samples give the published energies to the digit. The published
energy-delay products use the seconds in the sums instead, which differ from T.
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from analysis.thesis.tables import invalid, read_table, read_text

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
        """Return time and energy from the first counted sample: e = sampling interval x sum of power samples."""
        counted = self.watts[self.first :]
        joules = INTERVAL_SECONDS * counted.sum(axis=0)
        seconds = INTERVAL_SECONDS * (len(counted) - 1)
        return ThesisEnergy(seconds=seconds, joules=dict(zip(DEVICES, joules.tolist(), strict=True)))


def read_trace(path: Path) -> ThesisTrace:
    """Read an energiaN.dat.

    Raises:
        UserError: it cannot be read, has another format, or its GPU never exceeds WORKING_WATTS.
    """
    header = " ".join(TRACE_HEADER)
    if "-" in read_text(path).partition("\n")[0]:  # some files have core-0-pkg
        header = header.replace("_", "-")
    watts = read_table(path, columns=len(DEVICES), header=header, separator=" ")
    working = watts[:, DEVICES.index("gpu0")] > WORKING_WATTS
    rises = np.flatnonzero(working[1:] & ~working[:-1]) + 1
    if len(rises) == 0 or rises[0] + 1 == len(watts):
        raise invalid(path, f"a first GPU whose power never exceeds {WORKING_WATTS:g} W")
    return ThesisTrace(watts=watts, first=int(rises[0]) + 1)


def read_sums(path: Path) -> ThesisEnergy:
    """Read a consumos.dat or consumos_medios.dat.

    Raises:
        UserError: it cannot be read, or has another format.
    """
    header = ",".join(f'"{name}"' for name in SUMS_HEADER)
    *joules, seconds = read_table(path, columns=len(SUMS_HEADER), rows=1, header=header)[0].tolist()
    return ThesisEnergy(seconds=seconds, joules=dict(zip(DEVICES, joules, strict=True)))
