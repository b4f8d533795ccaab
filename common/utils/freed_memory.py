"""The memory that a training step frees stays with the process, for the next step.

The C library returns large blocks to the kernel, which hands them out again page by page, zeroed, in every step. In
PyTorch a step of simplecnn had 1,200 page faults, and took 1.3 times as long because of them.
"""

import ctypes
import os

_DECIDED = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_TRIM_THRESHOLD_")  # by the user, where one is set
_TUNABLES = "GLIBC_TUNABLES"  # may decide it, too, among other things
MALLOC_VARIABLES = (*_DECIDED, _TUNABLES)
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of mallopt(3)
_LARGEST = 2**25  # bytes of a block that is kept: glibc's own limit
_MOST = 2**26  # bytes that are kept: a large model needs memory for other things, too


def keep_freed_memory() -> None:
    """Keep freed memory in this process from now on, unless the user set a variable of glibc or there is no glibc."""
    if "glibc.malloc." in os.environ.get(_TUNABLES, "") or any(name in os.environ for name in _DECIDED):
        return
    adjust = getattr(ctypes.CDLL(None), "mallopt", None)
    if adjust:
        adjust(_MMAP_THRESHOLD, _LARGEST)
        adjust(_TRIM_THRESHOLD, _MOST)
