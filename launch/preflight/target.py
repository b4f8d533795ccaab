"""What a preflight inspects: the hosts and their ranks, how to ask them, and what the run needs there."""

import argparse
import importlib.util
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from common.errors import UserError, expanded
from common.utils.paths import ROOT
from launch.sites.site_files import LaunchSite
from launch.starting.launchers import Launcher, Slots, assign_ranks, launcher_at
from launch.starting.processes import DEFAULT_RANKS, PROGRAMS

Location = Literal["job", "login node", "outside"]
Channel = Literal["local", "ssh", "srun"]
SCONTROL_SECONDS = 10
# What jobs are submitted with, and the variable that the scheduler sets inside a job.
SUBMIT_PROGRAMS = {"slurm": "sbatch", "skypilot": "sky", "kubernetes": "kubectl"}
JOB_VARIABLES = {"slurm": "SLURM_JOB_ID", "skypilot": "SKYPILOT_NODE_RANK", "kubernetes": "KUBERNETES_SERVICE_HOST"}
# Ranks inherit these from the process that starts them, so every host is asked with them.
INHERITED_VARIABLES = ("HOROVOD_TWINS_CACHE", "XDG_CACHE_HOME", "CUDA_VISIBLE_DEVICES")


@dataclass(frozen=True, kw_only=True)
class Target:
    """What is inspected.

    Attributes:
        launcher: how ranks are started.
        location: inside the job; on a login node, which sees the folders and programs of the job's nodes; or outside,
            such as on a laptop that submits to a cloud.
        hosts: name -> ranks. Outside a job: this machine, without ranks.
        channel: how hosts are asked.
        frameworks: torch, keras or both.
        controller: mpi or gloo; None: the site's.
        device: as for trainers: auto, cpu or gpu.
        expects_gpus: whether the job was given GPUs.
        threads: compute threads per rank; None: cores / ranks.
        dataset: as for trainers; None: not checked.
        folders: "runs", and "scratch" where the site has one -> path.
        environment: variables to ask hosts with.
    """

    launcher: Launcher
    location: Location
    hosts: Mapping[str, int]
    channel: Channel
    frameworks: tuple[str, ...]
    controller: str | None = None
    device: str = "auto"
    expects_gpus: bool = False
    threads: int | None = None
    dataset: str | None = None
    folders: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def site(self) -> LaunchSite:
        """Where the job runs."""
        return self.launcher.site

    @property
    def size(self) -> int:
        """Number of ranks."""
        return sum(self.hosts.values())

    @property
    def effective_controller(self) -> str:
        """How the ranks are joined: mpi or gloo."""
        return self.controller or self.site.controller

    @property
    def submit_program(self) -> str | None:
        """The scheduler's program that is needed here; None: none is."""
        return None if self.location == "job" else SUBMIT_PROGRAMS.get(self.site.scheduler)

    @property
    def python(self) -> str:
        """The interpreter on each host."""
        return self.site.python or sys.executable

    @property
    def project_folder(self) -> str:
        """Folder of the project on each host."""
        return self.site.project_folder or str(ROOT)


