"""A powercap tree and an NVML whose joules the tests set themselves."""

from dataclasses import dataclass, field

from common.measurement.power_sources import ReadingError


def make_zone(folder, name, *, microjoules, largest=None):
    """Make a zone of the powercap tree and return its counter."""
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"{name}\n")
    (folder / "energy_uj").write_text(f"{microjoules}\n")
    if largest is not None:
        (folder / "max_energy_range_uj").write_text(f"{largest}\n")
    return folder / "energy_uj"


class MadeNVMLError(Exception):
    """As pynvml.NVMLError."""


@dataclass
class MadeGpu:
    """What NVML reports about a GPU; a text is the message of an error."""

    millijoules: int | str = 0
    milliwatts: int | str = 0


@dataclass
class MadeNvml:
    """The functions of pynvml that are used, with pynvml's names."""

    gpus: list[MadeGpu]
    init: str | None = None
    count: str | None = None
    calls: list[str] = field(default_factory=list)
    NVMLError = MadeNVMLError

    def nvmlInit(self):  # noqa: N802
        self.calls.append("init")
        _number(self.init or 0)

    def nvmlShutdown(self):  # noqa: N802
        self.calls.append("shutdown")

    def nvmlDeviceGetCount(self):  # noqa: N802
        return _number(self.count or len(self.gpus))

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        return self.gpus[index]

    def nvmlDeviceGetUUID(self, handle):  # noqa: N802
        return f"GPU-{next(index for index, gpu in enumerate(self.gpus) if gpu is handle)}"

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):  # noqa: N802
        return _number(handle.millijoules)

    def nvmlDeviceGetPowerUsage(self, handle):  # noqa: N802
        return _number(handle.milliwatts)


def _number(reported):
    if isinstance(reported, str):
        raise MadeNVMLError(reported)
    return reported


@dataclass
class Meter:
    """A device's read(): the value that the test has set, or the error."""

    value: float | str = 0.0

    def __call__(self):
        if isinstance(self.value, str):
            raise ReadingError(self.value)
        return self.value
