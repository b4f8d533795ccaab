"""Addresses at which the ranks of a run reach each other: looked up by Gloo, or given to a framework."""

import platform
import socket
from typing import Any

import psutil

from common.distributed.communicator import Communicator
from common.errors import UserError

_ANY_PORT = 9  # nothing is sent


def own_address(comm: Communicator) -> str:
    """Return the IPv4 address at which the other ranks reach this one's host; every rank calls this.

    Hosts need only know each other's names: this is the address that the system sends from on its way to another host,
    whatever the host's own name stands for on the host itself.

    Raises:
        UserError: a host does not know the name of another; on all ranks.
    """
    host = platform.node()
    others = [name for name in comm.allgather(host) if name != host]
    address = "127.0.0.1"
    with comm.propagate_errors("looking up the other hosts"):
        if others:
            try:
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:
                    route.connect((others[0], _ANY_PORT))
                    address = route.getsockname()[0]
            except socket.gaierror:
                raise UserError(
                    f"{host} does not know the address of {others[0]}. Received: ranks on both. Add it to /etc/hosts "
                    "or to the name server"
                ) from None
    return address


def interface_of(address: str) -> str:
    """Return the name of the network interface of this host that has an IPv4 address."""
    interfaces = psutil.net_if_addrs()
    return next(name for name, found in interfaces.items() if address in [one.address for one in found])


def addresses_of_ranks(comm: Communicator) -> list[str]:
    """Return host:port of every rank, with ports that are free; every rank calls this."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as free:
        free.bind(("", 0))
        found: list[str] = comm.allgather(f"{own_address(comm)}:{free.getsockname()[1]}")
    return found


def check_host_name() -> None:
    """Raise UserError unless the name of this host leads to an address of it: Horovod as published crashes there.

    It does what Gloo does (`gloo/transport/tcp/device.cc`, `lookupAddrForHostname`): each process set has a device
    without an interface.
    """
    name = socket.gethostname()
    try:
        found = [(family, address) for family, *_, address in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]
    except (OSError, UnicodeError):
        problem = "which does not resolve"
    else:
        if any(_is_of_this_host(family, address) for family, address in found):
            return
        problem = f"which resolves to {', '.join(str(address[0]) for _, address in found)}, not an address of this host"
    raise UserError(
        f"Gloo looks up the name of its host. Received: {name}, {problem}. Add the name to /etc/hosts there, with an "
        "address at which the other hosts can reach it, or start the ranks over MPI"
    )


def _is_of_this_host(family: int, address: Any) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as own:
        try:
            own.bind(address)
        except OSError:
            return False
    return True
