"""Interference with a run: load, other processes, throttling; also memory and cores used by its ranks."""

import os
import resource
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from pydantic import ConfigDict

THROTTLE_FOLDER = Path("/sys/devices/system/cpu")
HEAVY_CORES = 0.2  # processes that use more are recorded
SAMPLE_SECONDS = 0.3
MOST_NAMED = 5  # other processes per host


@dataclass(frozen=True, kw_only=True)
class Interference:
    """Interference on the hosts, in the order of ranks; for a resumed run since its last start.

    Attributes:
        load_average_before: of each host, over the minute before training, including the run's own start-up.
        other_processes_before: those that used more than 0.2 of a core during start-up, the heaviest of each
            host, as "name, 87 % of a core".
        throttled_cores: number of times that a core was slowed down by heat during training and test, over all
            hosts; None if the machine does not count them.
        peak_memory_bytes: of each rank, resident on the host.
        peak_device_memory_bytes: of each rank, as reported by its framework; None on a CPU.
        busy_cores: processor seconds of each rank / seconds, from before training to the end of the test; None in
            older records.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")
    load_average_before: list[float]
    other_processes_before: list[str]
    throttled_cores: int | None
    peak_memory_bytes: list[int]
    peak_device_memory_bytes: list[int | None]
    busy_cores: list[float] | None = None


@dataclass(frozen=True)
class ProcessTimes:
    """Processor times at one time: (process, its start) -> seconds so far, name."""

    at: float
    spent: dict[tuple[int, float], tuple[float, str]]


@dataclass(frozen=True)
class HostBefore:
    """State of a host before training, measured by its first rank."""

    load_average: float
    other_processes: list[str]
    throttled: int | None


@dataclass(frozen=True)
class RankAfter:
    """Measurements of a rank at the end; `before` and `throttled` are None except on the first rank of a host."""

    before: HostBefore | None
    throttled: int | None
    peak_memory_bytes: int
    peak_device_memory_bytes: int | None
    busy_cores: float


@dataclass(frozen=True)
class Spent:
    """Clock and processor time of this process, in seconds, at one time."""

    at: float
    processor_seconds: float


def spent_so_far() -> Spent:
    """Return the times of this process so far, over all its threads."""
    return Spent(time.monotonic(), time.process_time())


def look_at_host(earlier: ProcessTimes) -> HostBefore:
    """Return the state of this host now and since an earlier sample."""
    return HostBefore(os.getloadavg()[0], other_processes(earlier), throttle_count())


def look_at_rank(before: HostBefore | None, *, since: Spent, peak_device_memory_bytes: int | None) -> RankAfter:
    """Return the measurements of this rank at the end.

    Args:
        before: result of `look_at_host` on the first rank of a host, else None.
        since: the time of this rank before training.
        peak_device_memory_bytes: as reported by the framework; None on a CPU.
    """
    throttled = None if before is None else throttle_count()
    now = spent_so_far()
    busy_cores = (now.processor_seconds - since.processor_seconds) / max(now.at - since.at, 1e-9)
    return RankAfter(before, throttled, peak_memory_bytes(), peak_device_memory_bytes, busy_cores)


def peak_memory_bytes() -> int:
    """Return the peak resident memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB


def summarize(ranks: Iterable[RankAfter]) -> Interference:
    """Return the record of the measurements of all ranks, given in their order."""
    ranks = list(ranks)
    hosts = [(rank.before, rank.throttled) for rank in ranks if rank.before is not None]
    counted = [
        after - before.throttled for before, after in hosts if after is not None and before.throttled is not None
    ]
    return Interference(
        load_average_before=[before.load_average for before, _ in hosts],
        other_processes_before=[process for before, _ in hosts for process in before.other_processes],
        throttled_cores=sum(counted) if len(counted) == len(hosts) else None,
        peak_memory_bytes=[rank.peak_memory_bytes for rank in ranks],
        peak_device_memory_bytes=[rank.peak_device_memory_bytes for rank in ranks],
        busy_cores=[rank.busy_cores for rank in ranks],
    )


def throttle_count(folder: Path = THROTTLE_FOLDER) -> int | None:
    """Return how often cores of this host were throttled by heat since boot; None if this is not counted."""
    counts = []
    for file in folder.glob("cpu[0-9]*/thermal_throttle/core_throttle_count"):
        try:
            counts.append(int(file.read_text(encoding="ascii")))
        except (OSError, ValueError):
            return None
    return sum(counts) if counts else None


def other_processes(earlier: ProcessTimes) -> list[str]:
    """Return other processes that used more than HEAVY_CORES since `earlier`, heaviest first.

    Waits until SAMPLE_SECONDS have passed since then.
    """
    time.sleep(max(0.0, earlier.at + SAMPLE_SECONDS - time.monotonic()))
    later = take_sample()
    own, seconds = _own_processes(), later.at - earlier.at
    heavy = [
        (share, name)
        for key, (spent, name) in later.spent.items()
        if key[0] not in own
        and key in earlier.spent
        and (share := (spent - earlier.spent[key][0]) / seconds) > HEAVY_CORES
    ]
    return [f"{name}, {100 * share:.0f} % of a core" for share, name in sorted(heavy, reverse=True)[:MOST_NAMED]]


def take_sample() -> ProcessTimes:
    """Return the processor times of all processes so far."""
    at, spent = time.monotonic(), {}
    for process in psutil.process_iter(["create_time", "cpu_times", "name"]):
        times = process.info["cpu_times"]
        if times is not None:
            spent[process.pid, process.info["create_time"]] = (times.user + times.system, process.info["name"])
    return ProcessTimes(at, spent)


def _own_processes() -> set[int]:
    """Return the processes of this session, the children of this process, and the other ranks.

    All ranks have the same command line; a launcher may give each its own session. Parent processes are not used: the
    first process of a container adopts orphans of others.
    """
    here = psutil.Process()
    command, session = here.cmdline(), os.getsid(0)
    own = {here.pid, *(child.pid for child in here.children(recursive=True))}
    for process in psutil.process_iter(["cmdline"]):
        with suppress(psutil.Error, ProcessLookupError):  # it may end meanwhile
            if process.info["cmdline"] == command or os.getsid(process.pid) == session:
                own.add(process.pid)
    return own