def read_target(options: argparse.Namespace, *, variables: Mapping[str, str]) -> Target:
    """Return what the command line and the environment ask to inspect.

    Args:
        options: of the command line.
        variables: the environment, where schedulers describe the job.

    Raises:
        UserError: unknown site or hosts, or a number out of range.
    """
    for flag, value in (("--np", options.np), ("--threads", options.threads)):
        if value is not None and value < 1:
            raise UserError(f"{flag} is out of range. Received: {flag} {value}. Give 1 or more")
    in_slurm = JOB_VARIABLES["slurm"] in variables
    launcher = launcher_at(options.site or ("slurm" if in_slurm and not options.hosts else None), hosts=options.hosts)
    site = launcher.site
    location = _location(site, named_hosts=bool(options.hosts), variables=variables)
    channel: Channel = "local"
    slots: list[Slots] = []
    if location == "job" and site.scheduler == "slurm" and in_slurm:
        slots, channel = list(launcher.hosts) or slurm_hosts(variables), "srun"
        if site.launcher == "horovodrun":  # it does not ask Slurm for the hosts
            launcher = replace(launcher, hosts=slots)
    elif location == "job" and launcher.hosts:
        slots, channel = list(launcher.hosts), "ssh"
    if slots:
        spread = channel == "ssh" and site.hosts.spread
        assigned = assign_ranks(slots, np=options.np or sum(host.ranks for host in slots), spread=spread)
        hosts = {host.host: host.ranks for host in assigned}
    else:
        hosts = {platform.node(): (options.np or DEFAULT_RANKS) if location == "job" else 0}
    rented_gpus = site.machines[launcher.node].gpus if site.scheduler == "skypilot" else 0
    folders = {"runs": options.runs_folder or site.runs_folder or "runs", "scratch": site.scratch_folder}
    project = site.project_folder or str(ROOT)
    return Target(
        launcher=launcher,
        location=location,
        hosts=hosts,
        channel=channel,
        frameworks=_frameworks(options.framework),
        controller=options.controller,
        device=options.device,
        expects_gpus=location == "job" and (rented_gpus > 0 or variables.get("SLURM_GPUS_ON_NODE", "0") != "0"),
        threads=options.threads,
        dataset=None if options.dataset == "none" else options.dataset,
        folders={name: str(Path(project, expanded(path))) for name, path in folders.items() if path},
        environment={name: variables[name] for name in INHERITED_VARIABLES if name in variables} | site.variables,
    )


def _location(site: LaunchSite, *, named_hosts: bool, variables: Mapping[str, str]) -> Location:
    variable = JOB_VARIABLES.get(site.scheduler)
    if variable is None or variable in variables or (named_hosts and site.scheduler != "slurm"):
        return "job"
    return "login node" if site.scheduler == "slurm" else "outside"


def _frameworks(chosen: str | None) -> tuple[str, ...]:
    """Return the named frameworks, else the installed ones."""
    if chosen:
        return tuple(PROGRAMS) if chosen == "both" else (chosen,)
    return tuple(name for name in PROGRAMS if importlib.util.find_spec(name)) or tuple(PROGRAMS)


def slurm_hosts(variables: Mapping[str, str]) -> list[Slots]:
    """Return the hosts of the Slurm job that this process runs in, with Slurm's tasks on each.

    Raises:
        UserError: Slurm does not list them.
    """
    nodes = variables.get("SLURM_JOB_NODELIST", "")
    try:
        listed = subprocess.run(
            ["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, timeout=SCONTROL_SECONDS
        )
        hosts, problem = listed.stdout.split(), listed.stderr.strip() if listed.returncode else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        hosts, problem = [], str(error)
    if problem or not hosts:
        raise UserError(
            f"Slurm does not list the hosts of this job: {problem or 'no host'}. Received: SLURM_JOB_NODELIST={nodes}. "
            "Name them: --hosts node1:4,node2:4"
        )
    tasks = tasks_per_node(variables.get("SLURM_TASKS_PER_NODE", f"1(x{len(hosts)})"), nodes=len(hosts))
    return [Slots(host, count) for host, count in zip(hosts, tasks, strict=True)]


def tasks_per_node(text: str, *, nodes: int) -> list[int]:
    """Return the number of tasks on each node from Slurm's notation, such as "4(x2),2".

    Raises:
        UserError: the notation is unknown, or is for another number of nodes.
    """
    matches = [re.fullmatch(r"([1-9]\d*)(?:\(x(\d+)\))?", part) for part in text.split(",")]
    counts = [int(match[1]) for match in matches if match for _ in range(int(match[2] or 1))]
    if None in matches or len(counts) != nodes:
        raise UserError(
            f"Slurm's task counts do not fit its {nodes} nodes. Received: SLURM_TASKS_PER_NODE={text}. "
            "Name hosts and ranks: --hosts node1:4,node2:4"
        )
    return counts
