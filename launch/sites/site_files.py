"""How jobs are started at a site: one TOML file per site, shipped or your own.

    [launch]             what `LaunchSite` names; `[launch.slurm]`, `[launch.hosts]`, ...: what one scheduler needs
    [sites.NAME]         kinds of node, as in `common/sites/sites.toml`, with `[gpus.NAME]`, where that table lacks them

`--site` takes the name of a shipped file or the path of another.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from common.errors import UserError
from common.json_records import Record, validated
from common.sites.table import LAUNCH_TABLE, Site, Sites, read_sites
from common.utils.printable import suggestion
from common.utils.whole_files import read_toml
from launch.sites.container import ContainerOptions
from launch.sites.options import HostsOptions, KubernetesOptions, SkyPilotOptions, SlurmOptions, SoftwareOptions
from launch.sites.values import Line, PlainPath, SiteName, Text, VariableName

SITE_FILES = Path(__file__).parent

Framework = Literal["torch", "keras"]
Scheduler = Literal["local", "hosts", "slurm", "skypilot", "kubernetes"]


@dataclass(frozen=True, kw_only=True)
class LaunchSite(Record):
    """A place where jobs are started.

    Attributes:
        name: of the file.
        kind: the kind of node asked for by `NAME:KIND`; empty: the first with enough GPUs.
        title, source, checked: what it is, the source, and the date of the last check.
        scheduler: the program that starts jobs.
        launcher: the program that starts their ranks.
        controller: how ranks coordinate: mpi or gloo; on GPUs, NCCL exchanges the gradients.
        nodes: kinds of node available, by their names in the table of machines, from few GPUs to many.
        python: the interpreter there; a relative path starts at the project's folder. None: `.venv/bin/python` on
            machines that the job sets up, else the one that submits, as nodes see the same folders.
        project_folder: of the project there; None: where the command is given.
        runs_folder: folder of the run folders there; None: `runs` in the project's folder.
        data_folder: cache of data sets there; None: the user's own.
        scratch_folder: for temporary files.
        architecture: of its nodes, as `uname -m` prints it.
        refuses: frameworks that cannot run there, each with the reason and what to do.
        internet: whether nodes reach it; otherwise data must be copied there first.
        network_interface: used between ranks; None: Horovod and MPI choose.
        setup: lines of shell that a job runs before anything else, such as "source /etc/profile.d/modules.sh".
        environment: variables to set, before modules are loaded.
        modules: environment modules to load, in this order.
        purge: whether all other modules are unloaded first.
        file: where it was read from.
        known: a table of machines that replaces this file's.
    """

    title: Line
    source: Line
    checked: date
    scheduler: Scheduler
    nodes: Annotated[list[Line], Field(min_length=1)]
    launcher: Literal["horovodrun", "mpirun", "srun"] = "horovodrun"
    controller: Literal["mpi", "gloo"] = "mpi"
    python: Line | None = None
    project_folder: Line | None = None
    runs_folder: Line | None = None
    data_folder: Line | None = None
    scratch_folder: Line | None = None
    architecture: Line = "x86_64"
    refuses: dict[Framework, Text] = field(default_factory=dict)
    internet: bool = True
    network_interface: PlainPath | None = None
    setup: list[Text] = field(default_factory=list)
    environment: dict[VariableName, Line] = field(default_factory=dict)
    modules: list[Line] = field(default_factory=list)
    purge: bool = True
    hosts: HostsOptions = field(default_factory=HostsOptions)
    slurm: SlurmOptions = field(default_factory=SlurmOptions)
    skypilot: SkyPilotOptions = field(default_factory=SkyPilotOptions)
    kubernetes: KubernetesOptions = field(default_factory=KubernetesOptions)
    container: ContainerOptions | None = None
    software: SoftwareOptions | None = None
    name: SiteName = ""
    kind: Line = ""
    file: Line = ""
    known: Sites | None = None

    def __post_init__(self) -> None:
        """Check what pydantic cannot see in a single value.

        Raises:
            UserError: two values do not go together.
        """
        if self.launcher == "srun" and self.scheduler != "slurm":
            raise UserError(f"srun needs Slurm. Received: scheduler {self.scheduler}. Use mpirun or horovodrun")
        if self.controller == "gloo" and self.launcher != "horovodrun":
            raise UserError(f"only horovodrun starts Gloo. Received: launcher {self.launcher}. Use horovodrun, or mpi")
        if self.container and self.scheduler not in ("local", "hosts", "slurm"):
            raise UserError(f"{self.scheduler} has an image of its own. Received: [launch.container]. Leave it out")
        if self.container and self.container.by_srun and self.launcher != "srun":
            raise UserError(f"Pyxis is a plugin of srun. Received: launcher {self.launcher}. Use srun")

    @cached_property
    def machines(self) -> Sites:
        """The table of machines, the project's with this file's entries added."""
        return self.known or read_sites(Path(self.file))

    @property
    def variables(self) -> dict[str, str]:
        """Variables that a job sets there: folders that programs read from variables, and `environment`."""
        folders = {"HOROVOD_TWINS_CACHE": self.data_folder, "TMPDIR": self.scratch_folder}
        return {name: path for name, path in folders.items() if path} | self.environment

    def program_words(self, program: str) -> list[str]:
        """Return a trainer's program as each rank runs it; in the container, where the site has one.

        Args:
            program: its path from the current folder.
        """
        return self.container.program_words(program) if self.container else ["python", program]

    @property
    def reference(self) -> str:
        """What to give as `--site` to mean this site, from any folder."""
        name = str(Path(self.file).resolve()) if self.is_own else self.name
        return f"{name}:{self.kind}" if self.kind else name

    @property
    def is_own(self) -> bool:
        """Whether it is a file of the user's own, which other machines lack."""
        return not self.known and Path(self.file).resolve().parent != SITE_FILES

    def check_frameworks(self, frameworks: Iterable[str]) -> None:
        """See whether frameworks can run there.

        Raises:
            UserError: one cannot.
        """
        for framework, advice in self.refuses.items():
            if framework in frameworks:
                raise UserError(f"{framework} cannot run there. Received: --site {self.name}. {advice}")

    def node_for(self, gpus_per_node: int) -> tuple[str, Site]:
        """Return the first kind of node with that many GPUs or more; a node whose GPUs are unknown is accepted.

        Raises:
            UserError: no node has that many.
        """
        machines = self.machines
        kinds = [(name, machines[name]) for name in self.nodes]
        for name, node in kinds:
            if node.gpus >= gpus_per_node or (node.gpu is None and node.processor is None):
                return name, node
        most = max(node.gpus for _, node in kinds)
        raise UserError(
            f"no node of {self.name} has that many GPUs. Received: --gpus-per-node {gpus_per_node}. "
            f"Give {most} or fewer, and more --nodes"
        )


