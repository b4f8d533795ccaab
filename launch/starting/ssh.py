"""Commands on other hosts over ssh, on all of them at once and within a limit of time.

No question is ever asked (BatchMode): a host that refuses, is silent or is not known gives a reason, never a hang.
The user's own ~/.ssh/config holds; host keys are checked as it says.
"""

import shlex
import socket
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from common.errors import UserError
from launch.starting.parallel import run_for_hosts
from launch.starting.processes import require_program

CONNECT_SECONDS = 5
ANSWER_SECONDS = 15
CODE_OF_SSH = 255  # its exit code where it is ssh that failed, and not the command
_REMEDIES = {
    "Connection refused": "Start sshd there, or name its port as ssh_port",
    "Permission denied": "Add your public key there to ~/.ssh/authorized_keys, or name the other as identity_file",
    "Host key verification failed": "Connect once by hand and compare the key of the host",
    "Could not resolve hostname": "Correct the name, or add it to /etc/hosts or ~/.ssh/config",
    "No route to host": "See whether it is switched on and joined to this network",
    "timed out": "See whether it is switched on, and whether a firewall lets ssh through",
}


@dataclass(frozen=True, kw_only=True)
class Ssh:
    """How hosts are reached; None: as ~/.ssh/config says.

    Attributes:
        port: of sshd on every host.
        identity: path of the private key.
    """

    port: int | None = None
    identity: str | None = None

    @property
    def flags(self) -> list[str]:
        """Port and key as ssh takes them, and horovodrun, too."""
        return [*(["-p", str(self.port)] if self.port else []), *(["-i", self.identity] if self.identity else [])]

    def command(self, host: str) -> list[str]:
        """Return the command before the words that are to run on a host."""
        # No shared connection: its process would hold our pipes open after the command has ended.
        times = [f"ConnectTimeout={CONNECT_SECONDS}", f"ServerAliveInterval={ANSWER_SECONDS}"]
        options = [word for option in ("BatchMode=yes", "ControlMaster=no", *times) for word in ("-o", option)]
        return ["ssh", *options, *self.flags, host]

    def words(self, host: str, command: Sequence[str], *, limit_seconds: int) -> list[str]:
        """Return the command that runs another one on a host, quoted for the shell there."""
        # A killed ssh does not stop its command on the other host: `timeout` does.
        return [*self.command(host), shlex.join(["timeout", str(limit_seconds), *command])]


def unreachable(hosts: Sequence[str], *, ssh: Ssh) -> list[str]:
    """Return a line for each host that ssh does not reach: what, on which host, how to fix it."""
    commands = {host: ssh.words(host, ["true"], limit_seconds=ANSWER_SECONDS) for host in hosts}
    problems = []
    for host, outcome in run_for_hosts(commands, limit_seconds=ANSWER_SECONDS).items():
        if outcome.code is None:
            problems.append(f"no answer from {host}. Received: nothing within {ANSWER_SECONDS} s. "
                            "See whether it is overloaded")  # fmt: skip
        elif outcome.code == CODE_OF_SSH:
            problems.append(problem_of_ssh(host, outcome.stderr, ssh=ssh))
    return problems


def require_hosts(hosts: Sequence[str], *, ssh: Ssh) -> None:
    """See whether ssh reaches all hosts.

    Raises:
        UserError: it does not, the line speaks of the first one and counts the others; or there is no ssh.
    """
    require_program("ssh")
    problems = unreachable(hosts, ssh=ssh)
    if problems:
        others = f" (and {len(problems) - 1} more of {len(hosts)} hosts)" if len(problems) > 1 else ""
        raise UserError(f"{problems[0]}{others}")


def is_this_host(name: str) -> bool:
    """Return whether a name is this host's, by its addresses, as horovodrun decides which ranks need no ssh."""
    try:
        address = socket.gethostbyname(name)
    except OSError:
        return False
    own = [interface.address for found in psutil.net_if_addrs().values() for interface in found]
    return address in own


def problem_of_ssh(host: str, errors: str, *, ssh: Ssh) -> str:
    """Return the line that says why ssh did not reach a host, from what it printed."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    said = next(
        (line for line in reversed(lines) if any(words in line for words in _REMEDIES)), (lines or ["nothing"])[-1]
    )
    remedy = next((remedy for words, remedy in _REMEDIES.items() if words in said), f"Try `ssh {host}` by hand")
    port = f", port {ssh.port}" if ssh.port else ""
    return f"ssh does not reach {host}{port}. Received: {said.rstrip('.')}. {remedy}"
