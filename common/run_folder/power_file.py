"""`power.csv` of a run folder: one row per sample and device.

seconds    since the first sample of the device's host
phase      of the time before the sample
device     gpu0, cpu0, ram0 ...; with several hosts node1/gpu0
method     counter or integral
watts      empty where a counter was read too soon after the previous sample
joules     since the previous sample; 0 at the first
"""

import csv
import io
import math
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from common.errors import UserError
from common.measurement.power_trace import PowerTrace, Series, full_name, kind_of
from common.utils.atomic import write_atomically

POWER_FILE = "power.csv"
COLUMNS = ("seconds", "phase", "device", "method", "watts", "joules")
LONGEST_LINE = 10_000  # characters; a longer one is read in pieces


def write_power(path: Path, traces: Sequence[PowerTrace]) -> None:
    """Write the traces of all hosts as one file; numbers in full precision.

    Raises:
        OSError: full disk, missing permission.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for trace in traces:
        for device, series in trace.series.items():
            name = full_name(device, trace, traces)
            rows = zip(trace.seconds.tolist(), trace.phases, series.watts.tolist(), series.joules.tolist(), strict=True)
            writer.writerows(
                (seconds, phase, name, series.method, "" if math.isnan(watts) else watts, joules)
                for seconds, phase, watts, joules in rows
            )
    write_atomically(path, text.getvalue())


def read_power(path: Path) -> list[PowerTrace]:
    """Read and validate `power.csv`: a trace for each host. Devices that were not measured are in `run.json` only.

    Raises:
        UserError: it cannot be read, or is not such a file.
    """
    tables: dict[tuple[str, str], list[tuple[float, str, str, float, float]]] = defaultdict(list)
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.reader(iter(partial(file.readline, LONGEST_LINE), ""))
            header = next(rows, ["is missing"])
            if tuple(header) != COLUMNS:
                raise ValueError(f"the header {','.join(header)}")
            for number, row in enumerate(rows, start=2):
                host, name, sample = _parse(row, number=number)
                tables[host, name].append(sample)
    except OSError as error:
        raise UserError(f"no power trace: {error.strerror}. Received: {path}. Name a {POWER_FILE}") from None
    except (ValueError, csv.Error) as error:  # UnicodeDecodeError is a ValueError
        raise _invalid(path, str(error)) from None
    try:
        return [_trace(host, tables) for host in dict.fromkeys(host for host, _ in tables)]
    except ValueError as error:
        raise _invalid(path, str(error)) from None


def _invalid(path: Path, received: str) -> UserError:
    return UserError(f"{path} is not a valid power trace. Received: {received}. Restore the file")


def _parse(row: list[str], *, number: int) -> tuple[str, str, tuple[float, str, str, float, float]]:
    """Return host and name of the device of a row, and its seconds, phase, method, watts, joules."""
    try:
        seconds, phase, device, method, watts, joules = row
        kind_of(device)
        if method not in ("counter", "integral"):
            raise ValueError(f"method {method!r}")
        values = float(seconds), float(watts or "0"), float(joules)
        if not all(math.isfinite(value) and value >= 0 for value in values):
            raise ValueError(f"{seconds}, {watts}, {joules}")
    except ValueError as error:
        raise ValueError(f"line {number}: {error}") from None
    host, _, name = device.rpartition("/")
    return host, name, (values[0], phase, method, values[1] if watts else math.nan, values[2])


def _trace(host: str, tables: dict[tuple[str, str], list[tuple[float, str, str, float, float]]]) -> PowerTrace:
    """Return the trace of a host; ValueError unless all its devices have the same samples."""
    series, edges = {}, set()
    for (of_host, device), rows in tables.items():
        if of_host != host:
            continue
        seconds, phases, methods, watts, joules = zip(*rows, strict=True)
        if len(set(methods)) != 1 or list(seconds) != sorted(seconds):
            raise ValueError(f"{device} changes its method, or its time decreases")
        edges.add((seconds, phases))
        series[device] = Series(method=methods[0], watts=np.array(watts), joules=np.array(joules))
    if len(edges) != 1:
        raise ValueError(f"devices of host {host!r} were sampled at different times")
    seconds, phases = edges.pop()
    return PowerTrace(host=host, seconds=np.array(seconds), phases=list(phases), series=series)
