"""A switch for hosts of `two_hosts.py` that holds every packet back for a known time; where tc has no netem, too.

    python tests/support/slow_switch.py SECONDS INTERFACE PROCESS=ADDRESS...

Makes a TUN device in the network namespace of each process, says "ready", and carries IPv4 packets between them: first
in, first out, each SECONDS after it came. How fast packets come is left to the queueing of the devices (tc tbf).
"""

import ctypes
import fcntl
import os
import select
import socket
import struct
import sys
import time
from collections import deque
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_IFF_TUN_NO_PI = 0x0001 | 0x1000  # IP packets, with nothing before them
_LARGEST_PACKET = 65535
_DESTINATION = slice(16, 20)  # of an IPv4 packet


def main():
    latency, interface, hosts = float(sys.argv[1]), sys.argv[2], [word.split("=") for word in sys.argv[3:]]
    devices = {socket.inet_aton(address): _device(interface, process=int(process)) for process, address in hosts}
    # Before all that computes: it is to be late by microseconds only, and needs little time.
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    print("ready", flush=True)
    carry(devices, latency=latency)


def carry(devices, *, latency):
    """Carry packets for ever.

    Args:
        devices: address -> file of its TUN device, which does not block.
        latency: seconds from reading a packet to writing it.
    """
    waiting = deque()
    while True:
        for source in select.select(devices.values(), [], [], _seconds_left(waiting))[0]:
            while (packet := _read(source)) is not None:
                target = devices.get(packet[_DESTINATION]) if packet[0] >> 4 == 4 else None
                if target is not None:
                    waiting.append((time.monotonic() + latency, target, packet))
        while waiting and waiting[0][0] <= time.monotonic():
            _, target, packet = waiting.popleft()
            os.write(target, packet)


def _seconds_left(waiting):
    return max(0.0, waiting[0][0] - time.monotonic()) if waiting else None


def _read(device):
    try:
        return os.read(device, _LARGEST_PACKET)
    except BlockingIOError:
        return None


def _device(interface, *, process):
    """Return the file of a new TUN device in the network namespace of a process."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path(f"/proc/{process}/ns/net").open() as namespace:
        if libc.setns(namespace.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace of process {process}")
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", interface.encode(), _IFF_TUN_NO_PI))
    return device


if __name__ == "__main__":
    main()
