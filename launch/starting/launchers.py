"""The commands that start ranks: on this host, on several, within the job of a batch system."""

import math
import os
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from common.config import requested
from common.errors import UserError
from common.run_folder.start_times import STARTED_AT
from common.sites.table import Sites
from common.utils.paths import ROOT
from common.utils.whole_files import read_text
from launch.sites.site_files import LaunchSite, read_launch_site
from launch.sites.values import HOST_NAME, PLAIN_PATH
from launch.starting.processes import has_program, output_of, require_frameworks, require_program
from launch.starting.shell import Shell
from launch.starting.ssh import Ssh, is_this_host, require_hosts

# Variables that ranks need on hosts where mpirun starts them, beside those of MPI and of the site.
_HANDED_ON = (
    "PATH",
    "PYTHONPATH",
    "LD_LIBRARY_PATH",
    "TF_CPP_MIN_LOG_LEVEL",
    "PYTHONUNBUFFERED",
    "HOROVOD_TWINS_CACHE",
)

TASKS_OF_SLURM = "SLURM_NTASKS"
NODES_OF_SLURM = "SLURM_JOB_NUM_NODES"


@dataclass(frozen=True)
class Slots:
    """A host and how many ranks it takes."""

    host: str
    ranks: int

    def __str__(self) -> str:
        return f"{self.host}:{self.ranks}"


def parse_hosts(text: str) -> list[Slots]:
    """Read hosts as horovodrun takes them.

    Args:
        text: "a:2,b:2"; without a number a host takes one rank.

    Raises:
        UserError: it is written otherwise, or names a host twice.
    """
    found = []
    for part in text.split(","):
        host, colon, ranks = part.strip().partition(":")
        if HOST_NAME.fullmatch(host) is None or (colon and not re.fullmatch("[0-9]{1,6}", ranks)):
            raise UserError(f"hosts are written as name:slots. Received: {text}. Write them as node1:4,node2:4")
        if colon and int(ranks) < 1:
            raise UserError(f"a host without slots takes no rank. Received: {part}. Give 1 or more, or leave it out")
        found.append(Slots(host, int(ranks) if colon else 1))
    names = [slots.host for slots in found]
    doubled = [name for name in names if names.count(name) > 1]
    if doubled:
        raise UserError(f"a host is named twice. Received: {doubled[0]} in {text}. Give it all its slots at once")
    return found


def read_host_file(path: Path) -> list[Slots]:
    """Read a host file: a line a host, "node1 slots=4" as for MPI, or "node1:4"; "#" begins a remark.

    Raises:
        UserError: it cannot be read, or a line is written otherwise.
    """
    try:
        lines = read_text(path).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the host file. Received: {path} ({error}). Name a text file") from None
    hosts = [" ".join(line.split("#")[0].split()) for line in lines]
    text = ",".join(host.replace(" slots=", ":") for host in hosts if host)
    if not text:
        raise UserError(f"the host file names no host. Received: {path}. Write lines such as: node1 slots=4")
    return parse_hosts(text)


def slurm_hosts() -> list[Slots]:
    """Return the hosts of the Slurm job that this process runs in, with Slurm's tasks on each.

    Raises:
        UserError: srun does not start there.
    """
    try:
        lines = output_of("srun", "--mpi=none", "--label", "printenv", "SLURMD_NODENAME").splitlines()  # "rank: host"
    except UserError as error:
        raise UserError(f"Slurm does not list the hosts of this job: {error}. Name them: --hosts n1:4,n2:4") from None
    for line in lines:
        if re.fullmatch("[0-9]{1,9}: .+", line) is None:
            raise UserError(f"srun does not list the hosts. Received: {line[:200]!r}. Name them: --hosts n1:4,n2:4")
    tasks = sorted((int(rank), host) for rank, _, host in (line.partition(": ") for line in lines))
    return [Slots(host, count) for host, count in Counter(host for _, host in tasks).items()]


