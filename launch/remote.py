"""Commands on other hosts over ssh, on all of them at once and within a limit of time.

No question is ever asked (BatchMode): a host that refuses, is silent or is not known gives a reason, never a hang.
The user's own ~/.ssh/config holds; host keys are checked as it says.
"""

import os
import shlex
import socket
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import psutil

from common.errors import UserError

CONNECT_SECONDS = 5
CODE_OF_SSH = 255  # its exit code where it is ssh that failed, and not the command
_REMEDIES = {
    "Connection refused": "Start sshd there, or name its port as ssh_port",
    "Permission denied": "Add your public key to ~/.ssh/authorized_keys there, or name the private one as ssh_identity",
    "Host key verification failed": "Connect once by hand and compare the key of the host",
    "Could not resolve hostname": "Mend the name, or add it to /etc/hosts or ~/.ssh/config",
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

    def command(self, host: str) -> list[str]:
        """Return the command before the words that are to run on a host."""
        # No connection is begun for others to share: its process would hold our pipes open after the command has ended.
        options = ["BatchMode=yes", f"ConnectTimeout={CONNECT_SECONDS}", "ControlMaster=no"]
        flags = [word for option in options for word in ("-o", option)]
        flags += ["-p", str(self.port)] if self.port else []
        flags += ["-i", self.identity] if self.identity else []
        return ["ssh", *flags, host]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came back from a host.

    Attributes:
        code: exit code of the command; None: it was not run, or not to its end.
        problem: why not, in one line: what, on which host, how to mend it; None: it was run.
    """

    host: str
    code: int | None
    output: str
    errors: str
    problem: str | None


def run_on_hosts(hosts: Sequence[str], command: Sequence[str], *, ssh: Ssh, limit_seconds: float) -> list[Answer]:
    """Run a command on all hosts at once, on this one without ssh; return the answers in the order of hosts.

    Args:
        hosts: names or addresses.
        command: its words, quoted here for the other side's shell.
        ssh: how to reach them.
        limit_seconds: for each; what takes longer is ended, here and there.
    """
    with ThreadPoolExecutor(max_workers=max(1, len(hosts))) as threads:
        return list(threads.map(lambda host: _run_on(host, command, ssh=ssh, limit_seconds=limit_seconds), hosts))


def unreachable(hosts: Sequence[str], *, ssh: Ssh) -> list[str]:
    """Return a line for each host that ssh does not reach: what, on which host, how to mend it."""
    answers = run_on_hosts(hosts, ["true"], ssh=ssh, limit_seconds=3 * CONNECT_SECONDS)
    return [answer.problem for answer in answers if answer.problem]


def require_hosts(hosts: Sequence[str], *, ssh: Ssh) -> None:
    """See whether ssh reaches all hosts.

    Raises:
        UserError: it does not; the line speaks of the first one and counts the others.
    """
    problems = unreachable(hosts, ssh=ssh)
    if problems:
        others = f" (and {len(problems) - 1} more of {len(hosts)} hosts)" if len(problems) > 1 else ""
        raise UserError(f"{problems[0]}{others}")


def is_this_host(name: str) -> bool:
    """Return whether a name is this host's, by its addresses: as horovodrun tells which ranks need no ssh."""
    try:
        address = socket.gethostbyname(name)
    except OSError:
        return False
    own = [interface.address for found in psutil.net_if_addrs().values() for interface in found]
    return address in own


def _run_on(host: str, command: Sequence[str], *, ssh: Ssh, limit_seconds: float) -> Answer:
    # An ssh that is killed leaves its command running on the other side: there `timeout` ends it.
    there = [*ssh.command(host), shlex.join(["timeout", f"{limit_seconds:g}", *command])]
    words = list(command) if is_this_host(host) else there
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_seconds,
            env={**os.environ, "LC_ALL": "C"},  # for the remedies: messages in the words that are known
        )
    except subprocess.TimeoutExpired:
        problem = f"no answer from {host}. Received: nothing within {limit_seconds:g} s. See whether it is overloaded"
        return Answer(host=host, code=None, output="", errors="", problem=problem)
    except FileNotFoundError:
        problem = f"{words[0]} is not installed. Received: host {host}. Install it"
        return Answer(host=host, code=None, output="", errors="", problem=problem)
    if done.returncode == CODE_OF_SSH and words[0] == "ssh":
        return Answer(
            host=host, code=None, output="", errors=done.stderr, problem=problem_of_ssh(host, done.stderr, ssh=ssh)
        )
    return Answer(host=host, code=done.returncode, output=done.stdout, errors=done.stderr, problem=None)


def problem_of_ssh(host: str, errors: str, *, ssh: Ssh) -> str:
    """Return the line that says why ssh did not reach a host, from what it printed."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    said = next(
        (line for line in reversed(lines) if any(words in line for words in _REMEDIES)), (lines or ["nothing"])[-1]
    )
    remedy = next((remedy for words, remedy in _REMEDIES.items() if words in said), f"Try `ssh {host}` by hand")
    port = f", port {ssh.port}" if ssh.port else ""
    return f"ssh does not reach {host}{port}. Received: {said.rstrip('.')}. {remedy}"
