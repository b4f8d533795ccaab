"""How jobs are started at a site: one TOML file per site, shipped or your own.

    [launch]             what `LaunchSite` names; `[launch.slurm]`, `[launch.hosts]`, ...: what one scheduler needs
    [sites.NAME]         kinds of node, as in `common/sites/sites.toml`, with `[gpus.NAME]`, where that table lacks them

`--site` takes the name of a shipped file or the path of another. All values are rendered into scripts: each text must
be one line, and secrets are refused.
"""

import difflib
import json
import re
import tomllib
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError

from common.errors import UserError, first_problem
from common.sites.table import LAUNCH_TABLE, Site, Sites, read_sites
from common.utils.command_line import MOST

SITE_FILES = Path(__file__).parent
_STRICT = ConfigDict(extra="forbid")
_SECRETS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE")
# Launchers put host names and paths into lines for shells as they are; a leading hyphen would be a flag of ssh.
HOST_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*", flags=re.ASCII)
PLAIN_PATH = re.compile(r"[\w/.+@=,:~-]+")

Scheduler = Literal["local", "hosts", "slurm", "skypilot", "kubernetes"]


def _one_line(text: str) -> str:
    if re.search(r"[\x00-\x1f\x7f]", text):
        raise ValueError("a text must be one line without control characters")
    return text


def _no_secret(name: str) -> str:
    if any(secret in name.upper() for secret in _SECRETS):
        raise ValueError("scripts would show this secret to everybody: use the cloud's secret store, or your own shell")
    return name


Line = Annotated[str, AfterValidator(_one_line)]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$"), AfterValidator(_no_secret)]
Slots = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*(:[1-9][0-9]*)?$")]
PlainPath = Annotated[str, Field(pattern=rf"^{PLAIN_PATH.pattern}$")]
# Of Kubernetes, as IsDNS1123Label, IsDNS1123Subdomain and IsValidLabelValue of k8s.io/apimachinery.
_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
Label = Annotated[str, Field(pattern=rf"^{_LABEL}$", max_length=63)]
Subdomain = Annotated[str, Field(pattern=rf"^{_LABEL}(\.{_LABEL})*$", max_length=253)]
LabelValue = Annotated[str, Field(pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$", max_length=63)]
MountPath = Annotated[str, Field(pattern=r"^(/[^/:\x00-\x1f]+)+$")]
Bind = Annotated[str, Field(pattern=r"^/[^,\x00-\x1f\x7f]*$")]
Image = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@-]*$")]
Memory = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,8}[KMGT]?)$")]
Positive = Annotated[int, Field(gt=0, le=MOST)]
PositiveFloat = Annotated[float, Field(gt=0, le=MOST)]


@dataclass(frozen=True, kw_only=True)
class HostsOptions:
    """Several plain hosts, reached by ssh from the first.

    Attributes:
        names: each "host:slots"; without slots one rank fits.
        spread: share the ranks out evenly; else a host is filled before the next is used.
        ssh_port, identity_file: for ssh; None: as its own configuration says.
        mpi_folder: its `bin` contains Open MPI's programs on every host; None: the interpreter's folder if they are
            there, otherwise the PATH of each host.
    """

    __pydantic_config__ = _STRICT
    names: list[Slots] = field(default_factory=list)
    spread: bool = False
    ssh_port: Annotated[int, Field(gt=0, lt=2**16)] | None = None
    identity_file: PlainPath | None = None
    mpi_folder: PlainPath | None = None


@dataclass(frozen=True, kw_only=True)
class SlurmOptions:
    """Options of a batch script besides nodes, tasks and time. None: the cluster's default.

    Attributes:
        gres: name of the GPUs in `--gres=NAME:COUNT`.
        mpi: how `srun` joins ranks: a word of `srun --mpi=list`.
        cores_per_gpu: logical cores per GPU; None: the node's cores / its GPUs where the table of machines has them,
            else 8. Jobs without GPUs get all cores of the node that the table has, else Slurm's default, 1 per rank.
        memory: of each node, as `--mem` takes it: "240G", "0" for all; None: the cluster's default.
        max_hours: longest time limit that the cluster allows.
        requeue: whether a job is requeued shortly before its time limit.
        notice_seconds: seconds before the limit at which it receives the signal.
        extra: further options of sbatch, each a line `#SBATCH` of its own: "--exclusive", "--reservation=NAME".
    """

    __pydantic_config__ = _STRICT
    partition: Line | None = None
    account: Line | None = None
    qos: Line | None = None
    constraint: Line | None = None
    gres: Line = "gpu"
    mpi: Line = "pmix"
    cores_per_gpu: Positive | None = None
    memory: Memory | None = None
    max_hours: PositiveFloat | None = None
    requeue: bool = True
    notice_seconds: Annotated[int, Field(ge=0, lt=2**16)] = 120
    extra: list[Line] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class SkyPilotOptions:
    """Machines rented for the job.

    Attributes:
        cloud, region: where; region None: the cheapest.
        spot: whether to use spot machines, which are cheaper and may be taken away.
        autostop_minutes: minutes without a job after which they stop; stopped machines cost only their disks.
        disk_gb: of each, 10^9 bytes.
        image: a container image that holds the project, at `project_folder`; None: the cloud's own, and the project as
            it is here, set up there.
        bucket: a store for files that outlive the machines, such as "s3://name", seen there as the folder /bucket.
    """

    __pydantic_config__ = _STRICT
    cloud: Line = "aws"
    region: Line | None = None
    spot: bool = False
    autostop_minutes: Positive = 10
    disk_gb: Positive = 256
    image: Line | None = None
    bucket: Annotated[str, Field(pattern=r"^[a-z0-9]+://[A-Za-z0-9][A-Za-z0-9_./-]*$")] | None = None


