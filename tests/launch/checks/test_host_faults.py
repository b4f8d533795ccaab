"""Faults of a host of its own: its shared memory is full, its network is down; this machine's are as they were."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import wait_until

from launch.checks import host_faults
from launch.checks.host_faults import SHARED_MEMORY_BYTES, fill_shared_memory, set_network

TALKS = """
import socket, sys
ends = socket.create_server(("127.0.0.1", 0))
one = socket.create_connection(ends.getsockname())
other, _ = ends.accept()
other.settimeout(1.0)
print("ready", flush=True)
for line in sys.stdin:
    try:
        one.sendall(b"x")
        print(other.recv(1), flush=True)
    except OSError:
        print("nothing", flush=True)
"""


@pytest.fixture
def process():
    if not host_faults.can_have_hosts():
        pytest.skip("only root can have hosts of its own, with unshare, nsenter and ip")
    command = host_faults.on_a_host_of_its_own([sys.executable, "-c", TALKS])
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def test_shared_memory_is_filled_and_the_network_is_down_there_and_not_here(process):
    fill_shared_memory(process.pid)
    there = os.statvfs(f"/proc/{process.pid}/root/dev/shm")
    assert (there.f_bavail, there.f_blocks * there.f_frsize) == (0, SHARED_MEMORY_BYTES)
    assert not Path("/dev/shm/full").exists()

    def said():
        process.stdin.write("\n")
        process.stdin.flush()
        return process.stdout.readline().strip()

    assert said() == "b'x'"
    set_network(process.pid, up=False)
    assert said() == "nothing"
    set_network(process.pid, up=True)
    wait_until(lambda: said() == "b'x'")  # what was lost is sent again
    # A process of this machine is left alone.
    fill_shared_memory(os.getpid())
    set_network(os.getpid(), up=False)
    assert not Path("/dev/shm/full").exists() and int(Path("/sys/class/net/lo/flags").read_text(), 0) & 1
