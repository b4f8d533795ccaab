"""A `/dev/shm` of a test's own, where it counts what is left there and others of the same user leave something."""

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from launch.checks.host_faults import can_have_hosts

_CLONE_FS = 0x00000200
_CLONE_NEWNS = 0x00020000
_LIBC = ctypes.CDLL(None, use_errno=True)


@contextmanager
def own_shared_memory() -> Iterator[None]:
    """Give this thread, and the processes that it starts, a `/dev/shm` that is empty; without namespaces do nothing."""
    if not can_have_hosts():
        yield
        return
    folder = Path.cwd()
    with Path("/proc/thread-self/ns/mnt").open() as namespace:
        _called(_LIBC.unshare(_CLONE_NEWNS))
        try:
            for arguments in (["--make-rprivate", "/"], ["-t", "tmpfs", "tmpfs", "/dev/shm"]):
                subprocess.run(["mount", *arguments], check=True, timeout=60)
            yield
        finally:
            _called(_LIBC.unshare(_CLONE_FS))  # threads that were started since then share it
            _called(_LIBC.setns(namespace.fileno(), _CLONE_NEWNS))
            os.chdir(folder)  # which is the root after a change of namespace


def _called(code: int) -> None:
    if code != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