@dataclass(frozen=True, kw_only=True)
class Toleration:
    """A taint of nodes that pods tolerate, with the rules of Kubernetes.

    Attributes:
        key: of the taint; None: of every taint.
        operator: Exists: whatever its value.
        effect: None: every effect.
    """

    __pydantic_config__ = _STRICT
    key: Line | None = None
    operator: Literal["Equal", "Exists"] = "Equal"
    value: LabelValue | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None

    def __post_init__(self) -> None:
        """Check what the API would refuse.

        Raises:
            ValueError: the operator does not go with key or value.
        """
        if self.operator == "Exists" and self.value is not None:
            raise ValueError("a toleration of operator Exists has no value")
        if self.operator == "Equal" and self.key is None:
            raise ValueError("a toleration without key needs operator Exists")


@dataclass(frozen=True, kw_only=True)
class KubernetesOptions:
    """An MPIJob of the MPI Operator.

    Attributes:
        namespace: where it is created.
        image: holds the project, at `project_folder`, and sshd.
        volume_claim: of the volume for runs and data; created if it does not exist.
        volume_path: where pods see it.
        volume_gb, storage_class: of a volume that is created; 10^9 bytes; None: the cluster's default class.
        cpus_per_rank, memory_gb_per_rank: requested by each worker; gigabytes of 10^9 bytes.
        ssh_path: folder of ssh's keys in the image, of the user that runs in it.
        group_id: group of that user, which gets write access to the volume; None: the image runs as root.
        node_selector: labels of the nodes to use.
        tolerations: taints of nodes that all pods tolerate.
        pull_secrets: names of the secrets by which images are pulled.
        service_account: of all pods; None: the namespace's default.
        queue: local queue of Kueue, which starts the job when there is room; None: no queue.
    """

    __pydantic_config__ = _STRICT
    namespace: Label = "default"
    image: Image = "horovod-twins:latest"
    volume_claim: Subdomain = "horovod-twins"
    volume_path: MountPath = "/volume"
    volume_gb: Positive = 100
    storage_class: Subdomain | None = None
    cpus_per_rank: Positive = 4
    memory_gb_per_rank: Annotated[float, Field(ge=0.1, le=MOST)] = 16.0
    ssh_path: MountPath = "/home/mpiuser/.ssh"
    group_id: Annotated[int, Field(ge=0, lt=2**31)] | None = 1000
    node_selector: dict[Line, LabelValue] = field(default_factory=dict)
    tolerations: list[Toleration] = field(default_factory=list)
    pull_secrets: list[Subdomain] = field(default_factory=list)
    service_account: Subdomain | None = None
    queue: Label | None = None


@dataclass(frozen=True, kw_only=True)
class ContainerOptions:
    """The image in which ranks run; the launcher runs outside it.

    Attributes:
        runtime: pyxis: Slurm's plugin for Enroot; `srun` then starts the ranks in the image.
        image: its file, or what the runtime takes instead; of Pyxis "REGISTRY#IMAGE:TAG".
        folder: of the project inside.
        binds: host folders visible inside besides the current one, each "HOST_PATH" or "HOST_PATH:PATH".
        gpu: whether NVIDIA's driver is passed through (`--nv`); Enroot passes it through by itself.
    """

    __pydantic_config__ = _STRICT
    runtime: Literal["apptainer", "singularity", "pyxis"] = "apptainer"
    image: Line
    folder: Line = "/opt/horovod-twins"
    binds: list[Bind] = field(default_factory=list)
    gpu: bool = False


