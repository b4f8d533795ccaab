"""SkyPilot: machines of a cloud, rented for the job. The command `sky` (SkyPilot 0.14) rents, sets up, runs and stops.

On demand, a job is its own cluster; it stops when it is idle, and its disks keep the run folders until
`sky down`. On spot machines, which may be taken away, it is a managed job: SkyPilot begins it anew on other machines,
and trainers resume from the bucket. Nothing of it has run on a cloud yet; tests run the scripts on Debian 13.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.run_folder.start_times import SUBMITTED_AT, timestamp
from launch.jobs.cloud import for_remote, host_label, read_answer, require, run_program, show_program, site_lines
from launch.jobs.job import Job, JobRecord, JobState, JobStatus
from launch.jobs.schedulers.yaml_text import to_yaml
from launch.jobs.scripts import experiment_words, preflight_words, prologue, repeats_words, resuming, run_lines
from launch.starting.launchers import Launcher
from launch.starting.processes import PROGRAMS
from launch.starting.shell import Shell, line

TASK = "task.yaml"
BUCKET = "/bucket"  # where machines see the site's bucket
MANAGED = "managed job "  # before the name, in the id of a job on spot machines
# SkyPilot's name for the folder that `workdir` is copied to, in the home of the user there.
_WORK_FOLDER = Shell('"$HOME"/sky_workdir')
_LONGEST_NAME = 63

_STATES: dict[str, JobState] = {
    "INIT": "queued", "PENDING": "queued", "SUBMITTED": "queued", "STARTING": "queued", "SETTING_UP": "queued",
    "RUNNING": "running", "WINDING_DOWN": "running", "RECOVERING": "queued",
    "SUCCEEDED": "finished", "CANCELLING": "cancelled", "CANCELLED": "cancelled",
}  # fmt: skip


def render(job: Job) -> dict[str, str]:
    """Return the task.

    Raises:
        UserError: the site does not say what a task needs.
    """
    _check(job)
    options, node = job.site.skypilot, job.site.machines[job.node]
    resources: dict[str, Any] = {
        "infra": "/".join(filter(None, (options.cloud, options.region))),
        "instance_type": node.instance_type,
        "disk_size": options.disk_gb,
        "use_spot": job.spot,
    }
    if node.accelerator:
        resources["accelerators"] = node.accelerator
    if options.image:
        resources["image_id"] = f"docker:{options.image}"
    if not job.spot:
        # Without a bucket the disks hold the only copy of the runs: then machines are stopped, and not given back.
        resources["autostop"] = {"idle_minutes": options.autostop_minutes, "down": options.bucket is not None}
    task: dict[str, Any] = {"name": _name(job), "resources": resources, "num_nodes": job.nodes}
    if job.site.project_folder is None:
        task["workdir"] = "."  # the project, from where `sky` is called
    if options.bucket:
        # Written to the disk first and copied from there: unlike mode MOUNT this takes files that grow.
        task["file_mounts"] = {BUCKET: {"source": options.bucket, "mode": "MOUNT_CACHED"}}
    if job.site.project_folder is None:
        task["setup"] = setup_script(job)
    task["run"] = run_script(job)
    return {TASK: to_yaml(task)}


def _check(job: Job) -> None:
    options, node = job.site.skypilot, job.site.machines[job.node]
    store = "gs" if options.cloud == "gcp" else "s3"
    if node.instance_type is None:
        raise UserError(f"the cloud knows this machine by no name. Received: {job.node}. "
                        f"Add its instance_type to the table of machines")  # fmt: skip
    if options.bucket and not Path(job.runs_folder).is_relative_to(BUCKET):
        raise UserError(
            f"run folders would not be in the bucket. Received: runs_folder {job.site.runs_folder}. "
            f'Write runs_folder = "{BUCKET}/runs" into {job.site.file}'
        )
    if job.spot and not options.bucket:
        raise UserError(
            "spot machines may be taken away, and their disks with them. Received: a site without a bucket. In a copy "
            f'of {job.site.file} write runs_folder = "{BUCKET}/runs", and bucket = "{store}://NAME" under '
            "[launch.skypilot]"
        )
    if job.site.launcher != "horovodrun":
        raise UserError(f"SkyPilot's machines are joined by horovodrun. Received: launcher {job.site.launcher}. "
                        f"Leave it out of {job.site.file}")  # fmt: skip
    if (options.image is None) != (job.site.project_folder is None):
        raise UserError(
            f"an image needs the project's folder in it, and the other way round. Received: image {options.image}, "
            f"project_folder {job.site.project_folder}. Write both into {job.site.file}, or neither"
        )


def _name(job: Job) -> str:
    return host_label(job.name, longest=_LONGEST_NAME)


def setup_script(job: Job) -> str:
    """Return what each machine does once: the project's own set-up, with a Python that SkyPilot's `uv` brings.

    Pythons of a distribution are the second choice: they may lack their headers or the module venv.
    """
    wanted = [name for name, path in PROGRAMS.items() if job.program in (path, None)]
    frameworks = [name for name in wanted if name not in job.site.refuses]
    # PyTorch's compiler for CUDA comes from PyPI, TensorFlow's does not.
    nvcc = "launch/installation/cuda12.sh\n" if job.gpus_per_node and "keras" in frameworks else ""
    return rf"""set -eu
