"""What a preflight inspects: the hosts and their ranks, how to ask them, and what the run needs there."""

import argparse
import importlib.util
import platform
import shlex
import subprocess
import sys
from collections import Counter
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
SRUN_SECONDS = 30
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
        hosts: name -> ranks. On a login node: this machine, without ranks; outside: none.
        channel: how hosts are asked.
        frameworks: torch, keras or both.
        controller: mpi or gloo.
        device: as for trainers: auto, cpu or gpu.
        threads: compute threads per rank; None: cores / ranks.
        dataset: as for trainers; None: not checked.
        folders: "runs", and "scratch" where the site has one -> path.
        environment: variables to ask hosts with.
    """

    launcher: Launcher
    location: Location
    hosts: dict[str, int]
    channel: Channel
    frameworks: tuple[str, ...]
    controller: str = "mpi"
    device: str = "auto"
    threads: int | None = None
    dataset: str | None = None
    folders: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def site(self) -> LaunchSite:
        """Where the job runs."""
        return self.launcher.site

    @property
    def size(self) -> int:
        """Number of ranks."""
        return sum(self.hosts.values())

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
        UserError: unknown site or hosts.
    """
    in_slurm = JOB_VARIABLES["slurm"] in variables
    named = options.site is not None or options.hosts is not None
    launcher = launcher_at("slurm" if in_slurm and not named else options.site, hosts=options.hosts)
    site = launcher.site
    location = _location(site, named_hosts=bool(options.hosts), variables=variables)
    channel: Channel = "local"
    slots = list(launcher.hosts)
    if location == "job" and site.scheduler == "slurm" and in_slurm:
        slots, channel = slots or slurm_hosts(), "srun"
        if site.launcher == "horovodrun":  # it does not ask Slurm for the hosts
            launcher = replace(launcher, hosts=slots)
    elif slots:
        channel = "ssh"
    if location == "outside":
        hosts = {}
    elif location == "login node":
        hosts = {platform.node(): 0}
    elif slots:
        spread = channel == "ssh" and site.hosts.spread
        assigned = assign_ranks(slots, np=options.np or sum(host.ranks for host in slots), spread=spread)
        hosts = {host.host: host.ranks for host in assigned}
    else:
        hosts = {platform.node(): options.np or DEFAULT_RANKS}
    rented_gpus = site.machines[launcher.node].gpus if site.scheduler == "skypilot" else 0
    given_gpus = location == "job" and (rented_gpus > 0 or variables.get("SLURM_GPUS_ON_NODE", "0") != "0")
    folders = {"runs": options.runs_folder or site.runs_folder or "runs", "scratch": site.scratch_folder}
    return Target(
        launcher=launcher,
        location=location,
        hosts=hosts,
        channel=channel,
        frameworks=_frameworks(options.framework),
        controller=options.controller or site.controller,
        device="gpu" if given_gpus and options.device == "auto" else options.device,
        threads=options.threads,
        dataset=None if options.dataset == "none" else options.dataset,
        folders={
            name: str(Path(site.project_folder or ROOT, expanded(path))) for name, path in folders.items() if path
        },
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


def slurm_hosts() -> list[Slots]:
    """Return the hosts of the Slurm job that this process runs in, with Slurm's tasks on each.

    Raises:
        UserError: srun does not start there.
    """
    command = ["srun", "--mpi=none", "--label", "printenv", "SLURMD_NODENAME"]  # prints "rank: host"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SRUN_SECONDS)
        problem = done.stderr.strip() if done.returncode else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    if problem:
        raise UserError(
            f"Slurm does not list the hosts of this job: {problem}. Received: {shlex.join(command)}. "
            "Name them: --hosts node1:4,node2:4"
        )
    tasks = sorted((int(rank), host) for rank, _, host in (line.partition(": ") for line in done.stdout.splitlines()))
    return [Slots(host, count) for host, count in Counter(host for _, host in tasks).items()]
