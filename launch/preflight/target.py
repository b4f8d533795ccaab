"""What a preflight inspects: the hosts and their ranks, how to ask them, and what the run needs there."""

import argparse
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from common.data.catalog import PUBLISHED
from common.errors import expanded
from common.utils.environments import missing_packages
from common.utils.paths import ROOT
from launch.preflight.host_checks import HOST_CHECKS, Wanted
from launch.sites.site_files import LaunchSite
from launch.starting.launchers import Launcher, assign_ranks, launcher_at, slurm_hosts
from launch.starting.processes import DEFAULT_RANKS, PROGRAMS

# A login node sees the folders and programs of the job's nodes; outside is, for example, a laptop that submits.
Location = Literal["job", "login node", "outside"]
IN_JOB = ("network", "gpus", "threads", "memory", "shared runs")  # checks that need the hosts of the job
SEPARATE_FOLDERS = ("hosts", "skypilot")  # schedulers whose hosts need not share a folder: rank 0 alone writes runs
Channel = Literal["local", "ssh", "srun"]
# The variable that the scheduler sets inside a job.
JOB_VARIABLES = {"slurm": "SLURM_JOB_ID", "skypilot": "SKYPILOT_NODE_RANK", "kubernetes": "KUBERNETES_SERVICE_HOST"}
# Ranks inherit these from the process that starts them, so every host is asked with them.
INHERITED_VARIABLES = ("HOROVOD_TWINS_CACHE", "XDG_CACHE_HOME", "CUDA_VISIBLE_DEVICES")


@dataclass(frozen=True, kw_only=True)
class Target:
    """What is inspected."""

    launcher: Launcher  # of ranks
    location: Location
    hosts: dict[str, int]  # name -> ranks; on a login node this machine, without ranks; outside none
    channel: Channel  # how hosts are asked
    wanted: Wanted
    environment: dict[str, str] = field(default_factory=dict)  # to ask hosts with
    python: str = sys.executable  # on each host, as the folder of the project
    project_folder: str = str(ROOT)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return sum(self.hosts.values())


def read_target(options: argparse.Namespace, *, variables: Mapping[str, str]) -> Target:
    """Return what the command line and the environment, where schedulers describe the job, ask to inspect.

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
    left_out = IN_JOB if location != "job" else ["shared runs"] if site.scheduler in SEPARATE_FOLDERS else []
    wanted = Wanted(
        frameworks=_frameworks(options.framework),
        controller=options.controller or site.controller,
        device="gpu" if given_gpus and options.device == "auto" else options.device,
        threads=options.threads,
        memory_mb=options.memory_mb,
        compiles=options.compile,
        dataset=None if options.dataset == "none" else options.dataset,
        can_fetch=site.internet and options.dataset in PUBLISHED,
        interface=site.network_interface,
        folders={
            name: str(Path(site.project_folder or ROOT, expanded(path))) for name, path in folders.items() if path
        },
        checks=tuple(name for name in HOST_CHECKS if name not in left_out),
    )
    inherited = {name: variables[name] for name in INHERITED_VARIABLES if name in variables}
    return Target(
        launcher=launcher,
        location=location,
        hosts=hosts,
        channel=channel,
        wanted=wanted,
        environment=inherited | site.variables,
        python=site.python or sys.executable,
        project_folder=site.project_folder or str(ROOT),
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
    return tuple(name for name in PROGRAMS if not missing_packages(name)) or tuple(PROGRAMS)
