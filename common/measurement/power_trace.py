"""The power of a machine over time, measured by `power.py` and summed by `energy.py`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from common.measurement.power_sources import Method

DeviceKind = Literal["gpu", "cpu", "ram"]
IDLE_BEFORE = "idle_before"
IDLE_AFTER = "idle_after"
_NAME = re.compile(rf"(?:[^/]+/)?({'|'.join(get_args(DeviceKind))})[-\w]*")


@dataclass(frozen=True, kw_only=True)
class Series:
    """Power and energy of one device.

    Attributes:
        method: counter or integral, see `common.measurement.power_sources.Device`.
        watts: (samples,) float64; counter: mean since the previous sample, NaN if that was too recent;
            integral: as reported by the device.
        joules: (samples,) float64, energy since the previous sample; 0 at the first. counter: as counted; integral:
            watts x seconds since the previous sample (right-hand rule).
    """

    method: Method
    watts: NDArray[np.float64]
    joules: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class PowerTrace:
    """All devices of one host during a run; can be pickled.

    Attributes:
        host: name of the machine; empty if the file does not contain it.
        seconds: (samples,) float64 since the first sample, not decreasing.
        phases: (samples,) the phase of the time before each sample.
        series: device -> its measurements.
        not_measured: device -> reason. Devices that failed during the run are here, without a series.
    """

    host: str
    seconds: NDArray[np.float64]
    phases: list[str]
    series: dict[str, Series]
    not_measured: dict[str, str] = field(default_factory=dict)


def kind_of(device: str) -> DeviceKind:
    """Return the kind in a device's name, such as gpu in node1/gpu0.

    Raises:
        ValueError: not a device's name.
    """
    found = _NAME.fullmatch(device)
    if not found:
        raise ValueError(f"not a device's name: {device!r}")
    return next(kind for kind in get_args(DeviceKind) if kind == found[1])


def full_name(device: str, trace: PowerTrace, traces: Sequence[PowerTrace]) -> str:
    """Return a device's name, with its host if there are several."""
    return f"{trace.host}/{device}" if len(traces) > 1 else device
