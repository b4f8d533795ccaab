"""Hosts for tests: each a set of Linux namespaces of its own, with a host name, an address, a network and an sshd.

    with several_hosts(folder, names=["a", "b"]) as hosts:
        hosts.run("a", ["ssh", "-p", str(SSH_PORT), "-i", hosts.identity, "b", "hostname"])

The files of this machine are seen from all hosts, as on a cluster with a shared file system; host names, processes,
interfaces, `/etc/hosts` and `/dev/shm` are each host's own. No namespace has a name outside, so that all of it is gone
with the processes that hold it; and those are killed with the thread that has started them, whatever ends it.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil
import pytest

ROOT = Path(__file__).resolve().parent.parent
SSH_PORT = 2222
INTERFACE = "net0"  # of every host
PATIENCE_SECONDS = 120.0
_PROGRAMS = ("ip", "nsenter", "setpriv", "ssh", "sshd", "ssh-keygen", "unshare")
_PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"

# What a host does first, from inside; then it waits for its cable, which is plugged in from outside.
_HOST = """
set -eu
hostname "$1"; folder=$2
mount --make-rprivate /
mount -t tmpfs tmpfs /run && mkdir -m 0755 /run/sshd
mount -t tmpfs tmpfs /dev/shm
mount --bind "$folder/hosts" /etc/hosts
mount --bind "$folder/ssh_config" /etc/ssh/ssh_config
mount --bind "$folder/shadow" /etc/shadow
echo ready
read -r address
ip link set lo up
ip address add "$address/24" dev "$3"
ip link set "$3" up
exec "$4" -D -e -f "$folder/sshd_config"
"""
_SWITCH = """
set -eu
ip link add bridge type bridge
ip link set bridge up
echo ready
exec sleep infinity
"""


@dataclass(frozen=True)
class Hosts:
    """Hosts that run.

    Attributes:
        processes: name -> process number, seen from outside, of a process in all namespaces of the host.
        addresses: name -> IPv4 address.
        switch: process number of a process in the network namespace of the switch between them.
        identity: path of the private key that every host accepts.
    """

    processes: Mapping[str, int]
    addresses: Mapping[str, str]
    switch: int
    identity: str

    def command(self, host: str, command: Sequence[str]) -> list[str]:
        """Return the command that runs another one on a host, in the current folder."""
        namespaces = ["--net", "--uts", "--mount", "--pid"]
        return [_program("nsenter"), "--target", str(self.processes[host]), *namespaces, f"--wd={Path.cwd()}", *command]

    def run(
        self, host: str, command: Sequence[str], *, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of the repository's Python on a host and return what it printed."""
        path = f"{Path(sys.executable).parent}:{_PATH}"
        variables = {**os.environ, "PATH": path, "TF_CPP_MIN_LOG_LEVEL": "3", **(environment or {})}
        return subprocess.run(
            self.command(host, command),
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=4 * PATIENCE_SECONDS,
        )


def require_namespaces() -> None:
    """Skip the test where hosts cannot be made, with the reason."""
    missing = [name for name in _PROGRAMS if shutil.which(name, path=_PATH) is None]
    if missing:
        pytest.skip(f"hosts need {', '.join(missing)}")
    if os.geteuid() != 0:
        pytest.skip("hosts of namespaces need root")
    tried = subprocess.run([_program("unshare"), "--net", "--uts", "--mount", "--pid", "--fork", "true"])
    if tried.returncode:
        pytest.skip("namespaces cannot be made here")


@contextmanager
def several_hosts(folder: Path, *, names: Sequence[str]) -> Iterator[Hosts]:
    """Make hosts joined by a switch and end them afterwards, with all that runs on them.

    Args:
        folder: for keys, settings and logs of sshd; new or empty.
        names: of the hosts, the first one is where programs are started.
    """
    require_namespaces()
    addresses = {name: f"10.77.0.{number}" for number, name in enumerate(names, start=1)}
    identity = _write_ssh_files(folder, addresses)
    with ExitStack() as stack:
        switch = stack.enter_context(_held("switch", [_SWITCH], log=folder / "switch.log"))
        processes = {}
        for name in names:
            words = [_HOST, name, str(folder), INTERFACE, _program("sshd")]
            host = stack.enter_context(_held(name, words, log=folder / f"{name}.log"))
            processes[name] = host.number
            _plug_in(host.number, switch.number, port=f"to-{name}")
            host.orders.write(f"{addresses[name]}\n")
            host.orders.flush()
        for name in names:
            _wait_for_line(folder / f"{name}.log", "Server listening on")
        yield Hosts(processes, addresses, switch.number, str(identity))


@dataclass(frozen=True)
class _Holder:
    """A process that holds namespaces: its number, and what it reads."""

    number: int
    orders: IO[str]


@contextmanager
def _held(name: str, words: Sequence[str], *, log: Path) -> Iterator[_Holder]:
    """Start a shell script as first process of new namespaces; kill them afterwards, with all processes in them."""
    unshared = ["--net", "--uts", "--mount", "--mount-proc", "--pid", "--fork", "--kill-child"]
    command = [
        *(_program("setpriv"), "--pdeathsig", "KILL"),
        *(_program("unshare"), *unshared, "sh", "-c", words[0], f"host {name}", *words[1:]),
    ]
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command,
            env={**os.environ, "PATH": _PATH},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdin and process.stdout
            if process.stdout.readline() != "ready\n":
                raise RuntimeError(f"the host {name} did not start: {log.read_text()}")
            (first,) = psutil.Process(process.pid).children()
            yield _Holder(first.pid, process.stdin)
        finally:
            process.kill()


def _plug_in(host: int, switch: int, *, port: str) -> None:
    """Lay a cable from a host to a port of the switch, both given by process numbers."""
    _ip("link", "add", INTERFACE, "netns", str(host), "type", "veth", "peer", "name", port, "netns", str(switch))
    _ip("link", "set", port, "master", "bridge", "up", inside=switch)


def _ip(*words: str, inside: int | None = None) -> None:
    before = [_program("nsenter"), "--target", str(inside), "--net"] if inside else []
    subprocess.run([*before, _program("ip"), *words], check=True)


def _write_ssh_files(folder: Path, addresses: Mapping[str, str]) -> Path:
    """Write what ssh and sshd read on every host; return the path of the key that opens all of them."""
    for key in ("host_key", "identity"):
        subprocess.run([_program("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True)
    lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in addresses.items())]
    (folder / "hosts").write_text("\n".join(lines) + "\n")
    (folder / "shadow").write_text("root:*:19000:0:99999:7:::\n")  # sshd refuses an account that is locked
    public = (folder / "host_key.pub").read_text()
    (folder / "known_hosts").write_text("".join(f"[{name}]:{SSH_PORT} {public}" for name in addresses))
    (folder / "ssh_config").write_text(f"Host *\n  UserKnownHostsFile {folder}/known_hosts\n")
    (folder / "sshd_config").write_text(
        f"Port {SSH_PORT}\nHostKey {folder}/host_key\nAuthorizedKeysFile {folder}/identity.pub\n"
        "PermitRootLogin prohibit-password\nPasswordAuthentication no\nStrictModes no\nUsePAM no\nPidFile none\n"
    )
    return folder / "identity"


def _wait_for_line(log: Path, words: str) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while words not in log.read_text():
        if time.monotonic() > end:
            raise RuntimeError(f"no sshd: {log.read_text()}")
        time.sleep(0.02)


def _program(name: str) -> str:
    found = shutil.which(name, path=_PATH)
    assert found, f"require_namespaces() has looked for {name}"
    return found