fail() {{ echo "set-up: error: $1" >&2; exit 2; }}
apt() {{ sudo -n env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 "$@"; }}
export PATH="$HOME/.local/bin:$PATH"
if ! {{ command -v g++ && command -v make; }} > /dev/null; then
  {{ apt update; apt install --yes g++ make > /dev/null; }} || fail \
    "g++ and make are missing. Received: what sudo apt-get says above. Install them there, or name an image"
fi
python=$(uv python install --quiet 3.11 && uv python find --managed-python --system 3.11) ||
  python= # set-up looks for one
{nvcc}make setup PYTHON="$python" FRAMEWORKS="{" ".join(frameworks)}" GPU={int(job.gpus_per_node > 0)}
"""


def run_script(job: Job) -> str:
    """Return what each machine does then: the first starts all ranks, by ssh, for which SkyPilot gives them keys."""
    there = for_remote(job, project_folder=job.site.project_folder or _WORK_FOLDER)
    hosts = Shell('"$hosts"')
    lines = [
        "set -e",  # not -u: scripts that set up modules read variables that are not set
        "# The first machine starts the ranks on all of them.",
        'if [ "$SKYPILOT_NODE_RANK" != 0 ]; then exit 0; fi',
        f"hosts=${{SKYPILOT_NODE_IPS//$'\\n'/:{job.ranks_per_node},}}:{job.ranks_per_node}",
        *site_lines(job),
        *prologue(there),
    ]
    if job.preflight:
        lines.append(line(preflight_words(there, hosts=hosts)))
    lines += run_lines(job, _commands(there, hosts=hosts))
    return "".join(f"{one}\n" for one in lines)


def _commands(job: Job, *, hosts: Shell) -> list[list[str]]:
    """Return the commands that run one after the other."""
    if job.experiment:
        return [experiment_words(job, hosts=hosts)]
    words = Launcher(site=job.site).words(np=job.size)
    # No PATH leads an ssh from another machine to the daemon of MPI in the environment.
    prefix = [Shell('--mpi-args="--prefix $(dirname "$(dirname "$(command -v mpirun)")")"')]
    start = [*words[:3], "-H", hosts, *(prefix if job.site.controller == "mpi" else []), *words[3:]]
    return repeats_words(resuming(job) if job.spot else job, start=start, hosts=hosts)


def submit(job: Job, folder: Path, *, keep: Callable[[str], None]) -> str:
    """Rent the machines and hand them the task, which SkyPilot shows meanwhile; the id is the cluster's name."""
    name, task = _name(job), str((folder / TASK).resolve())
    if job.spot:
        words = ["sky", "jobs", "launch", "--yes", "--detach-run", "--name", name, task]
        identifier, end = f"{MANAGED}{name}", f"sky jobs cancel --name {name}"
    else:
        env = [word for each in timestamp(SUBMITTED_AT).items() for word in ("--env", "=".join(each))]
        words = ["sky", "launch", "--yes", "--detach-run", *env, "--cluster", name, task]
        identifier, end = name, f"sky down {name}"
    require("sky")
    keep(identifier)
    try:
        show_program(words, remedy=f"End what was started with: {end}")
    except KeyboardInterrupt:
        print(f"SkyPilot keeps running it; end it with: {end}", file=sys.stderr)
        raise
    return identifier


