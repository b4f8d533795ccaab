"""The checks on this machine: the scheduler's programs, and what the ranks report about their all-reduce."""

import re
import statistics
from shutil import which
from typing import Any

from common.distributed.console import counted
from common.errors import UserError
from launch.preflight.host_checks import SET_UP
from launch.preflight.target import Target
from launch.starting.processes import output_of

SUBMIT_PROGRAMS = {"slurm": "sbatch", "skypilot": "sky", "kubernetes": "kubectl"}
CLOCK_SECONDS = 1.0  # further apart, files, logs and power traces of the hosts cannot be matched


def check_scheduler(target: Target) -> str:
    """The scheduler's programs are installed here, and srun offers the kind of PMI that joins the ranks."""
    site = target.launcher.site
    uses_srun = site.launcher == "srun" and target.wanted.controller == "mpi"
    needed = ["srun"] if uses_srun else []
    if target.location != "job" and site.scheduler in SUBMIT_PROGRAMS:
        needed.insert(0, SUBMIT_PROGRAMS[site.scheduler])
    missing = [name for name in needed if which(name) is None]
    if missing:
        remedy = "Install it, load its module, or submit from where it is"
        raise UserError(f"this machine: {', '.join(missing)} not found. {remedy}")
    kind = site.slurm.mpi
    if uses_srun and kind not in re.findall(r"\w+", offered := output_of("srun", "--mpi=list")):
        remedy = "Name one that MPI was compiled for (`mpi` in [launch.slurm] of the site file), or start by mpirun"
        raise UserError(f"this machine: srun does not offer {kind}: {' '.join(offered.split())}. {remedy}")
    found = f"{', '.join(needed)} found" if needed else "not needed here"
    return f"{found}, srun offers {kind}" if uses_srun else found


def check_clocks(report: dict[str, Any]) -> str:
    """The clocks of the hosts agree, by when the ranks leave an all-reduce."""
    offsets = dict(zip(report["hosts"], report["clock_offsets"], strict=True))
    remedy = "files, logs and power traces of the hosts could not be matched. Start a time service there (chrony, ntpd)"
    failures = [
        f"{host}: its clock is {abs(offset):.1f} s {'ahead' if offset > 0 else 'behind'}: {remedy}"
        for host, offset in offsets.items()
        if abs(offset) > CLOCK_SECONDS
    ]
    if failures:
        raise UserError("\n".join(failures))
    return f"at most {max(map(abs, offsets.values())):.3f} s apart"


def check_allreduce(report: dict[str, Any], target: Target) -> str:
    """A sum over all ranks is correct, and the ranks are joined as they should be."""
    hosts, joined_by, controller = report["hosts"], report["controller"], target.wanted.controller
    if len(hosts) != target.size:
        met = f"{counted(len(hosts), 'rank')} met instead of {target.size}: each would run alone"
        raise UserError(f"{hosts[0]}: {met}. Check that launcher, PMI and Horovod use the same MPI")
    if joined_by not in ("none", controller):
        remedy = "Unset HOROVOD_CONTROLLER, or name this --controller"
        raise UserError(f"{hosts[0]}: ranks are joined by {joined_by}, not {controller}. {remedy}")
    if report["wrong_ranks"]:
        wrong = [f"{hosts[rank]}: the sum on rank {rank} is wrong" for rank in report["wrong_ranks"]]
        raise UserError("\n".join(f"{line}. {SET_UP}, and test its memory and network" for line in wrong))
    times = [1e3 * seconds for seconds in report["seconds"]]
    return (
        f"{report['bytes'] / 1e6:g} MB over {counted(target.size, 'rank')} in {statistics.median(times):.2f} ms "
        f"(median of {len(times)}, {min(times):.2f} to {max(times):.2f})"
    )
