"""Slurm: a batch script that requeues itself before its time limit and resumes; an array for repeats, and for the runs
of an experiment that are made at once.

The script is submitted from the job's folder, where its output and its exit code go. Slurm's commands are looked for on
this machine, which sees the same folders as the nodes: a login node.
"""

import os
import re
import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from common.errors import UserError, expanded
from common.run_folder.start_times import SUBMITTED_AT, timestamp
from common.utils.whole_files import read_text
from launch.jobs.job import Job, JobRecord, JobState, JobStatus, read_settings
from launch.jobs.scripts import (
    RECORD_START,
    experiment_words,
    preflight_words,
    prologue,
    resuming,
    started_again,
    trainer_words,
)
from launch.starting.launchers import Launcher
from launch.starting.shell import Shell, line

SCRIPT = "job.sh"
TERMINATED = 143  # the exit code of a script after SIGTERM
CORES_PER_GPU = 8  # where neither the site nor the table of machines has a number; Slurm would give one per rank
# Slurm has its own way of quoting in its header, and a shell never reads it: such values are not written at all.
_HEADER_VALUE = re.compile(r"[^\s'\"\\#`$]+")

_QUEUED = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
_RUNNING = {"RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "SUSPENDED", "STOPPED", "RESIZING"}

BEFORE_TIME_LIMIT = """
# Slurm sends USR1 before the time limit: the ranks stop, and the requeued job resumes from what they saved.
step=
began=$(date +%s)
before_time_limit() {{
  trap '' USR1
  if [ -n "$step" ]; then
    {stop}
    if wait "$step"; then exit 0; fi
  fi
  saved=$(find {saved} -newermt "@$began" -print -quit || true)
  if [ -z "$saved" ]; then
    echo "the time limit is near and nothing was saved since the start: {remedy}" >&2
    exit 1
  fi
  echo "the time limit is near: requeueing, to resume from what was saved"
  trap - EXIT
  scontrol requeue {job}
  exit 0
}}
trap before_time_limit USR1
"""


def render(job: Job) -> dict[str, str]:
    """Return the batch script.

    Raises:
        UserError: a value of the site cannot be written into its header.
    """
    return {SCRIPT: script(job)}


def script(job: Job) -> str:
    """Return the batch script of a job; see `render`."""
    settings = read_settings(job.arguments, program=job.program) if job.program else None
    # A metered run cannot be resumed.
    requeues = job.site.slurm.requeue and not (settings and settings.energy.energy)
    if requeues and job.program:
        job = resuming(job)
    words = line(_words(job))
    code_file = '"$SLURM_SUBMIT_DIR/exit-code' + ('-$SLURM_ARRAY_TASK_ID"' if job.tasks > 1 else '"')
    lines = [
        "#!/usr/bin/env bash",
        f"# {job.name}, {job.size} ranks on {job.site.name}; written by `python -m launch submit`.",
        *(f"#SBATCH {option}" for option in _header(job, requeues=requeues)),
        "",
        "set -e",
        f"trap 'echo $? > {code_file}' EXIT",
        f"trap 'exit {TERMINATED}' TERM",
        *prologue(job),
        *(_after_requeue(job) if requeues else []),
        "",
        *_counts(job),
        *([line(preflight_words(job, hosts=_hosts(job)))] if job.preflight else []),
        *(_before_time_limit(job).splitlines() if requeues else []),
        "",
        *([RECORD_START] if job.program else []),
        # In the background and in its own session: the shell receives signals and can end all of it.
        *([f"setsid {words} &", "step=$!", 'wait "$step"'] if requeues else [words]),
        "",
    ]
    return "\n".join(lines)


def _header(job: Job, *, requeues: bool) -> list[str]:
    """Return the options of `sbatch`."""
    options, gpus, ranks = job.site.slurm, job.gpus_per_node, job.ranks_per_node
    cores = node_cores(job)
    named = {
        "job-name": job.name,
        "partition": options.partition,
        "account": options.account,
        "qos": options.qos,
        "constraint": options.constraint,
        "nodes": job.nodes,
        "ntasks-per-node": ranks,
        "cpus-per-task": max(1, cores // ranks) if cores else None,
        "mem": options.memory,
        "gres": f"{options.gres}:{gpus}" if gpus else None,
        "time": job.minutes,
        # Of a short job half of its time is left to it.
        "signal": f"B:USR1@{min(options.notice_seconds, 30 * job.minutes)}" if requeues else None,
        "array": f"1-{job.tasks}" if job.tasks > 1 else None,
        "output": "output-%a.log" if job.tasks > 1 else "output.log",
        "open-mode": "append",
    }
    written = [f"--{name}={_checked(value)}" for name, value in named.items() if value is not None]
    return [*written, "--requeue" if requeues else "--no-requeue", *map(_checked, options.extra)]


def _checked(value: object) -> str:
    if _HEADER_VALUE.fullmatch(str(value)) is None:
        raise UserError(
            f"Slurm could misread this. Received: {value!r}. "
            "Correct [launch.slurm] of the site: no blanks, quotes, '\\', '#', '$' and '`'"
        )
    return str(value)


def node_cores(job: Job) -> int | None:
    """Return the CPUs of Slurm's that a job gets of each node; None: as many as Slurm gives, one per rank.

    Slurm counts as the site's `cores_per_gpu` does, which may be hardware threads: 4 x 40 of the 40 cores of CTE-POWER.
    """
    node, per_gpu = job.site.machines[job.node], job.site.slurm.cores_per_gpu
    if job.gpus_per_node:
        share = node.cores // node.gpus if node.cores and node.gpus else CORES_PER_GPU
        return (per_gpu or max(1, share)) * job.gpus_per_node
    return per_gpu * node.gpus if per_gpu and node.gpus else node.cores


def _counts(job: Job) -> list[str]:
    """Return the lines that take from Slurm what it has given: nodes, ranks, the number of the repeat."""
    lines = ["ranks=$((SLURM_JOB_NUM_NODES * SLURM_NTASKS_PER_NODE))"]
    if job.site.launcher == "srun":
        # The ranks of a node see all its GPUs, as NCCL wants it; each trainer takes the one of its local rank.
        # After the first rank ends, the others have a minute to end by themselves; then they are killed.
        lines.append("export SLURM_CPU_BIND=cores SLURM_GPU_BIND=none SLURM_WAIT=60")
        lines.append('export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}"  # which srun does not take from sbatch')
        if job.site.network_interface:
            names = ("NCCL_SOCKET_IFNAME", "OMPI_MCA_btl_tcp_if_include")
            lines.append("export " + " ".join(f"{name}={shlex.quote(job.site.network_interface)}" for name in names))
    elif job.site.launcher == "mpirun":
        # Slurm holds the ranks to the job's cores; MPI, left alone, would bind each to a single one.
        lines.append("export OMPI_MCA_hwloc_base_binding_policy=none")
    else:
        hosts = 'scontrol show hostnames "$SLURM_JOB_NODELIST"'
        lines.append(f'hosts=$({hosts} | sed "s/\\$/:$SLURM_NTASKS_PER_NODE/" | paste -sd,)')
    if job.repeats > 1:
        lines.append(f'name="{job.name}-r$SLURM_ARRAY_TASK_ID"')
        lines.append(f"seed=$(({job.seed} + SLURM_ARRAY_TASK_ID - 1))")
    elif job.parts > 1:
        lines.append(f'name="{job.name}, part $SLURM_ARRAY_TASK_ID"')
    else:
        lines.append(f'name="{job.name}"')
    turn = "turn $((${SLURM_RESTART_COUNT:-0} + 1))"
    return [*lines, f'echo "$name: $ranks ranks on $SLURM_JOB_NODELIST, Slurm job $SLURM_JOB_ID, {turn}"']


def _own_number(job: Job) -> str:
    """Return the word by which the script names itself: $SLURM_JOB_ID of an array's last task means all tasks."""
    return '"${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"' if job.tasks > 1 else '"$SLURM_JOB_ID"'


def _after_requeue(job: Job) -> list[str]:
    """Return the lines by which a requeued job counts as submitted again; Slurm knows when, to a second."""
    return [
        'if [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ]; then',
        f"  unset {SUBMITTED_AT}",
        f"  submitted=$(squeue --noheader --jobs={_own_number(job)} --format=%V || true)",
        f'  if [ -n "$submitted" ]; then {SUBMITTED_AT}=$(date -d "$submitted" +%s); export {SUBMITTED_AT}; fi',
        "fi",
    ]


def _hosts(job: Job) -> Shell | None:
    """Return the hosts, for a launcher that does not ask Slurm."""
    return Shell('"$hosts"') if job.site.launcher == "horovodrun" else None


def _words(job: Job) -> list[str]:
    """Return the command that the script is there for."""
    hosts = _hosts(job)
    if job.experiment:
        part = ["--part", Shell('"$SLURM_ARRAY_TASK_ID"')] if job.parts > 1 else []
        return [*experiment_words(job, hosts=hosts), *part]
    ranks, seed = Shell('"$ranks"'), Shell('"$seed"') if job.repeats > 1 else None
    words = [*Launcher(site=job.site, node=job.node).words(np=ranks), *(["-H", hosts] if hosts else [])]
    start = started_again(job, hosts=hosts, np=ranks) or words
    return [*start, *trainer_words(job, name=Shell('"$name"'), seed=seed)]


def _before_time_limit(job: Job) -> str:
    """Return the lines that are run near the time limit."""
    # srun kills the ranks when it is terminated; a signal by Slurm lets them save their state.
    end_ranks = [f"scancel --signal=TERM {_own_number(job)} || true"] if job.site.launcher == "srun" else []
    end_step = ['kill -TERM -- "-$step" || true'] if job.experiment or not end_ranks else []
    # What would start the ranks again has to know before they end; this signal it does not pass on.
    start_no_more = ['kill -INT "$step" || true'] if job.restarts and end_ranks else []
    if job.experiment:
        folders = line([str(expanded(folder)) for folder in job.run_folders()])
        saved, remedy = f"{folders} -maxdepth 2 -name weights.safetensors", "no run of the experiment ends in this time"
        if job.parts > 1:  # other tasks write there, too
            saved = f'{folders} -maxdepth 1 -name ".part-$SLURM_ARRAY_TASK_ID"'
    else:
        folder = line([f"{expanded(job.runs_folder)}/"])
        saved, remedy = f'{folder}"$name/checkpoints" -name state.json', "or fewer --checkpoint-minutes"
    return BEFORE_TIME_LIMIT.format(
        stop="\n    ".join([*start_no_more, *end_ranks, *end_step]),
        saved=saved,
        remedy=f"give more --minutes, {remedy}",
        job=_own_number(job),
    )


def submit(job: Job, folder: Path, *, keep: Callable[[str], None]) -> str:
    """Submit the script from the job's folder; return the number that Slurm gives it.

    Raises:
        UserError: there is no Slurm here, or it refuses.
    """
    # The job's script gets the environment of the command that submits it.
    done = _slurm(["sbatch", "--parsable", SCRIPT], folder=folder, variables=timestamp(SUBMITTED_AT))
    if done.returncode:
        raise UserError(f"Slurm refuses the job: {_one_line(done.stderr)}. Received: {job.site.file}. "
                        "Correct the site file, or ask for less")  # fmt: skip
    identifier = done.stdout.strip().partition(";")[0]
    if re.fullmatch("[0-9]{1,18}", identifier) is None:
        raise _misunderstood("sbatch", done.stdout)
    return identifier


def state(record: JobRecord, folder: Path) -> JobStatus:
    """Return the status of the job, of all tasks of an array as one."""
    tasks = _in_queue(record.id) or _in_accounts(record.id) or _from_exit_codes(folder, repeats=record.repeats)
    if not tasks:
        return JobStatus("unknown", "Slurm does not know the job any more, and it has left no exit code")
    return _combined(tasks)


def logs(record: JobRecord, folder: Path) -> list[str]:
    """Return the command that prints the output.

    Raises:
        UserError: there is none yet.
    """
    files = sorted(folder.glob("output*.log"), key=lambda path: (len(path.name), path.name))
    if not files:
        raise UserError(f"the job has not printed anything yet. Received: {record.name}. Check its status")
    return ["tail", "-n", "+1", *map(str, files)]


def cancel(record: JobRecord, folder: Path) -> None:
    """End the job, all tasks of an array."""
    if state(record, folder).state not in ("queued", "running"):
        raise UserError(f"the job does not run any more. Received: {record.name}. There is nothing to end")
    done = _slurm(["scancel", record.id])
    if done.returncode:
        raise UserError(f"Slurm does not end the job: {_one_line(done.stderr)}. Received: {record.name}. "
                        f"Try scancel {record.id}")  # fmt: skip


def shell(record: JobRecord, folder: Path) -> list[str]:
    """Its run folders are visible on this machine."""
    return []


def _slurm(
    command: Sequence[str], *, folder: Path | None = None, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **(variables or {})}
    try:
        return subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
        )
    except FileNotFoundError:
        raise UserError(
            f"there is no Slurm here. Received: {command[0]}. Give the command on a login node of the cluster"
        ) from None


def _misunderstood(program: str, answer: str) -> UserError:
    return UserError(
        f"the answer of {program} is not as expected. Received: {_one_line(answer)[:200]!r}. Run it by hand"
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _in_queue(identifier: str) -> list[JobStatus]:
    """Return the status of each task while Slurm keeps it: until some minutes after its end."""
    form = "--Format=State:30,exit_code:20,Reason:100"
    done = _slurm(["squeue", "--noheader", "--array", "--states=all", f"--jobs={identifier}", form])
    if done.returncode and "Invalid job id" not in done.stderr:
        raise UserError(f"Slurm does not answer: {_one_line(done.stderr)}. Received: job {identifier}. Try again")
    rows = [row.split(maxsplit=2) for row in done.stdout.splitlines() if row.strip()]
    # As wait(2) encodes it: the signal, plus 256 times the exit code.
    try:
        return [_state(row[0], code=int(row[1]) >> 8, reason=" ".join(row[2:]).strip()) for row in rows]
    except (IndexError, ValueError):
        raise _misunderstood("squeue", done.stdout) from None


def _in_accounts(identifier: str) -> list[JobStatus]:
    """Return the same from Slurm's accounts, where it keeps any."""
    command = [
        "sacct",
        f"--jobs={identifier}",
        "--allocations",
        "--noheader",
        "--parsable2",
        "--format=State,ExitCode",
    ]
    try:
        done = _slurm(command)
    except UserError:
        return []
    rows = [row.split("|") for row in done.stdout.splitlines() if done.returncode == 0 and row.count("|") == 1]
    try:
        return [_state(name.split()[0], code=int(code.partition(":")[0])) for name, code in rows]
    except (IndexError, ValueError):
        raise _misunderstood("sacct", done.stdout) from None


def _from_exit_codes(folder: Path, *, repeats: int) -> list[JobStatus]:
    """Return the same from the exit codes that the script leaves; nothing where one is missing."""
    tasks = [""] if repeats == 1 else [f"-{repeat}" for repeat in range(1, repeats + 1)]
    try:
        codes = [int(read_text(folder / f"exit-code{task}")) for task in tasks]
    except (OSError, ValueError):
        return []
    names = {0: "COMPLETED", TERMINATED: "CANCELLED"}
    return [_state(names.get(code, "FAILED"), code=code) for code in codes]


def _state(name: str, *, code: int, reason: str = "") -> JobStatus:
    """Return a state of Slurm's by our name; with Slurm's reason where it adds to the state."""
    if name in _QUEUED:
        return JobStatus("queued", reason)
    if name in _RUNNING:
        return JobStatus("running")
    if name == "COMPLETED":
        return JobStatus("finished")
    if name == "CANCELLED":
        return JobStatus("cancelled")
    return JobStatus("failed", f"exit code {code}" if name == "FAILED" else name.lower().replace("_", " "))


def _combined(tasks: Sequence[JobStatus]) -> JobStatus:
    """Return the status of an array: running while one of its tasks runs, then failed if one failed."""
    if len(tasks) == 1:
        return tasks[0]
    order: tuple[JobState, ...] = ("running", "queued", "failed", "cancelled", "finished")
    counts = {name: sum(task.state == name for task in tasks) for name in order}
    first = next(name for name in order if counts[name])
    parts = [f"{count} {name}" for name, count in counts.items() if count]
    reasons = dict.fromkeys(task.reason for task in tasks if task.state == "failed")
    return JobStatus(first, "; ".join([", ".join(parts), *filter(None, reasons)]))
