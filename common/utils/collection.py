"""Python's search for cyclic garbage, kept from what a program imports.

The collector looks through all objects again and again while packages are imported, and once more at the program's end.
What was imported stays, so none of it is garbage.
"""

import atexit
import gc


def pause_collection() -> None:
    """Stop the search, before a program imports its packages."""
    gc.disable()


def resume_collection() -> None:
    """Search among what is made from now on; at the program's end, nowhere."""
    gc.freeze()
    gc.enable()
    atexit.register(gc.freeze)
