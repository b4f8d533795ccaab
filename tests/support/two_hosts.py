"""Hosts for tests: each a set of Linux namespaces of its own, with a host name, an address, a network and an sshd.

    with several_hosts(folder, names=["a", "b"], link=Link(bytes_per_second=1e7, latency_seconds=5e-3)) as hosts:
        hosts.run("a", ["ssh", "-p", str(SSH_PORT), "-i", hosts.identity, "b", "hostname"])

The files of this machine are seen from all hosts, as on a cluster with a shared file system; host names, processes,
interfaces, `/etc/hosts` and `/dev/shm` are each host's own. No namespace has a name outside, so that all of it is gone
with the processes that hold it; and those are killed with the thread that has started them, whatever ends it.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
SSH_PORT = 2222
INTERFACE = "net0"  # of every host
PATIENCE_SECONDS = 120.0
_PROGRAMS = ("ip", "nsenter", "setpriv", "ssh", "sshd", "ssh-keygen", "tc", "unshare")
SLOW_SWITCH = ROOT / "tests" / "support" / "slow_switch.py"
_BURST_BYTES = 3000  # two packets: of one, what a late timer misses would be lost
_MOST_PACKETS = 20_000  # that wait at a host: so many that none is lost
# As on a link that nobody else uses: after a pause TCP sends as fast as before. Reno is there in every kernel.
_TCP_SETTINGS = {
    "tcp_congestion_control": "reno",
    "tcp_slow_start_after_idle": "0",
    "tcp_no_metrics_save": "1",
    "tcp_wmem": "4096 4194304 16777216",
    "tcp_rmem": "4096 4194304 16777216",
}
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"

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


@dataclass(frozen=True, kw_only=True)
class Link:
    """What joins each host to the others, in place of a cable that is as fast as memory.

    A message of n bytes takes latency_seconds + n / bytes_per_second, headers of packets counted as bytes.

    Attributes:
        bytes_per_second: that leave a host.
        latency_seconds: of a packet from host to host.
    """

    bytes_per_second: float
    latency_seconds: float


@dataclass(frozen=True)
class Hosts:
    """Hosts that run.

    Attributes:
        processes: name -> process number, seen from outside, of a process in all namespaces of the host.
        addresses: name -> IPv4 address.
        identity: path of the private key that every host accepts.
    """

    processes: Mapping[str, int]
    addresses: Mapping[str, str]
    identity: str

    def command(self, host, command):
        """Return the command that runs another one on a host, in the repository's folder."""
        namespaces = ["--net", "--uts", "--mount", "--pid"]
        return [program("nsenter"), "--target", str(self.processes[host]), *namespaces, f"--wdns={ROOT}", *command]

    def run(self, host, command, *, environment=None):
        """Run a program of the repository's Python on a host and return what it printed."""
        path = f"{Path(sys.executable).parent}:{PATH}"
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

    def running(self, host):
        """Return the command lines of the processes on a host."""
        space = Path(f"/proc/{self.processes[host]}/ns/pid").readlink()
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess, OSError):
                if Path(f"/proc/{process.pid}/ns/pid").readlink() == space and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(" ".join(process.cmdline()))
        return found


def require_namespaces():
    """Skip the test where hosts cannot be made, with the reason."""
    if missing := [name for name in _PROGRAMS if shutil.which(name, path=PATH) is None]:
        pytest.skip(f"hosts need {', '.join(missing)}")
    if os.geteuid() != 0:
        pytest.skip("hosts of namespaces need root")
    tried = subprocess.run([program("unshare"), "--net", "--uts", "--mount", "--pid", "--fork", "true"])
    if tried.returncode:
        pytest.skip("namespaces cannot be made here")


