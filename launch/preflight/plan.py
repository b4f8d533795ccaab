"""What a preflight looks at: which hosts with how many ranks, how they are asked, what the run will need there."""

import argparse
import importlib.util
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from common.errors import UserError, expanded
from common.utils.paths import ROOT
from launch.sites.site_files import LaunchSite
from launch.starting.launchers import Launcher, Slots, assign_ranks, launcher_at
from launch.starting.processes import PROGRAMS

Place = Literal["job", "login node", "elsewhere"]
Way = Literal["here", "ssh", "srun"]
DEFAULT_SIZE = 2  # ranks, where nothing tells how many
SCONTROL_SECONDS = 10
# What a scheduler is spoken to by, where jobs are submitted.
SUBMITTERS: dict[str, tuple[str, ...]] = {"slurm": ("sbatch",), "skypilot": ("sky",), "kubernetes": ("kubectl",)}
# Set in the job by the scheduler.
IN_JOB = {"slurm": "SLURM_JOB_ID", "skypilot": "SKYPILOT_NODE_RANK", "kubernetes": "KUBERNETES_SERVICE_HOST"}
# Ranks get these of the process that starts them, so a host is asked with them, too.
PASSED_ON = ("HOROVOD_TWINS_CACHE", "XDG_CACHE_HOME", "CUDA_VISIBLE_DEVICES")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is going to run, as far as a preflight can ask for it.

    Attributes:
        site: where.
        place: in the job; on a login node, which sees the same folders and programs as the job's nodes; or elsewhere,
            such as a laptop from which a cloud is used.
        hosts: name -> ranks there; outside a job this machine, with none.
        way: how hosts are asked.
        start: how ranks are started.
        frameworks: torch, keras or both.
        controller: mpi or gloo; `chosen_controller`: the one that was named, if one was.
        device: auto, cpu or gpu, as trainers are given it.
        expects_gpus: whether the job was given GPUs.
        threads: compute threads of a rank; None: cores / ranks.
        dataset: as trainers are given it; None: none is looked for.
        python: the interpreter on each host.
        project_folder: where the project lies on each host.
        folders: runs and scratch -> path.
        environment: variables that hosts are asked with.
    """

    site: LaunchSite
    place: Place
    hosts: Mapping[str, int]
    way: Way
    start: Launcher
    frameworks: tuple[str, ...]
    controller: str
    chosen_controller: str | None = None
    device: str = "auto"
    expects_gpus: bool = False
    threads: int | None = None
    dataset: str | None = None
    python: str = "python"
    project_folder: str = "."
    folders: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return sum(self.hosts.values())

    @property
    def submitters(self) -> tuple[str, ...]:
        """Programs that are needed here, where jobs are submitted."""
        return () if self.place == "job" else SUBMITTERS.get(self.site.scheduler, ())


def make_plan(options: argparse.Namespace, *, variables: Mapping[str, str]) -> Plan:
    """Return what to look at.

    Args:
        options: of the command line.
        variables: the environment, in which schedulers tell of the job.

    Raises:
        UserError: unknown site or hosts, or numbers out of range.
    """
    for flag, value in (("--np", options.np), ("--threads", options.threads)):
        if value is not None and value < 1:
            raise UserError(f"{flag} is out of range. Received: {flag} {value}. Give 1 or more")
    in_slurm = IN_JOB["slurm"] in variables
    start = launcher_at(options.site or ("slurm" if in_slurm and not options.hosts else None), hosts=options.hosts)
    site = start.site
    place = _place(site, named_hosts=bool(options.hosts), variables=variables)
    way: Way
    if place != "job":
        hosts, way = {platform.node(): 0}, "here"
    elif site.scheduler == "slurm" and in_slurm:
        slots = list(start.hosts) or slurm_slots(variables)
        hosts, way = _placed(slots, np=options.np, spread=False), "srun"
        if site.launcher == "horovodrun":  # does not ask Slurm for its hosts
            start = Launcher(site=site, hosts=slots, node=start.node)
    elif start.hosts:
        hosts, way = _placed(start.hosts, np=options.np, spread=site.hosts.spread), "ssh"
    else:
        hosts, way = {platform.node(): options.np or DEFAULT_SIZE}, "here"
    gpus_of_node = site.machines[start.node].gpus if site.scheduler == "skypilot" else 0
    environment = {name: variables[name] for name in PASSED_ON if name in variables} | site.variables
    folders = {"runs": options.runs_folder or site.runs_folder or "runs"}
    if site.scratch_folder:
        folders["scratch"] = site.scratch_folder
    project = site.project_folder or str(ROOT)
    return Plan(
        site=site,
        place=place,
        hosts=hosts,
        way=way,
        start=start,
        frameworks=_frameworks(options.framework),
        controller=options.controller or site.controller,
        chosen_controller=options.controller,
        device=options.device,
        expects_gpus=place == "job" and (gpus_of_node > 0 or variables.get("SLURM_GPUS_ON_NODE", "0") != "0"),
        threads=options.threads,
        dataset=None if options.dataset == "none" else options.dataset,
        python=site.python or sys.executable,
        project_folder=project,
        folders={name: str(Path(project, expanded(path))) for name, path in folders.items()},
        environment=environment,
    )


def _place(site: LaunchSite, *, named_hosts: bool, variables: Mapping[str, str]) -> Place:
    mark = IN_JOB.get(site.scheduler)
    if mark is None or mark in variables or (named_hosts and site.scheduler != "slurm"):
        return "job"
    return "login node" if site.scheduler == "slurm" else "elsewhere"


def _placed(slots: Sequence[Slots], *, np: int | None, spread: bool) -> dict[str, int]:
    there = sum(host.ranks for host in slots)
    return {host.host: host.ranks for host in assign_ranks(slots, np=np or there, spread=spread)}


def _frameworks(chosen: str | None) -> tuple[str, ...]:
    """Return the frameworks to look at: those that were named, else those that are installed."""
    if chosen == "both":
        return tuple(PROGRAMS)
    if chosen:
        return (chosen,)
    return tuple(name for name in PROGRAMS if importlib.util.find_spec(name)) or tuple(PROGRAMS)


def slurm_slots(variables: Mapping[str, str]) -> list[Slots]:
    """Return the hosts of the Slurm job that this process is in, with the tasks that Slurm runs on each.

    Raises:
        UserError: Slurm does not tell them.
    """
    nodes = variables.get("SLURM_JOB_NODELIST", "")
    try:
        listed = subprocess.run(
            ["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, timeout=SCONTROL_SECONDS
        )
        problem = listed.stderr.strip() if listed.returncode else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    if problem or not listed.stdout.split():
        raise UserError(
            f"Slurm does not tell the hosts of this job: {problem or 'no host'}. Received: SLURM_JOB_NODELIST={nodes}. "
            "Name them: --hosts node1:4,node2:4"
        )
    hosts = listed.stdout.split()
    return [Slots(host, tasks) for host, tasks in zip(hosts, tasks_per_node(variables, nodes=len(hosts)), strict=True)]


def tasks_per_node(variables: Mapping[str, str], *, nodes: int) -> list[int]:
    """Return the tasks of each node from Slurm's way to write them, "4(x2),2"; one each where it says nothing.

    Raises:
        UserError: it is written otherwise, or for another number of nodes.
    """
    text = variables.get("SLURM_TASKS_PER_NODE", f"1(x{nodes})")
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        counts += [int(match[1])] * int(match[2] or 1) if match else []
    if len(counts) != nodes or min(counts) < 1:
        raise UserError(
            f"Slurm's numbers of tasks do not fit its {nodes} nodes. Received: SLURM_TASKS_PER_NODE={text}. "
            "Name hosts and ranks: --hosts node1:4,node2:4"
        )
    return counts
