"""Environment variables with the times, in seconds since 1970, at which a run was submitted and started.

    HOROVOD_TWINS_SUBMITTED_AT  the job was submitted to a queue; set by the submitting command
    HOROVOD_TWINS_BEGAN_AT      the job's script started; set in its first line by `date +%s.%N`
    HOROVOD_TWINS_STARTED_AT    the command that starts the ranks was issued; set in the line before it

Rank 0 may be on another host: horovodrun and srun pass on all variables, mpirun those named by `-x NAME` (all of
`TIMESTAMPS`). When a job is requeued, its script sets SUBMITTED_AT to the time at which it was requeued.
`common.run_folder.start_times` computes durations from them.
"""

import time

SUBMITTED_AT = "HOROVOD_TWINS_SUBMITTED_AT"
BEGAN_AT = "HOROVOD_TWINS_BEGAN_AT"
STARTED_AT = "HOROVOD_TWINS_STARTED_AT"
TIMESTAMPS = (SUBMITTED_AT, BEGAN_AT, STARTED_AT)


def timestamp(name: str) -> dict[str, str]:
    """Return the variable with the current time as its value; `name` is one of `TIMESTAMPS`."""
    return {name: f"{time.time():.6f}"}
