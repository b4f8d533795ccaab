"""Interference with a run: load, other processes, throttling; also memory and cores used by its ranks."""

import os
import resource
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path

import psutil

from common.distributed.launchers import launcher_local_rank, runs_at_once
from common.json_records import Record
from common.utils.command_line import is_trainer

THROTTLE_FOLDER = Path("/sys/devices/system/cpu")
HEAVY_CORES = 0.2  # processes that use more are recorded
SAMPLE_SECONDS = 0.3
MOST_NAMED = 5  # other processes per host


@dataclass(frozen=True, kw_only=True)
class Interference(Record):
    """Interference on the hosts, in the order of ranks; for a resumed run since its last start.

    Attributes:
        load_average_before: of each host, over the minute before training, including the run's own start-up.
        other_processes_before: those that used more than 0.2 of a core during start-up, the heaviest of each
            host, as "name, 87 % of a core".
        throttled_cores: number of times that a core was slowed down by heat during training and test, over all
            hosts; None if the machine does not count them.
        peak_memory_bytes: of each rank, resident on the host.
        peak_device_memory_bytes: of each rank, as reported by its framework; None on a CPU.
        memory_before_bytes: the most that was resident, of each rank, before data and model were there; None in
            older records.
        busy_cores: processor seconds of each rank / seconds, from before training to the end of the test; None in
            older records.
    """

    load_average_before: list[float]
    other_processes_before: list[str]
    throttled_cores: int | None
    peak_memory_bytes: list[int]
    peak_device_memory_bytes: list[int | None]
    memory_before_bytes: list[int] | None = None
    busy_cores: list[float] | None = None


Sample = tuple[float, set[psutil.Process]]  # a time of the monotonic clock, in seconds, and the processes of then


class InterferenceMeter:
    """Measures the interference with one rank; the first rank of a host measures the host, too."""

    def __init__(self, *, first_on_host: bool) -> None:
        self._sample = _first_sample() if first_on_host else None
        self._memory_before = peak_memory_bytes()
        self._load_average: list[float] = []
        self._throttled_before: int | None = None
        self._clocks_before = (0.0, 0.0)
        self.other_processes: list[str] = []

    def start(self) -> None:
        """Look at the host, immediately before training."""
        if self._sample:
            self._load_average = [os.getloadavg()[0]]
            self.other_processes = other_processes(self._sample)
            self._throttled_before = throttle_count()
        self._clocks_before = clocks()

    def result(self, *, peak_device_memory_bytes: int | None) -> Interference:
        """Return the part of this rank; `peak_device_memory_bytes`: as reported by the framework, None on a CPU."""
        (now, processor_now), (before, processor_before) = clocks(), self._clocks_before
        throttled: int | None = 0
        if self._sample:
            count, before_start = throttle_count(), self._throttled_before
            throttled = None if count is None or before_start is None else count - before_start
        return Interference(
            load_average_before=self._load_average,
            other_processes_before=self.other_processes,
            throttled_cores=throttled,
            peak_memory_bytes=[peak_memory_bytes()],
            peak_device_memory_bytes=[peak_device_memory_bytes],
            memory_before_bytes=[self._memory_before],
            busy_cores=[(processor_now - processor_before) / max(now - before, 1e-9)],
        )


def clocks() -> tuple[float, float]:
    """Return the time and the processor time of this process over all its threads, in seconds."""
    return time.monotonic(), time.process_time()


def peak_memory_bytes() -> int:
    """Return the peak resident memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB


def join(ranks: Sequence[Interference]) -> Interference:
    """Return the record of all ranks from their parts, given in their order."""
    throttled = [rank.throttled_cores for rank in ranks]
    lists = {
        field.name: [value for rank in ranks for value in getattr(rank, field.name)]
        for field in fields(Interference)
        if field.name != "throttled_cores"
    }
    return Interference(throttled_cores=None if None in throttled else sum(count or 0 for count in throttled), **lists)


def throttle_count(folder: Path = THROTTLE_FOLDER) -> int | None:
    """Return how often cores of this host were throttled by heat since boot; None if this is not counted."""
    counts = []
    for file in folder.glob("cpu[0-9]*/thermal_throttle/core_throttle_count"):
        try:
            counts.append(int(file.read_text(encoding="ascii")))
        except (OSError, ValueError):
            return None
    return sum(counts) if counts else None


def other_processes(earlier: Sample) -> list[str]:
    """Return other processes that used more than HEAVY_CORES since `earlier`, heaviest first.

    Of one that has started since then, the share is of its own age; one that has just started has none yet. Runs that
    are made side by side with this one are no interference: the record counts them. Waits until SAMPLE_SECONDS have
    passed since `earlier`.
    """
    then, before = earlier
    time.sleep(max(0.0, then + SAMPLE_SECONDS - time.monotonic()))
    here, heavy = psutil.Process(), []
    for process in psutil.process_iter(["cpu_percent"]):  # name and command line are read of heavy processes only
        with suppress(psutil.Error, ProcessLookupError):  # it may end meanwhile
            percent = (process.info["cpu_percent"] or 0.0) if process in before else _percent_of_its_age(process)
            if percent > 100 * HEAVY_CORES and not _is_own(process, here) and not _is_neighbor(process.pid):
                heavy.append((percent, process.name()))
    heavy.sort(reverse=True)
    return [f"{name}, {percent:.0f} % of a core" for percent, name in heavy[:MOST_NAMED]]


def _percent_of_its_age(process: psutil.Process) -> float:
    times, age = process.cpu_times(), time.time() - process.create_time()
    return 100 * (times.user + times.system) / age if age >= SAMPLE_SECONDS else 0.0


def take_sample() -> Sample:
    """Return the time and the processes; what they use is counted by psutil, from one look at them to the next."""
    return time.monotonic(), set(psutil.process_iter(["cpu_percent"]))


# Before the framework is imported, so that the run need not wait for SAMPLE_SECONDS.
_sample = take_sample() if is_trainer() and launcher_local_rank(os.environ) == 0 else None


def _first_sample() -> Sample:
    """Return the first sample of this process, which serves all its runs: psutil counts from its latest look."""
    global _sample
    _sample = _sample or take_sample()
    return _sample


def _is_neighbor(process: int) -> bool:
    """Return whether a process belongs to a run that a launcher makes at once with this one."""
    if runs_at_once() == 1:
        return False
    with suppress(psutil.Error):  # another user's, or gone
        return runs_at_once(psutil.Process(process).environ()) > 1
    return False


def _is_own(process: psutil.Process, here: psutil.Process) -> bool:
    """Return whether a process is of this session, or below this process, or another rank.

    All ranks have the same command line; a launcher may give each its own session. Parent processes are not used: the
    first process of a container adopts orphans of others.
    """
    if os.getsid(process.pid) == os.getsid(0) or here in (process, *process.parents()):
        return True
    return bool(process.as_dict(["cmdline"])["cmdline"] == here.cmdline())  # None: another user's