def state(record: JobRecord, folder: Path) -> JobStatus:
    """Return the status that SkyPilot reports."""
    found = _managed_job(record) if _is_managed(record) else _job_of_cluster(record)
    if found is None and not _is_managed(record) and _cluster(record):
        return JobStatus("failed", "its machines were not set up, and may run and cost: `cancel` ends them")
    if found is None:
        return JobStatus("gone", "SkyPilot no longer knows it")
    standing = found.status
    reason = found.failure_reason or found.details or standing.lower().replace("_", " ")
    known = _STATES.get(standing, "failed" if standing.startswith("FAILED") else "unknown")
    return JobStatus(known, "" if known in ("running", "finished", "cancelled") else " ".join(reason.split()))


@dataclass(frozen=True)
class _SkyJob:
    """What is read of a job that SkyPilot prints."""

    job_id: int
    status: str
    job_name: str | None = None
    failure_reason: str | None = None
    details: str | None = None


@dataclass(frozen=True)
class _Cluster:
    """The same of a cluster."""

    name: str
    status: str


def _managed_job(record: JobRecord) -> _SkyJob | None:
    wake = "SkyPilot's keeper of managed jobs may sleep: sky jobs queue --refresh"
    text = run_program(["sky", "jobs", "queue", "--all", "--output", "json"], remedy=wake)
    jobs = [one for one in read_answer(text, list[_SkyJob], source="sky") if one.job_name == _name_of(record)]
    return max(jobs, key=lambda one: one.job_id, default=None)


def _job_of_cluster(record: JobRecord) -> _SkyJob | None:
    text = run_program(["sky", "queue", record.id, "--output", "json"], remedy=_LOOK)
    jobs = read_answer(text, dict[str, list[_SkyJob]], source="sky").get(record.id, [])
    return max(jobs, key=lambda one: one.job_id, default=None)


def _cluster(record: JobRecord) -> _Cluster | None:
    """Return the machines of a job as SkyPilot knows them; None: there are none."""
    text = run_program(["sky", "status", record.id, "--output", "json"], remedy=_LOOK)
    clusters = read_answer(text, list[_Cluster], source="sky")
    return next((cluster for cluster in clusters if cluster.name == record.id), None)


_LOOK = "See `sky status` and `sky check`"


def logs(record: JobRecord, folder: Path) -> list[str]:
    """Return the command that prints what the job has printed."""
    require("sky")
    words = ["sky", "jobs", "logs", "--name", _name_of(record)] if _is_managed(record) else ["sky", "logs", record.id]
    return [*words, "--no-follow", "--tail", "0"]


def cancel(record: JobRecord, folder: Path) -> None:
    """End the job; its machines stop by themselves after `autostop_minutes`, those of a managed job at once.

    Machines on which no job was started are given back: nothing stops them yet. Those whose queue cannot be asked are
    stopped: their disks may hold the only copy of the runs.
    """
    if _is_managed(record):
        run_program(["sky", "jobs", "cancel", "--yes", "--name", _name_of(record)], remedy=_LOOK)
        return
    try:
        words = ["cancel", "--yes", "--all"] if _job_of_cluster(record) else ["down", "--yes"]
    except UserError:  # machines that are not up have no queue
        words = ["stop", "--yes"]
    run_program(["sky", *words, record.id], remedy=f"End its machines with: sky down {record.id}")


def shell(record: JobRecord, folder: Path) -> list[str]:
    """Return the command before a line for the shell of the first machine, whom SkyPilot names to ssh."""
    if _is_managed(record):
        bucket = record.read_site().skypilot.bucket
        raise UserError(
            f"the machines of a managed job are gone when it ends. Received: {record.name}. "
            f"Its run folders are in {bucket}: aws s3 sync {bucket}/runs runs"
        )
    cluster = _cluster(record)  # `sky status` writes ssh's configuration
    if cluster and cluster.status == "UP":
        named = record.read_site().project_folder
        return ["ssh", record.id] if named else ["ssh", record.id, "cd sky_workdir &&"]
    raise UserError(f"the machines are not up. Received: {record.id}. Start them with: sky start {record.id}")


def _is_managed(record: JobRecord) -> bool:
    return record.id.startswith(MANAGED)


def _name_of(record: JobRecord) -> str:
    return record.id.removeprefix(MANAGED)