def assign_ranks(hosts: Sequence[Slots], *, np: int, spread: bool) -> list[Slots]:
    """Return the hosts that `np` ranks are started on, each with as many as it gets.

    Args:
        hosts: with all their slots.
        np: number of ranks.
        spread: as evenly as slots allow; else each host is filled before the next.

    Raises:
        UserError: there are too few slots.
    """
    there = sum(host.ranks for host in hosts)
    if np > there:
        raise UserError(f"there are fewer slots than ranks. Received: {np} ranks, {there} slots on "
                        f"{', '.join(map(str, hosts))}. Name more hosts, or more slots")  # fmt: skip
    placed, left = [0] * len(hosts), np
    while left:
        open_hosts = [number for number, host in enumerate(hosts) if placed[number] < host.ranks]
        share = math.ceil(left / len(open_hosts)) if spread else left
        for number in open_hosts:
            taken = min(share, left, hosts[number].ranks - placed[number])
            placed[number] += taken
            left -= taken
    return [Slots(host.host, ranks) for host, ranks in zip(hosts, placed, strict=True) if ranks]


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """How ranks are started.

    Attributes:
        site: where.
        hosts: to use there; none: this one.
        node: the kind of node, as the record of a run names it.
    """

    site: LaunchSite
    hosts: Sequence[Slots] = ()
    node: str = "local"

    @property
    def elsewhere(self) -> str:
        """Where ranks are started that are not of this host alone: hosts, or the site's name; else empty."""
        is_here = not self.hosts and self.site.scheduler == "local"
        return "" if is_here else ",".join(map(str, self.hosts)) or self.site.name

    def slots(self) -> int | None:
        """Return how many ranks fit at once, within a job of Slurm as many as it has tasks; None: as many as wanted."""
        if not self.hosts and self.site.scheduler == "slurm" and TASKS_OF_SLURM in os.environ:
            return int(os.environ[TASKS_OF_SLURM])
        return sum(host.ranks for host in self.hosts) or None

    def words(self, *, np: int | Shell, controller: str | None = None, variables: Collection[str] = ()) -> list[str]:
        """Return the command up to the program that each rank runs.

        Args:
            np: number of ranks; may be a `Shell` word where no hosts are named.
            controller: mpi or gloo, in place of the site's.
            variables: names of further ones that are set and that ranks on all hosts need.

        Raises:
            UserError: there are too few slots, or the site's image cannot be brought to the ranks.
        """
        inside = self.site.container
        if inside and inside.by_srun and controller == "gloo":
            raise UserError("ranks in images of Pyxis are started by srun, over MPI. Received: gloo. Use mpi")
        if controller == "gloo" and not self.hosts and int(os.environ.get(NODES_OF_SLURM, "1")) > 1:
            # Of a job of Slurm, where srun would know them.
            return replace(self, hosts=slurm_hosts()).words(np=np, controller=controller, variables=variables)
        count = np if isinstance(np, Shell) else str(np)
        placed = self.assigned(int(np)) if self.hosts else []
        named = ["-H", ",".join(map(str, placed))] if placed else []
        if self.site.launcher == "srun" and controller != "gloo":
            image = inside.srun_words(current_folder=self.site.project_folder or str(ROOT)) if inside else []
            return ["srun", f"--mpi={self.site.slurm.mpi}", *image, "--ntasks", count]
        if self.site.launcher == "mpirun" and controller != "gloo":
            return ["mpirun", "-np", count, *named, *(self._mpirun_words(variables) if named else [])]
        chosen = controller or (self.site.controller if self.site.scheduler != "local" else None)
        interface = ["--network-interfaces", self.site.network_interface] if self.site.network_interface else []
        reached = self._horovodrun_words(mpi=chosen == "mpi") if named else []
        return ["horovodrun", "-np", count, *named, *reached, *interface, *([f"--{chosen}"] if chosen else [])]

    def assigned(self, np: int) -> list[Slots]:
        """Return the hosts that `np` ranks are started on; none: this one alone, or those that a batch system gives.

        Raises:
            UserError: there are too few slots.
        """
        return assign_ranks(self.hosts, np=np, spread=self.site.hosts.spread) if self.hosts else []

    def check_frameworks(self, frameworks: Iterable[str]) -> None:
        """See whether frameworks can run at the site, and are installed where this environment is theirs.

        Raises:
            UserError: one cannot, or is not.
        """
        self.site.check_frameworks(frameworks)
        if not self.site.container and not self.site.python:
            require_frameworks(frameworks)

    def check(self, *, np: int) -> None:
        """See, before ranks are started, whether what starts them is here and their hosts let it in.

        Raises:
            UserError: too few slots, no launcher, a folder that it cannot hand on, or a host that ssh does not reach.
        """
        if not self._is_one_process(np):
            require_program(self.words(np=np)[0])
        away = [slots.host for slots in self.assigned(np) if not is_this_host(slots.host)]
        if not away:
            return
        folder = str(Path.cwd())
        if PLAIN_PATH.fullmatch(folder) is None:
            raise UserError(
                f"horovodrun does not find this folder on other hosts. Received: {folder!r}. Use one whose path has "
                "letters, digits, '/', '.', '_', '+' and '-' only"
            )
        require_hosts(away, ssh=self.ssh)

    @property
    def ssh(self) -> Ssh:
        """How its hosts are reached."""
        return Ssh(port=self.site.hosts.ssh_port, identity=self.site.hosts.identity_file)

    def _horovodrun_words(self, *, mpi: bool) -> list[str]:
        """Return how horovodrun reaches hosts. Its cache would take a host for reachable, or its addresses for known,
        an hour after they changed."""
        folder = self._mpi_folder() if mpi else None
        return ["--disable-cache", *self.ssh.flags, *([f"--mpi-args=--prefix {folder}"] if folder else [])]

    def _mpirun_words(self, further: Collection[str]) -> list[str]:
        """Return how mpirun reaches hosts, and which variables it hands on, `further` ones among them."""
        interface, folder, flags = self.site.network_interface, self._mpi_folder(), self.ssh.flags
        words = ["--mca", "plm_rsh_args", " ".join(flags)] if flags else []
        words += ["--mca", "btl_tcp_if_include", interface] if interface else []
        words += ["--prefix", folder] if folder else []
        variables = [name for name in _HANDED_ON if name in os.environ]
        variables += [STARTED_AT, *sorted(self.site.environment), *further]
        return [*words, "--bind-to", "none", *(word for name in dict.fromkeys(variables) for word in ("-x", name))]

    def _mpi_folder(self) -> str | None:
        """Return the folder in whose `bin` mpirun looks for its daemon on other hosts, where no PATH leads to it."""
        bin_folder = PurePath(self.site.project_folder or ROOT, self.site.python or sys.executable).parent
        beside = str(bin_folder.parent) if Path(bin_folder, "orted").is_file() else None
        return self.site.hosts.mpi_folder or beside

    def command(
        self,
        program: str,
        *,
        np: int,
        controller: str | None,
        arguments: Sequence[str],
        variables: Collection[str] = (),
    ) -> list[str]:
        """Return the command that starts a trainer on `np` ranks, as one would type it in the current folder."""
        start = [] if self._is_one_process(np) else self.words(np=np, controller=controller, variables=variables)
        return [*start, *self.program_words(program, arguments)]

    def _is_one_process(self, np: int) -> bool:
        """Return whether one rank of this machine is to be started without a launcher, as there is none."""
        return np == 1 and not self.hosts and self.site.scheduler == "local" and not has_program("horovodrun")

    def single_process(self, program: str, *, arguments: Sequence[str]) -> list[str]:
        """Return the command that runs a trainer as one process: without launcher, but where srun brings the image."""
        inside = self.site.container
        return [*(self.words(np=1) if inside and inside.by_srun else []), *self.program_words(program, arguments)]

    def program_words(self, program: str, arguments: Sequence[str]) -> list[str]:
        """Return a trainer's program and arguments, as each rank runs it."""
        return [*self.site.program_words(os.path.relpath(ROOT / program)), *self.recorded_arguments(arguments)]

    def recorded_arguments(self, arguments: Sequence[str]) -> list[str]:
        """Return a trainer's arguments, with the site that its record is to name where that is not this machine.

        A job names it already: it knows which of the site's nodes it is on.
        """
        is_named = self.node == "local" or requested("--site", arguments) is not None
        return [*arguments, *([] if is_named else ["--site", self.node])]


