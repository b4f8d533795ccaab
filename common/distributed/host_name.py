"""The name of this host, which Gloo looks up when it starts, whatever network interface it is given."""

import socket
from typing import Any

from common.errors import UserError


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
