"""Lists of plain hosts: `a:2,b:2`, or a host file with lines such as `a slots=2` or `a:2`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.errors import UserError

# No hyphen first, which ssh would take for a flag; horovodrun knows no user names and no IPv6: ~/.ssh/config does.
_HOST = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]{0,252})(?:\s*:\s*|\s+slots\s*=\s*)(?P<slots>[1-9]\d{0,3})")
_REMEDY = "Write NAME:RANKS, such as a:2, and leave user and port to ~/.ssh/config"


@dataclass(frozen=True)
class HostSlots:
    """A host and how many ranks it takes."""

    name: str
    slots: int

    def __str__(self) -> str:
        return f"{self.name}:{self.slots}"


def parse_hosts(words: Sequence[str], *, source: str) -> tuple[HostSlots, ...]:
    """Return the hosts of a list.

    Args:
        words: each `NAME:RANKS` or `NAME slots=RANKS`.
        source: where the list comes from, for error messages.

    Raises:
        UserError: a word names no host, a host is named twice, or there is none.
    """
    hosts = []
    for word in words:
        match = _HOST.fullmatch(word.strip())
        if match is None:
            raise UserError(f"this is no host with its ranks. Received: {word!r} in {source}. {_REMEDY}")
        hosts.append(HostSlots(match["name"], int(match["slots"])))
    names = [host.name for host in hosts]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UserError(f"a host is named twice. Received: {twice[0]} in {source}. Write it once, with all its ranks")
    if not hosts:
        raise UserError(f"there is no host. Received: nothing in {source}. {_REMEDY}")
    return tuple(hosts)


def read_host_file(path: Path) -> tuple[HostSlots, ...]:
    """Return the hosts of a host file as horovodrun and mpirun take it; what follows a `#` is for people.

    Raises:
        UserError: the file cannot be read, or a line names no host.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise UserError(f"cannot read the host file: {reason}. Received: {path}. Name a text file") from None
    words = [line.partition("#")[0].strip() for line in lines]
    return parse_hosts([word for word in words if word], source=str(path))


def choose_hosts(hosts: Sequence[HostSlots], *, nodes: int, ranks_per_node: int) -> tuple[HostSlots, ...]:
    """Return the first hosts that take so many ranks each, with just these ranks.

    Raises:
        UserError: there are fewer.
    """
    large = [HostSlots(host.name, ranks_per_node) for host in hosts if host.slots >= ranks_per_node]
    if len(large) < nodes:
        raise UserError(
            f"there are too few hosts. Received: {nodes} nodes of {ranks_per_node} ranks, "
            f"hosts {','.join(map(str, hosts))}. Ask for less, or name more hosts"
        )
    return tuple(large[:nodes])