_OPTIONS = {"hosts", "slurm", "skypilot", "kubernetes"}


def shipped_sites() -> list[str]:
    """Return the names of the sites that come with the project."""
    return sorted(path.stem for path in SITE_FILES.glob("*.toml"))


def read_launch_site(name: str, *, machines: Sites | None = None) -> LaunchSite:
    """Read and check a site.

    Args:
        name: of a shipped site; the path of your own file; either with `:KIND`, one of its kinds of node; or of a kind
            of node in the table of machines, whose ranks are then started as on this machine.
        machines: that table; None: the project's.

    Raises:
        UserError: there is no such site, or its file is invalid.
    """
    base, colon, kind = name.rpartition(":")
    if colon and not name.endswith(".toml"):
        site = read_launch_site(base, machines=machines)
        chosen = [node for node in site.nodes if kind in (node, node.removeprefix(f"{site.name}-"))]
        if not chosen:
            raise UserError(f"{site.name} has no such kind of node. Received: {name}. Use {', '.join(site.nodes)}")
        return replace(site, nodes=chosen, kind=kind)
    if name in shipped_sites():
        return _read(SITE_FILES / f"{name}.toml")
    if name.endswith(".toml"):
        return _read(Path(name))
    machines = machines or read_sites()
    if name in machines.sites:
        node, local = machines[name], _read(SITE_FILES / "local.toml")
        return replace(local, name=name, title=node.title, source=node.source, nodes=[name], known=machines)
    meant = suggestion(name, [*shipped_sites(), *machines.sites])
    raise UserError(
        f"unknown site. Received: {name or repr(name)}. {meant}`python -m launch sites` shows all; a file of your own "
        "ends in .toml"
    )


def _read(path: Path) -> LaunchSite:
    content = read_toml(path, what="site")
    table = content.get(LAUNCH_TABLE)
    if not isinstance(table, dict):
        raise UserError(f"{path} has no table [{LAUNCH_TABLE}]. Received: {', '.join(content)}. Correct the file")
    table |= {"name": path.stem, "file": str(path)}
    site = validated(LaunchSite, table, place=path, what="a valid site", remedy="Correct the file")
    _check(site, tables=_OPTIONS & set(table))
    return site


def _check(site: LaunchSite, *, tables: set[str]) -> None:
    foreign = tables - {site.scheduler}
    if foreign:
        raise UserError(f"{site.file} is not a valid site: its scheduler is {site.scheduler}. "
                        f"Received: [launch.{min(foreign)}]. Leave that table out")  # fmt: skip
    machines = site.machines
    for node in site.nodes:
        if node not in machines.sites:
            raise UserError(f"{site.file} is not a valid site: a node is not in the table of machines. "
                            f"Received: {node}. Add [sites.{node}], or use one of the table")  # fmt: skip
