"""Python's garbage collector, kept from what a program imports.

It goes through all objects again and again while packages are imported, and once more at the program's end. What was
imported stays, so none of it is garbage.
"""

import atexit
import gc


def pause_garbage_collection() -> None:
    """Stop the collector, before a program imports its packages."""
    gc.disable()


def resume_garbage_collection() -> None:
    """After a pause, collect garbage among objects allocated from now on, and none at the program's end."""
    if gc.isenabled():
        return
    gc.freeze()
    gc.enable()
    atexit.unregister(gc.freeze)  # of an earlier pause
    atexit.register(gc.freeze)
