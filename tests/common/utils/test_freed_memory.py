"""The memory that a step frees is not returned to the kernel: the next step has no page faults for it."""

import platform
import subprocess
import sys

import pytest
from jobs import Job, do_job, start_of
from processes import environment

from common.utils.freed_memory import MALLOC_VARIABLES

OURS = "from common.utils.freed_memory import keep_freed_memory; keep_freed_memory()"
# Twenty blocks of 1 MB are written and freed, as a training step does; then the page faults of ten more such steps.
STEPS = """
import ctypes, importlib, resource

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]

def step():
    blocks = [libc.malloc(1_000_000) for _ in range(20)]
    for block in blocks:
        ctypes.memset(block, 1, 1_000_000)
    for block in blocks:
        libc.free(block)

def faults():
    for _ in range(3):
        step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def faults_once_pinned(framework, threads):
    from common.config import DeviceConfig
    distributed = importlib.import_module(f"{framework}_impl.distributed")
    distributed.pin_device(DeviceConfig(device="cpu", threads=int(threads)), distributed.init())
    return min(faults(), faults())  # other threads have some
"""
RETURNED = {"MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_MMAP_THRESHOLD_": "131072"}

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")


def faults_after(start, **variables):
    """Return the page faults of ten steps in a process that starts so, under variables of glibc."""
    given = {name: value for name, value in environment().items() if name not in MALLOC_VARIABLES}
    command = [sys.executable, "-c", f"{start}\n{STEPS}\nprint(faults())"]
    done = subprocess.run(command, env=given | variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_steps_reuse_what_they_freed_unless_a_user_decides_otherwise():
    returned = faults_after(OURS, **RETURNED)
    assert returned > 50  # with huge pages; else 48,800
    assert faults_after(OURS) < 0.1 * returned
    assert faults_after(OURS, GLIBC_TUNABLES="glibc.rtld.optional_static_tls=512") < 0.1 * returned


@pytest.mark.ranks
@pytest.mark.ci
def test_ranks_do_so_once_they_are_pinned(framework, tmp_path):
    (tmp_path / "script.py").write_text(STEPS)
    start = start_of(framework, launcher="none", arguments=())
    job = Job("faults", (framework, start.threads or 1), program=f"{tmp_path}/script.py:faults_once_pinned")
    (outcome,) = do_job(job, start=start, folder=tmp_path)
    assert outcome.value < 0.1 * faults_after("", **RETURNED)
