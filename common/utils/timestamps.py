"""Environment variables by which whoever starts ranks tells when, in seconds since 1970.

    HOROVOD_TWINS_SUBMITTED_AT  a job was handed to a queue; set by the command that submits
    HOROVOD_TWINS_BEGAN_AT      the job's script began; its first line sets it, by `date +%s.%N`
    HOROVOD_TWINS_STARTED_AT    the command that starts the ranks was given; the line before it sets it likewise

Rank 0 may be on another host, so they have to travel: horovodrun and srun hand on all variables, mpirun those that are
named by `-x NAME` (all of `TIMESTAMPS`). A job that goes back into its queue is submitted anew: its script sets
SUBMITTED_AT to the moment at which it was put back. `common.run_folder.start_times` makes seconds of them.
"""

import time

SUBMITTED_AT = "HOROVOD_TWINS_SUBMITTED_AT"
BEGAN_AT = "HOROVOD_TWINS_BEGAN_AT"
STARTED_AT = "HOROVOD_TWINS_STARTED_AT"
TIMESTAMPS = (SUBMITTED_AT, BEGAN_AT, STARTED_AT)


def timestamp(name: str) -> dict[str, str]:
    """Return the variable of `TIMESTAMPS` that says: it is now."""
    return {name: f"{time.time():.6f}"}
