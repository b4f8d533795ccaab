"""What each scheduler needs to know of a site: the tables `[launch.hosts]`, `[launch.slurm]`, ... of its file."""

import re
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from common.json_records import Record
from common.utils.command_line import MOST
from launch.sites.values import (
    Bucket,
    DriverVersion,
    Image,
    Label,
    LabelValue,
    Line,
    Memory,
    MountPath,
    PlainPath,
    Positive,
    PositiveFloat,
    Slots,
    Subdomain,
    ToolkitVersion,
    Word,
)


@dataclass(frozen=True, kw_only=True)
class SoftwareOptions(Record):
    """What GPU nodes have before the project is set up there, by which set-up chooses CUDA builds.

    Attributes:
        driver: NVIDIA's, or the branch if no more is known; None: unknown.
        toolkits: CUDA toolkits with a compiler, as modules or as /usr/local/cuda-VERSION; empty: unknown.
        source: of both.
    """

    source: Line
    driver: DriverVersion | None = None
    toolkits: list[ToolkitVersion] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class HostsOptions(Record):
    """Several plain hosts, reached by ssh from the first.

    Attributes:
        names: each "host:slots"; without slots one rank fits.
        spread: share the ranks out evenly; else a host is filled before the next is used.
        ssh_port, identity_file: for ssh; None: as its own configuration says.
        mpi_folder: its `bin` contains Open MPI's programs on every host; None: the interpreter's folder if they are
            there, otherwise the PATH of each host.
    """

    names: list[Slots] = field(default_factory=list)
    spread: bool = False
    ssh_port: Annotated[int, Field(gt=0, lt=2**16)] | None = None
    identity_file: PlainPath | None = None
    mpi_folder: PlainPath | None = None


# Options of sbatch that a script has already, and what sets them.
_KEYS_OF_THE_SITE = {
    "partition": "partition", "account": "account", "qos": "qos", "constraint": "constraint", "mem": "memory",
    "gres": "gres", "cpus-per-task": "cores_per_gpu", "signal": "notice_seconds", "requeue": "requeue",
    "no-requeue": "requeue",
}  # fmt: skip
_FLAGS_OF_SUBMIT = {
    "nodes": "--nodes", "ntasks": "--ranks-per-node", "ntasks-per-node": "--ranks-per-node", "time": "--minutes",
    "array": "--repeats", "job-name": "--name", "gpus": "--gpus-per-node", "gpus-per-node": "--gpus-per-node",
    "np": "--nodes and --ranks-per-node",
}  # fmt: skip
_FIXED = ("output", "error", "open-mode", "chdir")


def _extra(text: str) -> str:
    name = text.removeprefix("--").partition("=")[0]
    if not re.match(r"--[a-z]", text):
        raise ValueError('write an option of sbatch with its hyphens, such as "--exclusive"')
    if name in _KEYS_OF_THE_SITE:
        raise ValueError(f"this has a key of its own: write {_KEYS_OF_THE_SITE[name]} under [launch.slurm]")
    if name in _FLAGS_OF_SUBMIT:
        raise ValueError(f"each job sets this: give {_FLAGS_OF_SUBMIT[name]} to submit")
    if name in _FIXED:
        raise ValueError("the script sets this itself: leave it out")
    return text


def place_of_sbatch_option(word: str) -> str | None:
    """Return where an option of sbatch is set, such as --partition; None: it is none that has a place."""
    name = word.removeprefix("--").partition("=")[0]
    if not word.startswith("--"):
        return None
    if name in _KEYS_OF_THE_SITE:
        return f"Set {_KEYS_OF_THE_SITE[name]} under [launch.slurm] in a copy of the site's file"
    return f"Give {_FLAGS_OF_SUBMIT[name]} instead of --{name}" if name in _FLAGS_OF_SUBMIT else None


Extra = Annotated[Line, AfterValidator(_extra)]


@dataclass(frozen=True, kw_only=True)
class SlurmOptions(Record):
    """Options of a batch script besides nodes, tasks and time. None: the cluster's default.

    Attributes:
        gres: name of the GPUs in `--gres=NAME:COUNT`.
        mpi: how `srun` joins ranks: a word of `srun --mpi=list`.
        cores_per_gpu: logical cores per GPU; None: the node's cores / its GPUs where the table of machines has them,
            else 8. Jobs without GPUs get those of all GPUs of a node, else all cores that the table has, else Slurm's
            default, 1 per rank.
        memory: of each node, as `--mem` takes it: "240G", "0" for all; None: the cluster's default.
        max_hours: longest time limit that the cluster allows.
        requeue: whether a job is requeued shortly before its time limit.
        notice_seconds: seconds before the limit at which it receives the signal.
        extra: further options of sbatch, each a line `#SBATCH` of its own: "--exclusive", "--reservation=NAME".
    """

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
    extra: list[Extra] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class SkyPilotOptions(Record):
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

    cloud: Line = "aws"
    region: Word | None = None
    spot: bool = False
    autostop_minutes: Positive = 10
    disk_gb: Positive = 256
    image: Line | None = None
    bucket: Bucket | None = None


@dataclass(frozen=True, kw_only=True)
class Toleration(Record):
    """A taint of nodes that pods tolerate, with the rules of Kubernetes.

    Attributes:
        key: of the taint; None: of every taint.
        operator: Exists: whatever its value.
        effect: None: every effect.
    """

    key: Word | None = None
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
class KubernetesOptions(Record):
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
