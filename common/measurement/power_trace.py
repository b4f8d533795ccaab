"""The power of a machine over time, as `power.py` measures it and `energy.py` sums it up."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from common.measurement.power_sources import Method

Kind = Literal["gpu", "cpu", "ram"]
IDLE_BEFORE = "idle_before"
IDLE_AFTER = "idle_after"
_NAME = re.compile(rf"(?:[^/]+/)?({'|'.join(get_args(Kind))})[-\w]*")


@dataclass(frozen=True, kw_only=True)
class Series:
    """What one device took.

    Attributes:
        method: counter or integral, see `common.measurement.power_sources.Device`.
        watts: (samples,) float64; counter: mean since the previous sample, NaN if that was too recent;
            integral: as the device reported it.
        joules: (samples,) float64, energy since the sample before; 0 at the first. counter: as counted; integral:
            watts x seconds since the sample before, the right-hand rule.
    """

    method: Method
    watts: NDArray[np.float64]
    joules: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class PowerTrace:
    """All devices of one host over a run; it can be pickled.

    Attributes:
        host: name of the machine; empty if the file does not contain it.
        seconds: (samples,) float64 since the trace's first sample, never falling.
        phases: (samples,) the phase that the time before a sample belongs to.
        series: device -> what it took.
        not_measured: device -> why. A device that failed on the way is here and has no series.
    """

    host: str
    seconds: NDArray[np.float64]
    phases: list[str]
    series: dict[str, Series]
    not_measured: dict[str, str] = field(default_factory=dict)


def kind_of(device: str) -> Kind:
    """Return the kind of a device by its name, such as gpu of node1/gpu0.

    Raises:
        ValueError: no name of a device.
    """
    found = _NAME.fullmatch(device)
    if not found:
        raise ValueError(f"no name of a device: {device!r}")
    return next(kind for kind in get_args(Kind) if kind == found[1])


def full_name(device: str, trace: PowerTrace, traces: Sequence[PowerTrace]) -> str:
    """Return a device's name among the devices of all hosts: with its host where there are several."""
    return f"{trace.host}/{device}" if len(traces) > 1 else device
