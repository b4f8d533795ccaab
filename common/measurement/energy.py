"""Energy of a run from its power traces: by device and phase, energy-delay products, with and without idle devices.

    record = energy_record(traces, used_gpus={"node1": ["gpu0"]}, interval_seconds=0.5)    # goes into run.json

The formulas are the thesis's, except for ED2P. Totals include training, validation and test, as in
the thesis; start-up and idle time are only in `joules_by_phase`. Energy-delay products are of single runs, and are
summarized over runs afterwards.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from common.json_records import Record
from common.measurement.power_sources import Method
from common.measurement.power_trace import IDLE_AFTER, IDLE_BEFORE, DeviceKind, PowerTrace, full_name, kind_of

COUNTED_PHASES = ("training", "validation", "test")


@dataclass(frozen=True, kw_only=True)
class DeviceEnergy(Record):
    """Energy of one device over the run.

    Attributes:
        name: as in power.csv; without a number if devices of this kind could not be listed.
        method: counter: counted by the hardware; integral: integral of power; absent: not measured, see `reason`.
        used: whether the run used it; always true for CPUs and RAM.
        idle_watts_before, idle_watts_after: mean idle power; None if it was not measured.
        joules: in the counted phases; None: not measured.
        joules_above_idle: `joules` minus idle energy, from the mean of `idle_watts_*`; None if one of them was not
            measured.
        joules_by_phase: in all phases, including start-up and idle phases; empty: not measured.
    """

    name: str
    kind: DeviceKind
    method: Method | Literal["absent"]
    reason: str | None
    used: bool
    idle_watts_before: float | None
    idle_watts_after: float | None
    joules: float | None
    joules_above_idle: float | None
    joules_by_phase: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class EnergyTotals(Record):
    """Sums over devices in the counted phases; None if none of them was measured.

    Attributes:
        complete: whether all devices were measured; if not, compare only with sums over the same devices.
        joules_by_phase: in the counted phases.
        joules_above_idle: also None if the idle power of a measured device is unknown.
        edp_joule_seconds, ed2p_joule_square_seconds: see `energy_delay` and `energy_delay_squared`.
    """

    complete: bool
    joules: float | None
    joules_by_phase: dict[str, float]
    joules_above_idle: float | None
    edp_joule_seconds: float | None
    ed2p_joule_square_seconds: float | None


@dataclass(frozen=True, kw_only=True)
class EnergyRecord(Record):
    """Energy of a run.

    Attributes:
        counted_phases: the phases in `seconds` and in totals.
        seconds: of the counted phases, by the clock of the power trace.
        seconds_by_phase: of all phases, each on its slowest host.
        used_devices: totals without idle GPUs.
        all_devices: totals with them.
    """

    interval_seconds: float
    counted_phases: list[str]
    seconds: float
    seconds_by_phase: dict[str, float]
    devices: list[DeviceEnergy]
    used_devices: EnergyTotals
    all_devices: EnergyTotals


def energy_delay(seconds: float, joules: float) -> float:
    """EDP = t x sum over devices of e (the thesis; Gonzalez and Horowitz, IEEE JSSC 31(9), 1996), in joule seconds."""
    return seconds * joules


def energy_delay_squared(seconds: float, joules: float) -> float:
    """ED2P = t^2 x sum over devices of e (Martin, Nystroem and Penzes, "ET2", 2001), in joule square seconds.

    To first order it does not change when a processor trades speed for voltage; EDP does.
    """
    return seconds**2 * joules


def seconds_by_phase(trace: PowerTrace) -> dict[str, float]:
    """Return the time of each phase, in seconds."""
    return _sums_by_phase(trace, np.diff(trace.seconds, prepend=0.0))


def joules_by_phase(trace: PowerTrace, device: str) -> dict[str, float]:
    """Return the energy of a device in each phase, in joules."""
    return _sums_by_phase(trace, trace.series[device].joules)


def _sums_by_phase(trace: PowerTrace, values: NDArray[np.float64]) -> dict[str, float]:
    phases = np.array(trace.phases)
    return {phase: float(values[phases == phase].sum()) for phase in dict.fromkeys(trace.phases)}


def energy_record(
    traces: Sequence[PowerTrace], *, used_gpus: Mapping[str, Collection[str]], interval_seconds: float
) -> EnergyRecord:
    """Return the energy record of a run.

    Args:
        used_gpus: host -> GPUs that the run used, named as in the host's trace; hosts without any may be missing.

    Raises:
        ValueError: a used GPU is not in its host's trace.
    """
    slowest: dict[str, float] = defaultdict(float)
    for trace in traces:
        for phase, seconds in seconds_by_phase(trace).items():
            slowest[phase] = max(slowest[phase], seconds)
    seconds = _counted(slowest)
    devices = [
        device
        for trace in traces
        for device in _host_devices(trace, traces, used_gpus=set(used_gpus.get(trace.host, ())))
    ]
    return EnergyRecord(
        interval_seconds=interval_seconds,
        counted_phases=list(COUNTED_PHASES),
        seconds=seconds,
        seconds_by_phase=dict(slowest),
        devices=devices,
        used_devices=_totals([device for device in devices if device.used], seconds=seconds),
        all_devices=_totals(devices, seconds=seconds),
    )


def describe_energy(record: EnergyRecord) -> str:
    """Return lines with the energy of a run, and with devices that were not measured and the reasons."""
    totals = record.used_devices
    lines = []
    if totals.joules is not None:
        parts = ", ".join(f"{phase} {joules:,.1f} J" for phase, joules in totals.joules_by_phase.items())
        complete = "" if totals.complete else " of the measured devices"
        lines.append(
            f"energy {totals.joules:,.1f} J{complete} ({parts}), EDP {totals.edp_joule_seconds:,.4g} J s; metered: "
            "its times are not comparable"
        )
    lines += [f"{device.name}: not measured: {device.reason}" for device in record.devices if device.joules is None]
    return "\n".join(lines)


def _counted(by_phase: Mapping[str, float]) -> float:
    return sum(by_phase.get(phase, 0.0) for phase in COUNTED_PHASES)


def _host_devices(trace: PowerTrace, traces: Sequence[PowerTrace], *, used_gpus: set[str]) -> Iterable[DeviceEnergy]:
    """Yield the devices of a host, measured ones first."""
    unknown = used_gpus - {*trace.series, *trace.not_measured}
    if unknown and "gpu" not in trace.not_measured:
        raise ValueError(f"{trace.host} has no {', '.join(sorted(unknown))}")
    spent = seconds_by_phase(trace)
    for name in (*trace.series, *trace.not_measured):
        kind, by_phase = kind_of(name), joules_by_phase(trace, name) if name in trace.series else {}
        before, after = (_mean_watts(by_phase, spent, phase) for phase in (IDLE_BEFORE, IDLE_AFTER))
        joules = _counted(by_phase) if by_phase else None
        above_idle = None
        if joules is not None and before is not None and after is not None:
            above_idle = joules - (before + after) / 2 * _counted(spent)
        yield DeviceEnergy(
            name=full_name(name, trace, traces),
            kind=kind,
            method=trace.series[name].method if name in trace.series else "absent",
            reason=trace.not_measured.get(name),
            # "gpu" without a number: the GPUs of a host could not be listed.
            used=kind != "gpu" or name in used_gpus or (name == "gpu" and bool(used_gpus)),
            idle_watts_before=before,
            idle_watts_after=after,
            joules=joules,
            joules_above_idle=above_idle,
            joules_by_phase=by_phase,
        )


def _mean_watts(joules: Mapping[str, float], seconds: Mapping[str, float], phase: str) -> float | None:
    """Mean power in a phase = energy / time, in watts."""
    return joules[phase] / seconds[phase] if phase in joules and seconds[phase] > 0 else None


def _totals(devices: Sequence[DeviceEnergy], *, seconds: float) -> EnergyTotals:
    """Return sums over the measured devices; `seconds` is the time of the counted phases."""
    measured = [device for device in devices if device.joules is not None]
    joules = _sum(device.joules for device in measured)
    phases = [phase for phase in COUNTED_PHASES if any(phase in device.joules_by_phase for device in measured)]
    return EnergyTotals(
        complete=len(measured) == len(devices),
        joules=joules,
        joules_by_phase={phase: sum(device.joules_by_phase.get(phase, 0.0) for device in measured) for phase in phases},
        joules_above_idle=_sum(device.joules_above_idle for device in measured),
        edp_joule_seconds=None if joules is None else energy_delay(seconds, joules),
        ed2p_joule_square_seconds=None if joules is None else energy_delay_squared(seconds, joules),
    )


def _sum(values: Iterable[float | None]) -> float | None:
    """Return the sum; None without values, or if one of them is missing."""
    known = list(values)
    numbers = [value for value in known if value is not None]
    return sum(numbers) if known and len(numbers) == len(known) else None