def _is_file(text: str) -> bool:
    with suppress(OSError):  # a list of hosts may be longer than the name of a file may be
        return Path(text).is_file()
    return False


def launcher_at(
    site: str | None, *, hosts: str | None, gpus_per_node: float = 0, machines: Sites | None = None
) -> Launcher:
    """Return how ranks are started at a site by somebody who is there.

    Args:
        site: its name or file; None: this machine, or hosts that are named.
        hosts: "a:2,b:2" or the path of a host file, in place of the site's own; None: the site's.
        gpus_per_node: that its nodes have.
        machines: a table of machines in place of the project's.

    Raises:
        UserError: unknown site, or no such hosts.
    """
    if hosts is not None and not hosts.strip():
        raise UserError("no host is named. Received: --hosts ''. Write them as node1:4,node2:4, or leave it out")
    place = read_launch_site(site if site is not None else "hosts" if hosts else "local", machines=machines)
    named = hosts if hosts is not None else ",".join(place.hosts.names)
    if not named:
        if place.scheduler == "hosts":
            raise UserError(
                f"the site names no hosts. Received: {place.name}. Write them into a site file of your own: under "
                '[launch.hosts] names = ["node1:4", "node2:4"]; commands that have --hosts take them there, too'
            )
        slots: list[Slots] = []
    else:
        slots = read_host_file(Path(named)) if _is_file(named) else parse_hosts(named)
    return Launcher(site=place, hosts=slots, node=place.node_for(int(gpus_per_node))[0])
