"""Times before start-up: the wait in a queue, and from the starting command to the process of rank 0."""

import math
from collections.abc import Mapping

from common.run_folder.records import NotRecorded
from common.run_folder.timestamps import BEGAN_AT, STARTED_AT, SUBMITTED_AT

# The kernel records the start of a process to a tick of its clock.
_TICK_SECONDS = 0.01

Seconds = float | NotRecorded | None


def launch_seconds(variables: Mapping[str, str], *, process_began: float) -> Seconds:
    """Return the seconds from the starting command to the process of rank 0; None if the command's time is unknown.

    Args:
        variables: the environment of rank 0.
        process_began: start of its process, in seconds since 1970.
    """
    started = variables.get(STARTED_AT)
    return None if started is None else _between(STARTED_AT, started, "rank 0's start", str(process_began))


def queue_seconds(variables: Mapping[str, str]) -> Seconds:
    """Return the seconds from submission to the start of the job's script; None without a queue."""
    submitted, began = variables.get(SUBMITTED_AT), variables.get(BEGAN_AT)
    if submitted is None:
        return None
    if began is None:
        return NotRecorded(f"the job's script did not record its start ({BEGAN_AT})")
    return _between(SUBMITTED_AT, submitted, BEGAN_AT, began)


def _between(earlier: str, first: str, later: str, second: str) -> Seconds:
    try:
        seconds = float(second) - float(first)
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds):
        return NotRecorded(f"{earlier} or {later} is not a time in seconds since 1970")
    if seconds < -_TICK_SECONDS:
        return NotRecorded(f"{later} is {-seconds:.3f} s before {earlier}: the clocks of two hosts differ")
    return max(0.0, seconds)
