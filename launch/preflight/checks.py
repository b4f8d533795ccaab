"""The checks of a preflight, in one table. Each returns its summary and its failures, as (host, message)."""

import re
import statistics
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from shutil import which
from typing import Any, Literal

from common.data.catalog import PUBLISHED
from common.distributed.console import counted
from common.run_folder.environment import PACKAGES_OF_FRAMEWORK
from launch.preflight.host_probe import output_of
from launch.preflight.survey import Survey
from launch.preflight.target import Location, Target

Failures = list[tuple[str, str]]

TITLES = {"torch": "PyTorch", "keras": "TensorFlow"}
INSTALLED_AS = {"torch": ("torch",), "keras": ("tensorflow", "tensorflow-cpu")}  # either name will do
FEATURES = {"mpi": "MPI", "gloo": "Gloo", "nccl": "NCCL"}  # what Horovod can be compiled with
SET_UP = "Run `make setup` there"
SAME_VERSION = {
    "Python": "Name an interpreter that is the same on all hosts (`python` in the site file)",
    "mpirun": "Load the same module, or install the same MPI, on all hosts",
}
CLOCK_SECONDS = 1.0  # further apart, files, logs and power traces of the hosts cannot be matched
FREE_BYTES = 10**9  # a run of ResNet-34 with its checkpoints takes about half of it
# Schedulers whose hosts need not share a folder, because rank 0 alone writes runs.
SEPARATE_FOLDERS = ("hosts", "skypilot")


class NotCheckedError(Exception):
    """A check cannot be made; the message says why."""


def check_hosts(target: Target, survey: Survey) -> tuple[str, Failures]:
    """Every host answers in time, and no part of its answer failed."""
    remedies = {"gpus": "Fix the driver there: `nvidia-smi` has to list the GPUs"}
    failures = [("", line) for line in survey.unreached] + [
        (host, f"{error}. {remedies.get(part, f'{SET_UP}, and name its Python')}")
        for host, report in survey.reports.items()
        for part, error in report["errors"].items()
    ]
    return f"{counted(len(survey.reports), 'host')} answered within {survey.seconds:.1f} s", failures


def check_scheduler(target: Target, survey: Survey) -> tuple[str, Failures]:
    """The scheduler's programs are installed here, and srun offers the kind of PMI that joins the ranks."""
    uses_srun = target.site.launcher == "srun" and target.controller == "mpi"
    needed = [target.submit_program] if target.submit_program else []
    needed += ["srun"] if uses_srun else []
    remedy = "Install it, load its module, or submit from where it is"
    failures = [("this machine", f"{name} not found. {remedy}") for name in needed if which(name) is None]
    kind = target.site.slurm.mpi
    if uses_srun and not failures and kind not in re.findall(r"\w+", offered := srun_offers()):
        remedy = "Name one that MPI was compiled for (`mpi` in [launch.slurm] of the site file), or start by mpirun"
        failures.append(("this machine", f"srun does not offer {kind}: {offered or 'no output'}. {remedy}"))
    summary = f"{', '.join(needed)} found" if needed else "not needed here"
    return f"{summary}, srun offers {kind}" if uses_srun else summary, failures


def srun_offers() -> str:
    """Return what `srun --mpi=list` prints, or why it failed, in one line."""
    try:
        return " ".join(output_of("srun", "--mpi=list").split())
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return str(error)


def check_software(target: Target, survey: Survey) -> tuple[str, Failures]:
    """All hosts have the framework, and the same Python, packages and MPI."""
    versions = survey.reported("versions")
    names = ["Python", *sorted({name for each in target.frameworks for name in PACKAGES_OF_FRAMEWORK[each]})]
    needed = {TITLES[each]: INSTALLED_AS[each] for each in target.frameworks}
    if target.controller == "mpi":
        names += ["openmpi", "mpirun"]
        needed["mpirun"] = ("mpirun",)
    failures = [
        (host, f"{title} is not installed. {SET_UP}")
        for host, found in versions.items()
        for title, packages in needed.items()
        if not any(package in found for package in packages)
    ]
    if not failures:
        for name in names:
            remedy = SAME_VERSION.get(name, f"{SET_UP}, as here")
            failures += _differences({host: found.get(name) for host, found in versions.items()}, name, remedy)
    first = next(iter(versions.values()))
    return ", ".join(f"{name} {first[name]}" for name in names if name in first), failures


