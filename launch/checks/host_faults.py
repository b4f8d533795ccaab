"""Faults of the host that ranks run on, in namespaces of its own: its shared memory is full, its network is down."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

SHARED_MEMORY_BYTES = 32 * 2**20
_PREPARE = f'mount -t tmpfs -o size={SHARED_MEMORY_BYTES} tmpfs /dev/shm && ip link set lo up && exec "$@"'


def can_have_hosts() -> bool:
    """Return whether this user may make namespaces, and has the programs for it."""
    return os.geteuid() == 0 and all(map(shutil.which, ("unshare", "nsenter", "ip")))


def on_a_host_of_its_own(command: Sequence[str]) -> list[str]:
    """Return a command whose shared memory is small, and whose network is the loopback device alone."""
    return ["unshare", "--mount", "--net", "--", "bash", "-c", _PREPARE, "bash", *command]


def fill_shared_memory(process: int) -> bool:
    """Fill the shared memory of a process that was started `on_a_host_of_its_own`; return whether it has one."""
    place = Path(f"/proc/{process}/root/dev/shm")
    with suppress(OSError):
        size = os.statvfs(place)
        if size.f_blocks * size.f_frsize > SHARED_MEMORY_BYTES:
            return False  # not made yet: that of this machine
        with suppress(OSError), (place / "full").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(2**16))
        return True
    return False  # it has ended


def set_network(process: int, *, up: bool) -> bool:
    """Let all packets of a process that was started `on_a_host_of_its_own` be dropped, or not any more.

    Returns whether it has a network.
    """
    command = ["nsenter", f"--net=/proc/{process}/ns/net", "ip", "link", "set", "lo", "up" if up else "down"]
    try:
        if Path(f"/proc/{process}/ns/net").samefile("/proc/self/ns/net"):
            return False  # not made yet: that of this machine
    except OSError:
        return False  # it has ended
    return subprocess.run(command, check=False, capture_output=True).returncode == 0