@contextmanager
def several_hosts(folder, *, names, link=None):
    """Make hosts joined by a switch and end them afterwards, with all that runs on them.

    Args:
        folder: for keys, settings and logs of sshd; new or empty.
        names: of the hosts, the first one is where programs are started.
        link: how fast they are joined; None: as fast as this machine carries packets.
    """
    require_namespaces()
    addresses = {name: f"10.77.0.{number}" for number, name in enumerate(names, start=1)}
    identity = _write_ssh_files(folder, addresses)
    with ExitStack() as stack:

        def start(command, name):
            return stack.enter_context(started(command, log=folder / f"{name}.log"))

        holders = {name: start(_in_namespaces(_HOST, name, folder, INTERFACE, program("sshd")), name) for name in names}
        processes = {name: first_inside(holder) for name, holder in holders.items()}
        if link is None:
            switch = first_inside(start(_in_namespaces(_SWITCH), "switch"))
            for name, process in processes.items():
                _plug_in(process, switch, port=f"to-{name}")
        else:
            ends = [f"{process}={addresses[name]}" for name, process in processes.items()]
            delay = link.latency_seconds + _BURST_BYTES / link.bytes_per_second
            start([sys.executable, SLOW_SWITCH, str(delay), INTERFACE, *ends], "switch")
        for name, holder in holders.items():
            holder.stdin.write(f"{addresses[name]}\n")
            holder.stdin.flush()
        for name, process in processes.items():
            log = folder / f"{name}.log"
            wait_until(lambda log=log: "Server listening on" in log.read_text(), shown=log.read_text)
            if link is not None:
                _slow_down(process, link)
        yield Hosts(processes, addresses, str(identity))


def _in_namespaces(script, *words):
    """Return the command that runs a shell script as first process of new namespaces, which end with it."""
    unshared = ["--net", "--uts", "--mount", "--mount-proc", "--pid", "--fork", "--kill-child"]
    return [program("unshare"), *unshared, "sh", "-c", script, "host", *words]


def first_inside(holder):
    """Return the number of the first process in the namespaces that a process has made."""
    (first,) = psutil.Process(holder.pid).children()
    return first.pid


@contextmanager
def started(command, *, log):
    """Start a program, wait until it says that it is ready, and kill it afterwards."""
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [program("setpriv"), "--pdeathsig", "KILL", *command],
            env={**os.environ, "PATH": PATH},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout.readline() == "ready\n", log.read_text()
            yield process
        finally:
            process.kill()


def _slow_down(host, link):
    """Limit what leaves a host, and let TCP use all of it from the first byte on.

    A bucket that has filled up while nothing was sent lets its burst pass at once: the switch takes the time of that.
    """
    rate = f"rate {8 * link.bytes_per_second:.0f}bit burst {_BURST_BYTES}"
    for command in (
        f"ip link set {INTERFACE} txqueuelen {_MOST_PACKETS}",
        f"ip route change 10.77.0.0/24 dev {INTERFACE} initcwnd 1000 initrwnd 1000",
        f"tc qdisc add dev {INTERFACE} root tbf {rate} limit {1500 * _MOST_PACKETS}",
    ):
        _run_inside(host, command.split())
    for name, value in _TCP_SETTINGS.items():
        _run_inside(host, ["sh", "-c", 'echo "$1" > "/proc/sys/net/ipv4/$0"', name, value])


def _plug_in(host, switch, *, port):
    """Lay a cable from a host to a port of the switch, both given by process numbers."""
    cable = ["ip", "link", "add", INTERFACE, "netns", str(host), "type", "veth", "peer", "name", port]
    _run_inside(host, [*cable, "netns", str(switch)])
    _run_inside(switch, ["ip", "link", "set", port, "master", "bridge", "up"])


def _run_inside(host, command):
    """Run a program of this machine in the network of a host."""
    before = [program("nsenter"), "--target", str(host), "--net"]
    subprocess.run([*before, program(command[0]), *command[1:]], check=True)


def _write_ssh_files(folder, addresses):
    """Write what ssh and sshd read on every host; return the path of the key that opens all of them."""
    for key in ("host_key", "identity"):
        subprocess.run([program("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True)
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


def program(name):
    found = shutil.which(name, path=PATH)
    assert found, f"require_namespaces() has looked for {name}"
    return found