def _differences(values: Mapping[str, str | None], what: str, remedy: str) -> Failures:
    """Return a failure for each host whose value differs from the first host's."""
    first = next(iter(values))
    return [
        (host, f"{what} is {value or 'missing'}, on {first} it is {values[first] or 'missing'}. {remedy}")
        for host, value in values.items()
        if value != values[first]
    ]


def check_horovod(target: Target, survey: Survey) -> tuple[str, Failures]:
    """Horovod was compiled for the installed frameworks, with the chosen controller, and with NCCL for GPUs."""
    needed = [target.controller, *(["nccl"] if _uses_gpus(target, survey) else [])]
    failures: Failures = []
    for host, builds in survey.reported("horovod").items():
        versions = survey.reports[host].get("versions", {})
        for framework in target.frameworks:
            title, build = TITLES[framework], builds.get(framework)
            if build is None:
                failures.append((host, f"Horovod is not compiled for {title}. {SET_UP}"))
                continue
            for name in [name for name in needed if name not in build["features"]]:
                remedy = f"Compile it with {FEATURES[name]}: `make setup{' GPU=1' if name == 'nccl' else ''}` there"
                choice = "--device cpu" if name == "nccl" else "the other --controller"
                problem = f"Horovod for {title} is compiled without {FEATURES[name]}"
                failures.append((host, f"{problem}. {remedy}, or use {choice}"))
            now, then = [versions[name] for name in INSTALLED_AS[framework] if name in versions], build["compiled_for"]
            if now and then and now[0].split("+")[0] != then.split("+")[0]:
                problem = f"Horovod was compiled for {title} {then}, but {now[0]} is installed"
                failures.append((host, f"{problem}. {SET_UP}: it recompiles"))
    titles = " and ".join(TITLES[framework] for framework in target.frameworks)
    return f"compiled for {titles}, with {' and '.join(FEATURES[name] for name in needed)}", failures


def _uses_gpus(target: Target, survey: Survey) -> bool:
    """Return whether ranks will train on GPUs: as the device says, or because a host has some."""
    return target.device == "gpu" or (target.device == "auto" and any(survey.reported("gpus").values()))


def check_network(target: Target, survey: Survey) -> tuple[str, Failures]:
    """The site's network interface is up on every host and has an address."""
    wanted = target.site.network_interface
    if wanted is None:
        return "Horovod and MPI choose the interface", []
    remedy = "Name one that every host has (`network_interface` in the site file)"
    failures = [
        (host, f"network interface {wanted} is not up with an address; ready: {', '.join(ready)}. {remedy}")
        for host, ready in survey.reported("interfaces").items()
        if wanted not in ready
    ]
    return f"{wanted} is up and has an address", failures


def check_gpus(target: Target, survey: Survey) -> tuple[str, Failures]:
    """There is a GPU for each rank of a host, of the same model on all hosts."""
    if not _uses_gpus(target, survey):
        return "not needed: ranks train on the CPU", []
    gpus = survey.reported("gpus")
    remedy = "Ask for one GPU per rank (--gres, CUDA_VISIBLE_DEVICES), start fewer ranks, or use --device cpu"
    failures = [
        (host, f"{counted(len(found), 'GPU')} visible for {counted(target.hosts[host], 'rank')}. {remedy}")
        for host, found in gpus.items()
        if len(found) < target.hosts[host]
    ]
    models = {host: ", ".join(sorted(set(found))) for host, found in gpus.items()}
    if not failures:
        failures = _differences(models, "the GPU", "Use hosts with equal GPUs: their times cannot be compared")
    return f"{next(iter(models.values()))}, at least one per rank", failures


