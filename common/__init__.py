"""The experiment itself, in NumPy: imports no framework and no Horovod."""

import os
import sys


def _open_closed_streams() -> None:
    """Put the null device in the place of standard streams that were closed before the program started (`>&-`).

    Left closed, the next file that is opened would take their place, and what a library prints would go into it.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


_open_closed_streams()  # every program imports this package before it opens a file
