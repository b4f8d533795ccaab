"""Ask all hosts of a preflight at once; every question has a limit, and what was started for it is ended."""

import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from launch.preflight.answers import Answers
from launch.preflight.host_probe import HostProbe, Request
from launch.preflight.plan import Plan
from launch.starting.parallel import Outcome, run_for_hosts
from launch.starting.ssh import CODE_OF_SSH, is_this_host, problem_of_ssh

PROBE_SECONDS = 30
SRUN_SECONDS = 10
# By which a batch script tells srun what a rank gets.
SHARES_OF_TASKS = ("SRUN_CPUS_PER_TASK", "SLURM_CPUS_PER_TASK", "SLURM_CPU_BIND", "SLURM_GPU_BIND", "SLURM_MPI_TYPE")
_PROBE = TypeAdapter(HostProbe)
Tell = Callable[[str], object]  # is given lines of progress


def ask_hosts(plan: Plan, *, tell: Tell) -> Answers:
    """Return what the hosts tell of themselves, and what can be asked here."""
    seconds: dict[str, float] = {}
    missing = tuple(name for name in plan.submitters if shutil.which(name) is None)
    kinds: tuple[str, ...] | str | None = None
    if plan.site.launcher == "srun" and plan.place != "elsewhere":
        began = time.monotonic()
        kinds = ask_srun()
        seconds["pmi"] = time.monotonic() - began
    if plan.place == "elsewhere":
        return Answers(missing_programs=missing)
    tell(f"asking {', '.join(plan.hosts)}")
    with _meeting(plan) as meeting:
        marks = {host: str(meeting / str(number)) if meeting else None for number, host in enumerate(plan.hosts)}
        outcomes = run_for_hosts(
            {host: probe_command(plan, host, mark=mark) for host, mark in marks.items()},
            limit_seconds=PROBE_SECONDS,
            on_end=lambda outcome: (
                tell(f"{outcome.host} answered after {outcome.seconds:.1f} s") if outcome.code == 0 else None
            ),
        )
        met = frozenset(host for host, mark in marks.items() if mark and Path(mark).exists())
    probes, unreached = {}, {}
    for host, outcome in outcomes.items():
        answer = read_outcome(plan, outcome)
        if isinstance(answer, HostProbe):
            probes[host] = answer
        else:
            unreached[host] = answer
    return Answers(
        probes=probes,
        unreached=unreached,
        windows={host: (outcome.began, outcome.ended) for host, outcome in outcomes.items()},
        met=met,
        missing_programs=missing,
        srun_mpi=kinds,
        seconds=seconds,
    )


def probe_command(plan: Plan, host: str, *, mark: str | None) -> list[str]:
    """Return the command that lets a host tell of itself.

    Args:
        plan: names interpreter, folders and the way to the host.
        host: of the plan.
        mark: file that it leaves.
    """
    request = Request(
        host=host, limit_seconds=PROBE_SECONDS, dataset=plan.dataset, folders=dict(plan.folders), mark=mark
    )
    variables = [f"{name}={value}" for name, value in plan.environment.items()]
    probe = ["env", *variables, plan.python, "-m", "launch.preflight.host_probe", json.dumps(asdict(request))]
    words = ["sh", "-c", 'cd "$0" && exec "$@"', plan.project_folder, *probe]
    if plan.way == "srun":
        # The task is to see all cores and GPUs that the job has on this node: not the share of one rank, nor bound.
        whole = ["env", *(word for name in SHARES_OF_TASKS for word in ("-u", name))]
        return [
            *whole,
            "srun",
            "--nodes=1",
            "--ntasks=1",
            f"--nodelist={host}",
            "--cpu-bind=none",
            "--mpi=none",
            *words,
        ]
    if _by_ssh(plan, host):
        return plan.start.ssh.words(host, words, limit_seconds=PROBE_SECONDS)
    return words


def _by_ssh(plan: Plan, host: str) -> bool:
    return plan.way == "ssh" and not is_this_host(host)


def read_outcome(plan: Plan, outcome: Outcome) -> HostProbe | str:
    """Return what a host told, or the line that says why it told nothing."""
    host = outcome.host
    if outcome.code is None:
        remedy = "See whether it is overloaded, or one of its file systems does not answer"
        return f"{host}: no answer within {PROBE_SECONDS} s. {remedy}"
    if outcome.code == CODE_OF_SSH and _by_ssh(plan, host):
        return problem_of_ssh(host, outcome.stderr, ssh=plan.start.ssh)
    answers = [line for line in outcome.stdout.splitlines() if line.startswith("{")]
    if outcome.code == 0 and answers:
        try:
            return _PROBE.validate_json(answers[-1])
        except ValidationError:
            return f"{host}: its answer is of another version of the project. Bring the same files there: `git pull`"
    remedy = f"See that {plan.python} and the folder {plan.project_folder} are there"
    return f"{host}: it cannot tell of itself (exit code {outcome.code}): {outcome.last_line}. {remedy}"


@contextmanager
def _meeting(plan: Plan) -> Iterator[Path | None]:
    """Make a folder in that of the runs for a file of each host; None: there is one host, or it cannot be made.

    Why it cannot be made the check of folders tells.
    """
    if plan.way == "here":
        yield None
        return
    runs = Path(plan.folders["runs"])
    try:
        runs.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=".preflight-", dir=runs))
    except OSError:
        yield None
        return
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def ask_srun() -> tuple[str, ...] | str:
    """Return the kinds of PMI that srun offers, or why they are not known."""
    try:
        done = subprocess.run(["srun", "--mpi=list"], capture_output=True, text=True, timeout=SRUN_SECONDS)
    except FileNotFoundError:
        return "srun is not on PATH"
    except subprocess.TimeoutExpired:
        return f"`srun --mpi=list` does not end within {SRUN_SECONDS} s"
    if done.returncode:
        return f"`srun --mpi=list` fails: {(done.stderr.strip().splitlines() or ['no word why'])[-1]}"
    return srun_kinds(done.stdout + done.stderr)


def srun_kinds(text: str) -> tuple[str, ...]:
    """Return the kinds in what `srun --mpi=list` prints: one a line, or after a colon; older ones tag each line."""
    kinds: list[str] = []
    for line in text.splitlines():
        words = line.rpartition(":")[2].replace(",", " ").split()
        if len(words) == 1 or line.startswith("specific"):
            kinds += words
    return tuple(kinds)