def check_threads(target: Target, survey: Survey) -> tuple[str, Failures]:
    """Ranks x threads fit the cores of each host."""
    remedy = "Times would not be meaningful: start fewer ranks there, give fewer --threads, or ask for more cores"
    failures, loads = [], []
    for host, cores in survey.reported("cores").items():
        ranks = target.hosts[host]
        threads = target.threads or max(1, cores // ranks)
        loads.append(f"{counted(ranks, 'rank')} x {counted(threads, 'thread')} on {counted(cores, 'core')}")
        if ranks * threads > cores:
            failures.append((host, f"{loads[-1]}. {remedy}"))
    return "; ".join(dict.fromkeys(loads)), failures


def check_disk(target: Target, survey: Survey) -> tuple[str, Failures]:
    """Folders can be written and have space; the cache of data sets only if the data set is still to be fetched."""
    failures, free = [], []
    for host, folders in survey.reported("folders").items():
        complete = survey.reports[host].get("data", {}).get("state") == "verified"
        for name, folder in folders.items():
            if name == "cache" and complete:
                continue
            free.append(folder["free_bytes"] / 1e9)
            where = f"the {name} folder {folder['path']}"
            if folder["problem"]:
                line = f"{where} cannot be written: {folder['problem']}. Fix it or name another folder"
                failures.append((host, line))
            elif folder["free_bytes"] < FREE_BYTES:
                line = f"{free[-1]:.2f} GB free for {where}. Free {FREE_BYTES / 1e9:g} GB, or name another folder"
                failures.append((host, line))
    return f"at least {min(free):,.1f} GB free", failures


def check_shared_runs(target: Target, survey: Survey) -> tuple[str, Failures]:
    """All hosts see the same runs folder, where hosts share folders."""
    if target.channel == "local":
        return "not needed by one host", []
    folder = target.folders["runs"]
    apart = [host for host, sees_mark in survey.reported("sees_mark").items() if not sees_mark]
    if apart and target.site.scheduler in SEPARATE_FOLDERS:
        reason = "rank 0's host keeps the runs, and only hosts that share the folder can resume them"
        return f"{', '.join(apart)}: {folder} is not this machine's folder; {reason}", []
    problem = f"what this machine writes into {folder} is not visible there"
    remedy = "Use a folder on a shared file system (--runs-folder), or check that file system"
    return f"every host sees {folder}", [(host, f"{problem}. {remedy}") for host in apart]


def check_data(target: Target, survey: Survey) -> tuple[str, Failures]:
    """The data set is in the cache and undamaged, or can be fetched."""
    states = survey.reported("data")
    fetch = f"`python -m common datasets fetch {target.dataset}`"
    failures = []
    for host, data in states.items():
        if data["state"] == "damaged":
            failures.append((host, f"{data['text']}. Remove it there, then {fetch}"))
        elif data["state"] == "absent" and not (target.site.internet and target.dataset in PUBLISHED):
            failures.append((host, f"{data['text']}. Bring it: {fetch} where there is a network"))
    first = next(iter(states.values()))
    return first["text"] + (", training fetches it" if first["state"] == "absent" else ""), failures


def _exchange(survey: Survey) -> dict[str, Any]:
    if not isinstance(survey.exchange, dict):
        raise NotCheckedError("the ranks reported nothing: fix the failures first")
    return survey.exchange


def check_clocks(target: Target, survey: Survey) -> tuple[str, Failures]:
    """The clocks of the hosts agree, by when the ranks leave an all-reduce."""
    report = _exchange(survey)
    offsets = dict(zip(report["hosts"], report["clock_offsets"], strict=True))
    remedy = "files, logs and power traces of the hosts could not be matched. Start a time service there (chrony, ntpd)"
    failures = [
        (host, f"its clock is {abs(offset):.1f} s {'ahead' if offset > 0 else 'behind'}: {remedy}")
        for host, offset in offsets.items()
        if abs(offset) > CLOCK_SECONDS
    ]
    return f"at most {max(map(abs, offsets.values())):.3f} s apart", failures


def check_allreduce(target: Target, survey: Survey) -> tuple[str, Failures]:
    """A sum over all ranks is correct, and the ranks are joined as they should be."""
    if isinstance(survey.exchange, str):
        return "", [("", survey.exchange)]
    report = _exchange(survey)
    hosts, joined_by = report["hosts"], report["controller"]
    failures = [
        (hosts[rank], f"the sum on rank {rank} is wrong. {SET_UP}, and test its memory and network")
        for rank in report["wrong_ranks"]
    ]
    if len(hosts) != target.size:
        met = f"{counted(len(hosts), 'rank')} met instead of {target.size}: each would run alone"
        failures.append((hosts[0], f"{met}. Check that launcher, PMI and Horovod use the same MPI"))
    elif joined_by not in ("none", target.controller):
        remedy = "Unset HOROVOD_CONTROLLER, or name this --controller"
        failures.append((hosts[0], f"ranks are joined by {joined_by}, not {target.controller}. {remedy}"))
    times = [1e3 * seconds for seconds in report["seconds"]]
    return (
        f"{report['bytes'] / 1e6:g} MB over {counted(target.size, 'rank')} in {statistics.median(times):.2f} ms "
        f"(median of {len(times)}, {min(times):.2f} to {max(times):.2f})",
        failures,
    )


@dataclass(frozen=True, kw_only=True)
class Check:
    """A check: where it can be made, and the part of a host's report that it needs."""

    name: str
    judge: Callable[[Target, Survey], tuple[str, Failures]]
    where: tuple[Location, ...]
    part: str | None = None


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """A check's result; `lines` are its failures, why it was not made, or its summary."""

    check: str
    result: Literal["ok", "failed", "not checked"]
    lines: list[str]


ANYWHERE: tuple[Location, ...] = ("job", "login node", "outside")
ON_SITE: tuple[Location, ...] = ("job", "login node")
IN_JOB: tuple[Location, ...] = ("job",)
OF_HOSTS = (
    Check(name="hosts", judge=check_hosts, where=ON_SITE),
    Check(name="scheduler", judge=check_scheduler, where=ANYWHERE),
    Check(name="software", judge=check_software, where=ON_SITE, part="versions"),
    Check(name="horovod", judge=check_horovod, where=ON_SITE, part="horovod"),
    Check(name="network", judge=check_network, where=IN_JOB, part="interfaces"),
    Check(name="gpus", judge=check_gpus, where=IN_JOB, part="gpus"),
    Check(name="threads", judge=check_threads, where=IN_JOB, part="cores"),
    Check(name="disk", judge=check_disk, where=ON_SITE, part="folders"),
    Check(name="shared runs", judge=check_shared_runs, where=IN_JOB, part="sees_mark"),
    Check(name="data", judge=check_data, where=ON_SITE, part="data"),
)
OF_RANKS = (
    Check(name="clocks", judge=check_clocks, where=IN_JOB),
    Check(name="allreduce", judge=check_allreduce, where=IN_JOB),
)


def judge(check: Check, target: Target, survey: Survey) -> CheckResult:
    """Return the result of a check."""
    try:
        if target.location not in check.where:
            raise NotCheckedError("only in the job, on its own hosts")
        if check.part and not survey.reported(check.part):
            raise NotCheckedError("no host reported it")
        summary, failures = check.judge(target, survey)
    except NotCheckedError as reason:
        return CheckResult(check=check.name, result="not checked", lines=[str(reason)])
    if not failures:
        return CheckResult(check=check.name, result="ok", lines=[summary])
    hosts: dict[str, list[str]] = {}
    for host, message in dict.fromkeys(failures):
        hosts.setdefault(message, []).append(host)
    lines = [f"{', '.join(names)}: {message}".removeprefix(": ") for message, names in hosts.items()]
    return CheckResult(check=check.name, result="failed", lines=lines)
