"""The memory that a step frees is not returned to the kernel: the next step takes no page faults for it."""

import os
import subprocess
import sys

import pytest

from common.utils.freed_memory import MALLOC_VARIABLES

# Twenty blocks of 1 MB are written and freed, as a training step does; then the page faults of ten more such steps.
STEPS = """
import ctypes, resource
from common.utils.freed_memory import keep_freed_memory

keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]

def step():
    blocks = [libc.malloc(1_000_000) for _ in range(20)]
    for block in blocks:
        ctypes.memset(block, 1, 1_000_000)
    for block in blocks:
        libc.free(block)

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

for _ in range(3):
    step()
before = faults()
for _ in range(10):
    step()
print(faults() - before)
"""
PAGES = 10 * 20 * 1_000_000 // 4096  # that ten steps write


def faults(**variables: str) -> int:
    """Return the page faults of ten steps in a process of its own, under variables of glibc."""
    environment = {name: value for name, value in os.environ.items() if name not in MALLOC_VARIABLES}
    done = subprocess.run([sys.executable, "-c", STEPS], env=environment | variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="without glibc")
def test_steps_reuse_what_they_freed() -> None:
    """A step takes no pages from the kernel once there were some; by variables, a user decides otherwise."""
    assert faults() < 0.01 * PAGES
    assert faults(MALLOC_TRIM_THRESHOLD_="131072", MALLOC_MMAP_THRESHOLD_="131072") > 0.9 * PAGES
