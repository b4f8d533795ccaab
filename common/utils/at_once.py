"""How many runs a launcher makes side by side, told to each of them by an environment variable.

    HOROVOD_TWINS_AT_ONCE  the number of runs, this one included; set by the command that starts the ranks

The times of such a run compare only with those of runs beside which as many others were made.
"""

import os
from collections.abc import Mapping

AT_ONCE = "HOROVOD_TWINS_AT_ONCE"


def runs_at_once(variables: Mapping[str, str] = os.environ) -> int:
    """Return the number of runs that are made side by side with this one, itself included; 1: it has the host alone."""
    text = variables.get(AT_ONCE, "")
    return max(1, int(text)) if text.isdecimal() else 1
