"""Times before start-up: the wait in a queue, and from the starting command to the process of rank 0.

They come from environment variables with the times, in seconds since 1970, at which a run was submitted and started:

    HOROVOD_TWINS_SUBMITTED_AT  the job was submitted to a queue; set by the submitting command
    HOROVOD_TWINS_BEGAN_AT      the job's script started; set in its first line by `date +%s.%N`
    HOROVOD_TWINS_STARTED_AT    the command that starts the ranks was issued; set in the line before it

Rank 0 may be on another host: horovodrun and srun pass on all variables, mpirun those named by `-x NAME` (all of
`TIMESTAMPS`). When a job is requeued, its script sets SUBMITTED_AT to the time at which it was requeued.
"""

import math
import time
from collections.abc import Mapping

from common.run_folder.values import NotRecorded

SUBMITTED_AT = "HOROVOD_TWINS_SUBMITTED_AT"
BEGAN_AT = "HOROVOD_TWINS_BEGAN_AT"
STARTED_AT = "HOROVOD_TWINS_STARTED_AT"
TIMESTAMPS = (SUBMITTED_AT, BEGAN_AT, STARTED_AT)
# The kernel records the start of a process to a tick of its clock.
_TICK_SECONDS = 0.01

Seconds = float | NotRecorded | None


def timestamp(name: str) -> dict[str, str]:
    """Return the variable with the current time as its value; `name` is one of `TIMESTAMPS`."""
    return {name: f"{time.time():.6f}"}


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