@dataclass(frozen=True, kw_only=True)
class LaunchSite:
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
        internet: whether nodes reach it; otherwise data must be copied there first.
        network_interface: used between ranks; None: Horovod and MPI choose.
        setup: lines of shell that a job runs before anything else, such as "source /etc/profile.d/modules.sh".
        environment: variables to set, before modules are loaded.
        modules: environment modules to load, in this order.
        purge: whether all other modules are unloaded first.
        file: where it was read from.
        known: a table of machines that replaces this file's.
    """

    __pydantic_config__ = _STRICT
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
    internet: bool = True
    network_interface: PlainPath | None = None
    setup: list[Line] = field(default_factory=list)
    environment: dict[VariableName, Line] = field(default_factory=dict)
    modules: list[Line] = field(default_factory=list)
    purge: bool = True
    hosts: HostsOptions = field(default_factory=HostsOptions)
    slurm: SlurmOptions = field(default_factory=SlurmOptions)
    skypilot: SkyPilotOptions = field(default_factory=SkyPilotOptions)
    kubernetes: KubernetesOptions = field(default_factory=KubernetesOptions)
    container: ContainerOptions | None = None
    name: Annotated[str, Field(pattern=r"^[\w.+-]{1,100}$")] = ""
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
        if self.container and self.uses_pyxis:
            if self.launcher != "srun":
                raise UserError(f"Pyxis is a plugin of srun. Received: launcher {self.launcher}. Use srun")
            blank = [bind for bind in self.container.binds if " " in bind]
            if blank:
                raise UserError(f"Pyxis takes no blank in a path. Received: binds {blank[0]!r}. Use another folder")

    @property
    def machines(self) -> Sites:
        """The table of machines, the project's with this file's entries added."""
        return self.known or read_sites(Path(self.file))

    @property
    def variables(self) -> dict[str, str]:
        """Variables that a job sets there: folders that programs read from variables, and `environment`."""
        folders = {"HOROVOD_TWINS_CACHE": self.data_folder, "TMPDIR": self.scratch_folder}
        return {name: path for name, path in folders.items() if path} | self.environment

    @property
    def uses_pyxis(self) -> bool:
        """Whether srun starts the ranks in an image."""
        return self.container is not None and self.container.runtime == "pyxis"

    def program_words(self, program: str) -> list[str]:
        """Return a trainer's program as each rank runs it; in the container, where the site has one.

        Args:
            program: its path from the current folder.
        """
        inside = self.container
        if inside is None:
            return ["python", program]
        words = ["python", str(PurePosixPath(inside.folder, *PurePosixPath(program).parts[-2:]))]
        if self.uses_pyxis:
            return words
        binds = [word for bind in inside.binds for word in ("--bind", bind)]
        return [inside.runtime, "exec", *(["--nv"] if inside.gpu else []), *binds, inside.image, *words]

    def pyxis_words(self, *, current_folder: str) -> list[str]:
        """Return the options of srun by which ranks run in the site's container; none where that is not by Pyxis.

        Args:
            current_folder: which ranks see inside by the same name.

        Raises:
            UserError: Pyxis would misread the folder.
        """
        inside = self.container
        if inside is None or not self.uses_pyxis:
            return []
        if re.search(r"[ ,:]", current_folder):
            raise UserError(
                f"Pyxis takes no blank, ',' and ':' in a path. Received: {current_folder}. Use another folder"
            )
        mounts = ",".join([current_folder, *inside.binds])
        return [f"--container-image={inside.image}", f"--container-mounts={mounts}",
                f"--container-workdir={current_folder}"]  # fmt: skip

    @property
    def reference(self) -> str:
        """What to give as `--site` to mean this site, from any folder."""
        name = str(Path(self.file).resolve()) if self.is_own else self.name
        return f"{name}:{self.kind}" if self.kind else name

    @property
    def is_own(self) -> bool:
        """Whether it is a file of the user's own, which other machines lack."""
        return not self.known and Path(self.file).resolve().parent != SITE_FILES

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
_SITE = TypeAdapter(LaunchSite)


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
    close = difflib.get_close_matches(name, [*shipped_sites(), *machines.sites], n=1)
    hint = f"Did you mean {close[0]}? " if close else ""
    raise UserError(
        f"unknown site. Received: {name or repr(name)}. {hint}`python -m launch sites` shows all; a file of your own "
        "ends in .toml"
    )


def _read(path: Path) -> LaunchSite:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read the site: {error.strerror}. Received: {path}. Name a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"the site is not TOML. Received: {path} ({error}). Correct the file") from None
    table = content.get(LAUNCH_TABLE)
    if not isinstance(table, dict):
        raise UserError(f"{path} has no table [{LAUNCH_TABLE}]. Received: {', '.join(content)}. Correct the file")
    try:
        site = _SITE.validate_json(
            json.dumps({**table, "name": path.stem, "file": str(path)}, default=str), strict=True
        )
    except ValidationError as error:
        raise UserError(f"{path} is not a valid site: {first_problem(error)}. Correct the file") from None
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
