"""Sources of power and energy: NVML for GPUs, the powercap tree (RAPL) for CPU packages and RAM.

    sources = find_sources()
    sources.devices         # each has a name (gpu0, cpu0, ram0), a method and read()
    sources.not_measured    # name -> reason
    sources.close()

All devices of the machine are found, whether a run uses them or not. GPUs have NVML's numbers, in the order of the PCI
bus, which is CUDA's order only with CUDA_DEVICE_ORDER=PCI_BUS_ID: compare `uuid`.
"""

import errno
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

POWERCAP_FOLDER = Path("/sys/class/powercap")
MICROJOULES = 1e6  # in a joule, as RAPL counts
MILLIJOULES = 1e3  # in a joule, as NVML counts
MILLIWATTS = 1e3  # in a watt

Method = Literal["counter", "integral"]


class ReadingError(Exception):
    """A device cannot be read; the message is recorded as the reason."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """A device whose energy is measured.

    Attributes:
        name: kind (gpu, cpu, ram) and number on this machine; dies of a package are named like cpu0-die-1.
        method: counter: the hardware counts joules; integral: it reports watts, to be integrated.
        read: returns joules since the first reading (counter) or current watts (integral); raises ReadingError.
        uuid: of a GPU, as nvidia-smi -L prints it.
    """

    name: str
    method: Method
    read: Callable[[], float]
    uuid: str | None = None


@dataclass(frozen=True, kw_only=True)
class Sources:
    """The devices of this machine, and the reasons why others are not measured (by kind if none could be listed)."""

    devices: list[Device]
    not_measured: dict[str, str]
    close: Callable[[], None]


def find_sources(*, powercap: Path = POWERCAP_FOLDER, nvml: Any = None) -> Sources:
    """Return the devices that can be measured on this machine, after reading each once.

    Args:
        powercap: folder of the kernel's powercap zones.
        nvml: a module with the functions of pynvml; None: pynvml itself.
    """
    not_measured: dict[str, str] = {}
    gpus, close = _find_gpus(nvml, not_measured)
    return Sources(devices=[*gpus, *_find_zones(powercap, not_measured)], not_measured=not_measured, close=close)


class _Counter:
    """Joules since the first reading of a counter, which may wrap around."""

    def __init__(self, read_units: Callable[[], int], *, units_per_joule: float, range_units: int | None) -> None:
        self._read_units = read_units
        self._units_per_joule = units_per_joule
        self._range_units = range_units
        self._last = read_units()
        self._total = 0  # an integer, so that differences are exact

    def __call__(self) -> float:
        now = self._read_units()
        step = now - self._last
        if step < 0:
            if self._range_units is None or step + self._range_units < 0:
                raise ReadingError(f"its counter decreased from {self._last} to {now} without wrapping around")
            step += self._range_units
        self._last = now
        self._total += step
        return self._total / self._units_per_joule


def _find_gpus(nvml: Any, not_measured: dict[str, str]) -> tuple[list[Device], Callable[[], None]]:
    """Return all GPUs that NVML lists and a function that closes it; failures go into `not_measured`."""
    if nvml is None:
        try:
            import pynvml  # here, because CPUs can be measured without it
        except ImportError as error:
            not_measured["gpu"] = f"the package nvidia-ml-py is not installed ({error})"
            return [], lambda: None
        nvml = pynvml
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        not_measured["gpu"] = f"NVML cannot be started; is there an NVIDIA driver? {error}"
        return [], lambda: None

    def close() -> None:
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()

    try:
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        not_measured["gpu"] = f"NVML cannot list GPUs: {error}"
        return [], close
    if count == 0:
        not_measured["gpu"] = "NVML found no GPU"
    gpus = []
    for index in range(count):
        try:
            gpus.append(_gpu(nvml, index))
        except (nvml.NVMLError, ReadingError) as error:
            not_measured[f"gpu{index}"] = f"NVML: {error}"
    return gpus, close


def _gpu(nvml: Any, index: int) -> Device:
    """Return a GPU, read by its energy counter (since Volta) or otherwise by its power."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    uuid = nvml.nvmlDeviceGetUUID(handle)

    def ask(function: str) -> int:
        try:
            return int(getattr(nvml, function)(handle))
        except nvml.NVMLError as error:
            raise ReadingError(str(error)) from error

    def watts() -> float:
        return ask("nvmlDeviceGetPowerUsage") / MILLIWATTS

    try:
        joules = _Counter(
            lambda: ask("nvmlDeviceGetTotalEnergyConsumption"), units_per_joule=MILLIJOULES, range_units=None
        )
    except ReadingError:
        watts()
        return Device(name=f"gpu{index}", method="integral", read=watts, uuid=uuid)
    return Device(name=f"gpu{index}", method="counter", read=joules, uuid=uuid)


def _find_zones(powercap: Path, not_measured: dict[str, str]) -> list[Device]:
    """Return CPU packages and their RAM; failures go into `not_measured`.

    AMD processors have zones of the same names. `intel-rapl-mmio` is skipped: it counts the same packages.
    """
    zones = list(_packages(powercap))
    if not zones:
        for kind in ("cpu", "ram"):
            not_measured[kind] = f"{powercap} has no RAPL package (virtual machine, container, or another processor)"
    devices = []
    for number, package in zones:
        memory = next((zone for zone in sorted(package.glob(f"{package.name}:*")) if _name(zone) == "dram"), None)
        for name, zone in ((f"cpu{number}", package), (f"ram{number}", memory)):
            if zone is None:
                not_measured[name] = f"{package} has no dram zone: this processor does not count the energy of memory"
                continue
            try:
                devices.append(_zone(name, zone))
            except ReadingError as error:
                not_measured[name] = str(error)
    return devices


def _packages(powercap: Path) -> Iterator[tuple[str, Path]]:
    """Yield number and folder of each package: "0" of package-0, "0-die-1" of package-0-die-1."""
    for zone in sorted(powercap.glob("intel-rapl:*")):
        found = re.fullmatch(r"package-(\d+(-die-\d+)?)", _name(zone))
        if found:
            yield found[1], zone


def _name(zone: Path) -> str:
    """Return the kernel's name of a zone; empty if it cannot be read."""
    try:
        return (zone / "name").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def _zone(name: str, zone: Path) -> Device:
    range_units = None
    with suppress(ReadingError):  # needed only if the counter wraps
        range_units = _read_integer(zone / "max_energy_range_uj")
    joules = _Counter(lambda: _read_integer(zone / "energy_uj"), units_per_joule=MICROJOULES, range_units=range_units)
    return Device(name=name, method="counter", read=joules)


def _read_integer(file: Path) -> int:
    try:
        return int(file.read_text(encoding="ascii"))
    except OSError as error:
        hint = "; RAPL needs root" if error.errno in (errno.EACCES, errno.EPERM) else ""
        raise ReadingError(f"{file}: {error.strerror}{hint}") from error
    except ValueError as error:
        raise ReadingError(f"{file} does not contain an integer") from error
