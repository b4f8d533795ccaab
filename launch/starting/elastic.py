"""Ranks that come and go (`--elastic`): horovodrun's words, and the file that says which hosts there are."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from common.distributed.launchers import HOST_ALIASES
from common.errors import UserError
from launch.starting.launchers import Launcher
from launch.starting.processes import require_program

# Horovod has one limit for the exchanges of a training and for ranks that start at different speed: below about 5 s
# ranks end that wait for one that still imports its framework.
GLOO_TIMEOUT_SECONDS = 15
# After a rank has ended its host, or its place on this host, is left alone for a while: from, to.
COOLDOWN_SECONDS = (5, 60)
MOST_ALIASES = 64  # the last part of a host's name has at most 63 characters


@dataclass(frozen=True, kw_only=True)
class ElasticStart:
    """How the ranks of an elastic run are started.

    Attributes:
        np: ranks at the start.
        least: the run ends when fewer are left.
        most: it takes no more.
        folder: an existing one, for the file with the hosts.

    Raises:
        UserError: the numbers do not fit together or with the hosts, or the site's ranks cannot come and go.
    """

    launcher: Launcher
    np: int
    least: int
    most: int
    folder: Path

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.np <= self.most:
            raise UserError(
                "the number of ranks lies between the least and the most. Received: "
                f"--min-np {self.least} --np {self.np} --max-np {self.most}. Give them in this order"
            )
        if self.launcher.site.scheduler not in ("local", "hosts"):
            raise UserError(
                "ranks come and go on this machine and on hosts that are named. Received: --elastic --site "
                f"{self.launcher.site.name}. Give --hosts, or leave --elastic out"
            )
        if len(self.launcher.hosts) == 1 and not self.launcher.site.network_interface:
            raise UserError(
                "Horovod looks for a network that two hosts share. Received: --elastic --hosts "
                f"{self.launcher.hosts[0]}. Name another host, too, or leave --hosts out, for this machine"
            )
        if not self.launcher.hosts and self.most > MOST_ALIASES:
            raise UserError(
                f"this machine takes at most {MOST_ALIASES} ranks that come and go. Received: {self.most}. Give a "
                "lower --max-np, or --hosts"
            )
        self.launcher.assigned(self.np)  # hosts for more may be added during the run

    def check(self) -> None:
        """See, before ranks are started, whether all that the run can start with is there.

        Raises:
            UserError: no horovodrun, a folder that it cannot hand on, or a host that ssh does not reach.
        """
        require_program("horovodrun")
        self.launcher.check(np=min(self.most, self.launcher.slots() or self.most))

    @property
    def hosts_file(self) -> Path:
        """The file that lists the hosts there are, which may be changed while the run goes on."""
        return self.folder / "hosts"

    @property
    def variables(self) -> dict[str, str]:
        """Variables of the ranks."""
        return {} if self.launcher.hosts else {HOST_ALIASES: ",".join(aliases_of_this_host(self.most))}

    @property
    def first_hosts(self) -> list[str]:
        """The hosts of the start, each with its slots."""
        return [str(slots) for slots in self.launcher.hosts] or [f"{name}:1" for name in aliases_of_this_host(self.np)]

    def write_files(self) -> None:
        """Write the file with the hosts, and the script by which Horovod asks for them."""
        self.hosts_file.write_text("".join(f"{line}\n" for line in self.first_hosts))
        script = self.folder / "hosts.sh"
        script.write_text(f"#!/bin/sh\nexec cat {shlex.quote(str(self.hosts_file))}\n")
        script.chmod(0o755)

    def words(self) -> list[str]:
        """Return the command up to the program that each rank runs."""
        site = self.launcher.site
        interface = site.network_interface or (None if self.launcher.hosts else "lo")
        return [
            *("horovodrun", "-np", str(self.np), "--min-np", str(self.least), "--max-np", str(self.most)),
            *("--host-discovery-script", str(self.folder / "hosts.sh")),
            *("--gloo-timeout-seconds", str(GLOO_TIMEOUT_SECONDS)),
            *("--blacklist-cooldown-range", *map(str, COOLDOWN_SECONDS)),
            *(["--network-interfaces", interface] if interface else []),
            *(["--disable-cache", *self.launcher.ssh.flags] if self.launcher.hosts else []),
        ]


def aliases_of_this_host(count: int) -> list[str]:
    """Return different names of this host, all of its loopback address: one for each rank.

    Horovod gives up a host with all its ranks when one of them ends; so each rank has a host of its own.
    """
    return ["localhost", *(f"127.0.0.{'0' * number}1" for number in range(count - 1))][:count]
