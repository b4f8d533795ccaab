"""The checks of a preflight: pure functions of the target and the survey, in one table."""

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from common.checks.preflight_worker import ExchangeReport
from common.distributed.console import counted
from common.run_folder.environment import PACKAGES_OF_FRAMEWORK
from launch.preflight.host_probe import Folder
from launch.preflight.survey import Survey
from launch.preflight.target import Target

TITLES = {"torch": "PyTorch", "keras": "TensorFlow"}
INSTALLED_AS = {"torch": ("torch",), "keras": ("tensorflow", "tensorflow-cpu")}  # either name will do
CHANNELS = {"local": "as a process here", "ssh": "by ssh", "srun": "by srun"}
SET_UP = "Run `make setup` there"
SAME_SOFTWARE = {
    "Python": "Name an interpreter that is the same on all hosts (`python` in the site file)",
    "the project": "Bring the same files there: `git pull`, or a folder that all hosts share",
    "mpirun": "Load the same module, or install the same MPI, on all hosts",
}
# What Horovod can be compiled with -> its title, and what to do where it is missing.
FEATURES = {
    "mpi": ("MPI", "Compile it with HOROVOD_WITH_MPI=1 (`make setup` does), or name the other --controller"),
    "gloo": ("Gloo", "Compile it with HOROVOD_WITH_GLOO=1 (`make setup` does), or name the other --controller"),
    "nccl": ("NCCL", "Compile it with NCCL: `make setup GPU=1` there, or name --device cpu"),
}
CLOCK_SECONDS = 1.0  # further apart, files, logs and power traces of the hosts cannot be matched
FREE_BYTES = 10**9  # a run of ResNet-34 with its checkpoints takes about half of it
# Schedulers whose hosts need not share a folder, because rank 0 alone writes runs.
SEPARATE_FOLDERS = ("hosts", "skypilot")
HostLine = tuple[str, str]  # host, message


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What a check found; `summary` is shown where nothing failed."""

    summary: str = ""
    failures: list[HostLine] = field(default_factory=list)
    unknown: list[HostLine] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Check:
    """A check.

    Attributes:
        judge: a pure function.
        where: everywhere; where the job's software and folders are visible; or in the job only.
        part: of a host's report that the check needs.
        remedy: where a host cannot report that part, which is a failure then; empty: the check is not made.
    """

    name: str
    judge: Callable[[Target, Survey], Findings]
    where: Literal["everywhere", "software", "job"] = "software"
    part: str = ""
    remedy: str = ""


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """A check's result; `lines` are failures, reasons why it was not made, or the summary."""

    check: str
    result: Literal["ok", "failed", "not checked"]
    lines: list[str]


def _differences(values: Mapping[str, Any], *, what: str, remedy: str) -> list[HostLine]:
    """Return a line for each host whose value differs from the first host's."""
    first = next(iter(values), "")
    return [
        (host, f"{what} is {value or 'missing'}, on {first} it is {values[first] or 'missing'}. {remedy}")
        for host, value in values.items()
        if value != values[first]
    ]


def _uses_gpus(target: Target, survey: Survey) -> bool:
    """Return whether ranks will train on GPUs: named, given to the job, or found on a host."""
    if target.device != "auto":
        return target.device == "gpu"
    return target.expects_gpus or any(report.gpus for report in survey.reports.values())


def check_hosts(target: Target, survey: Survey) -> Findings:
    """Every host answers, without a password and in time."""
    if target.location == "outside":
        return Findings(unknown=[("", "only in the job: its hosts do not exist yet")])
    answered = f"{counted(len(survey.reports), 'host')} answered {CHANNELS[target.channel]}"
    return Findings(
        summary=f"{answered}, within {survey.slowest_seconds:.1f} s",
        failures=[("", line) for line in survey.unreached.values()],
    )


def check_scheduler(target: Target, survey: Survey) -> Findings:
    """The scheduler's program is installed where jobs are submitted."""
    if target.submit_program is None:
        return Findings(summary="not needed here")
    missing = f"{survey.missing_program} not found. Install it, load its module, or submit from where it is"
    failures = [("this machine", missing)] if survey.missing_program else []
    return Findings(summary=f"{target.submit_program} found", failures=failures)


def check_software(target: Target, survey: Survey) -> Findings:
    """All hosts have the framework, and the same Python, packages, MPI and files of the project."""
    software = survey.reported(lambda report: report.software)
    packages = {name for framework in target.frameworks for name in PACKAGES_OF_FRAMEWORK[framework]}
    values = {name: {host: found.versions.get(name) for host, found in software.items()}
              for name in ("Python", "the project", *sorted(packages))}  # fmt: skip
    failures = [
        (host, f"{TITLES[framework]} is not installed. {SET_UP}, or name another --framework")
        for host, found in software.items()
        for framework in target.frameworks
        if _version(found.versions, framework) is None
    ]
    if target.effective_controller == "mpi":
        values["openmpi"] = {host: found.versions.get("openmpi") for host, found in software.items()}
        values["mpirun"] = dict(survey.reported(lambda report: report.mpirun))
        failures += survey.errors("mpirun", remedy=f"Load its module there. {SET_UP}, as an alternative")
    for name, of_hosts in values.items():
        failures += _differences(of_hosts, what=name, remedy=SAME_SOFTWARE.get(name, f"{SET_UP}, as here"))
    firsts = {name: next(iter(of_hosts.values()), None) for name, of_hosts in values.items()}
    return Findings(summary=", ".join(f"{name} {value}" for name, value in firsts.items() if value), failures=failures)


def _version(versions: Mapping[str, str], framework: str) -> str | None:
    """Return the installed version of a framework."""
    return next((versions[name] for name in INSTALLED_AS[framework] if name in versions), None)


def check_horovod(target: Target, survey: Survey) -> Findings:
    """Horovod was compiled for the installed frameworks, with the chosen controller, and with NCCL for GPUs."""
    needed = [target.effective_controller, *(["nccl"] if _uses_gpus(target, survey) else [])]
    failures: list[HostLine] = []
    for host, builds in survey.reported(lambda report: report.horovod).items():
        software = survey.reports[host].software
        for framework in target.frameworks:
            title, build = TITLES[framework], builds.get(framework)
            if build is None:
                failures.append((host, f"Horovod is not compiled for {title}. {SET_UP}"))
                continue
            failures += [
                (host, f"Horovod for {title} is compiled without {FEATURES[name][0]}. {FEATURES[name][1]}")
                for name in needed
                if name not in build.features
            ]
            now, then = _version(software.versions, framework) if software else None, build.compiled_for
            if now and then and now.split("+")[0] != then.split("+")[0]:
                problem = f"Horovod was compiled for {title} {then}, but {now} is installed"
                failures.append((host, f"{problem}. {SET_UP}: it recompiles"))
    titles = " and ".join(TITLES[framework] for framework in target.frameworks)
    return Findings(
        summary=f"compiled for {titles}, with {' and '.join(FEATURES[name][0] for name in needed)}", failures=failures
    )


def check_pmi(target: Target, survey: Survey) -> Findings:
    """Srun offers the kind of PMI that the site joins ranks with."""
    if target.site.launcher != "srun" or target.effective_controller == "gloo":
        return Findings(summary="not needed without srun")
    kinds, wanted = survey.srun_mpi, target.site.slurm.mpi
    if not isinstance(kinds, tuple):
        return Findings(unknown=[("this machine", kinds or "srun was not asked")])
    line = (
        f"srun does not offer {wanted}, but {', '.join(kinds) or 'nothing'}. Name one that MPI was compiled for (`mpi` "
        "in [launch.slurm] of the site file), or start by mpirun"
    )
    return Findings(summary=f"srun offers {wanted}", failures=[] if wanted in kinds else [("this machine", line)])


def check_network(target: Target, survey: Survey) -> Findings:
    """The network interface exists on every host, is up and has an address."""
    wanted, failures = target.site.network_interface, []
    for host, interfaces in survey.reported(lambda report: report.interfaces).items():
        ready = [name for name, addresses in interfaces.items() if addresses and name != "lo"]
        if wanted is not None and not interfaces.get(wanted):
            state = "is up without an address" if wanted in interfaces else "does not exist or is not up"
            remedy = "Name one that every host has (`network_interface` in the site file)"
            others = ", ".join(ready) or "none"
            failures.append((host, f"network interface {wanted} {state}; ready: {others}. {remedy}"))
        elif wanted is None and len(target.hosts) > 1 and not ready:
            failures.append((host, "no network interface but lo has an address. Bring one up"))
    summary = "every host has an address" if len(target.hosts) > 1 else "not needed by one host"
    return Findings(summary=f"{wanted} is up and has an address" if wanted else summary, failures=failures)


def check_gpus(target: Target, survey: Survey) -> Findings:
    """There is a GPU for each rank of a host, of the same model on all hosts."""
    if target.device == "cpu":
        return Findings(summary="not needed with --device cpu")
    gpus = survey.reported(lambda report: report.gpus)
    remedy = "Ask for one GPU per rank (--gres, CUDA_VISIBLE_DEVICES), start fewer ranks, or use --device cpu"
    failures = [
        (host, f"{counted(len(found), 'GPU')} visible for {counted(target.hosts[host], 'rank')}. {remedy}")
        for host, found in gpus.items()
        if _uses_gpus(target, survey) and len(found) < target.hosts[host]
    ]
    models = {host: ", ".join(sorted(set(found))) for host, found in gpus.items()}
    equal = "Use hosts with equal GPUs: their times cannot be compared"
    found = next(iter(models.values()), "")
    return Findings(
        summary=f"{found}, at least one per rank" if found else "none on any host: ranks train on the CPU",
        failures=failures or _differences(models, what="the GPU", remedy=equal),
    )


def check_threads(target: Target, survey: Survey) -> Findings:
    """Ranks x threads fit the cores of each host."""
    remedy = "Times would not be meaningful: start fewer ranks there, give fewer --threads, or ask for more cores"
    failures, loads = [], {}
    for host, software in survey.reported(lambda report: report.software).items():
        ranks, cores = target.hosts[host], software.cores
        threads = target.threads or max(1, cores // ranks)
        load = f"{counted(ranks, 'rank')} x {counted(threads, 'thread')} on {counted(cores, 'core')}"
        loads[load] = host
        if ranks * threads > cores:
            failures.append((host, f"{load}. {remedy}"))
    return Findings(summary="; ".join(loads), failures=failures)


def check_disk(target: Target, survey: Survey) -> Findings:
    """Folders can be written and have space; the cache of data sets only if the data set is still to be fetched."""
    written = [
        (host, name, folder)
        for host, folders in survey.reported(lambda report: report.folders).items()
        for name, folder in folders.items()
        if name != "cache" or ((data := survey.reports[host].data) and data.state == "absent")
    ]
    least = min((folder.free_bytes for _, _, folder in written), default=0) / 1e9
    names = ", ".join(dict.fromkeys(name for _, name, _ in written))
    failures = [(host, problem) for host, name, folder in written if (problem := _folder_problem(name, folder))]
    return Findings(summary=f"at least {least:,.1f} GB free ({names})", failures=failures)


def _folder_problem(name: str, folder: Folder) -> str | None:
    if folder.problem:
        return f"the {name} folder {folder.path} cannot be written: {folder.problem}. Fix it or name another folder"
    if folder.free_bytes < FREE_BYTES:
        free = f"{folder.free_bytes / 1e9:.2f} GB free"
        return f"{free} for the {name} folder {folder.path}. Free {FREE_BYTES / 1e9:g} GB, or name another folder"
    return None


def check_shared_runs(target: Target, survey: Survey) -> Findings:
    """All hosts write into the same runs folder, where hosts share folders."""
    if target.channel == "local":
        return Findings(summary="not needed by one host")
    folder = target.folders["runs"]
    failed = dict(survey.errors("shared"))
    apart = [host for host in survey.reports if host not in survey.marked and host not in failed]
    if apart and target.site.scheduler in SEPARATE_FOLDERS:
        reason = "rank 0's host keeps the runs, and only hosts that share the folder can resume them"
        return Findings(summary=f"{', '.join(apart)}: {folder} is not this machine's folder; {reason}")
    problem = f"what is written into {folder} there is not visible on this machine"
    remedy = "Use a folder on a shared file system (--runs-folder), or check that file system"
    return Findings(
        summary=f"every host writes into {folder}", failures=[(host, f"{problem}. {remedy}") for host in apart]
    )


def check_data(target: Target, survey: Survey) -> Findings:
    """The data set is in the cache and undamaged."""
    name, failures, unknown = target.dataset, [], []
    if name is None:
        return Findings(summary="no data set was named")
    states = survey.reported(lambda report: report.data)
    for host, data in states.items():
        if data.state == "damaged":
            remedy = f"Remove it there, then `python -m common datasets fetch {name}`"
            failures.append((host, f"{name} is damaged: {data.text}. {remedy}"))
        elif data.state == "absent" and not (target.site.internet and data.published):
            remedy = f"Bring it: `python -m common datasets fetch {name}` where there is a network"
            failures.append((host, f"{name} is {data.text}. {remedy}"))
        elif data.state != "verified":
            unknown.append((host, f"{name} is {data.text}"))
    summary = f"{name}: {next(iter(states.values())).text}" if states else ""
    return Findings(summary=summary, failures=failures, unknown=unknown)


def check_clocks(target: Target, survey: Survey) -> Findings:
    """The clocks of the hosts agree, by when the ranks leave an all-reduce."""
    if target.channel == "local":
        return Findings(summary="one host has one clock")
    if not isinstance(survey.exchange, ExchangeReport):
        return Findings(unknown=[("", "no ranks were started: fix the failures above first")])
    offsets = dict(zip(survey.exchange.hosts, survey.exchange.clock_offsets, strict=True))
    failures = [
        (host, f"its clock is {abs(offset):.1f} s {'ahead' if offset > 0 else 'behind'}: files, logs and power traces "
         "of the hosts could not be matched. Start a time service there (chrony, ntpd)")
        for host, offset in offsets.items()
        if abs(offset) > CLOCK_SECONDS
    ]  # fmt: skip
    return Findings(summary=f"at most {max(map(abs, offsets.values())):.3f} s apart", failures=failures)


def check_allreduce(target: Target, survey: Survey) -> Findings:
    """A sum over all ranks is correct, and the ranks are joined as they should be."""
    report = survey.exchange
    if report is None:
        return Findings(unknown=[("", "no ranks were started: fix the failures above first")])
    if isinstance(report, str):
        return Findings(failures=[("", report)])
    failures = [
        (report.hosts[rank], f"the sum on rank {rank} is wrong. {SET_UP}, and test its memory and network")
        for rank in report.wrong_ranks
    ]
    if len(report.hosts) != target.size:
        met = f"{counted(len(report.hosts), 'rank')} met instead of {target.size}: each would run alone"
        remedy = "Check that the launcher and Horovod use the same MPI, and that PMI fits it"
        failures.append((report.hosts[0], f"{met}. {remedy}"))
    elif report.controller not in ("none", target.effective_controller):
        joined = f"ranks are joined by {report.controller}, not {target.effective_controller}"
        failures.append((report.hosts[0], f"{joined}. Unset HOROVOD_CONTROLLER, or name this --controller"))
    times = [1e3 * seconds for seconds in report.seconds]
    return Findings(
        summary=f"{report.bytes / 1e6:g} MB over {counted(target.size, 'rank')} in {statistics.median(times):.2f} ms "
        f"(median of {len(times)}, {min(times):.2f} to {max(times):.2f}), plus "
        f"{survey.exchange_seconds - sum(report.seconds):.1f} s to start and end",
        failures=failures,
    )


CHECKS = (
    Check(name="hosts", judge=check_hosts, where="everywhere"),
    Check(name="scheduler", judge=check_scheduler, where="everywhere"),
    Check(name="software", judge=check_software, part="software", remedy=f"{SET_UP}, and name its Python"),
    Check(name="horovod", judge=check_horovod, part="horovod", remedy=SET_UP),
    Check(name="pmi", judge=check_pmi),
    Check(name="network", judge=check_network, where="job", part="interfaces"),
    Check(name="gpus", judge=check_gpus, where="job", part="gpus",
          remedy="Fix the driver there: `nvidia-smi` has to list the GPUs"),
    Check(name="threads", judge=check_threads, where="job", part="software"),
    Check(name="disk", judge=check_disk, part="folders"),
    Check(name="shared runs", judge=check_shared_runs, where="job", part="shared",
          remedy="Let it write there, or name another --runs-folder"),
    Check(name="data", judge=check_data, part="data"),
    Check(name="clocks", judge=check_clocks, where="job"),
    Check(name="allreduce", judge=check_allreduce, where="job"),
)  # fmt: skip
LOCATIONS = {
    "everywhere": ("job", "login node", "outside"),
    "software": ("job", "login node"),
    "job": ("job",),
}
ONLY_IN_JOB = {
    "login node": "only in the job: this is a login node",
    "outside": "only in the job: it runs on its own machines",
}


def judge(target: Target, survey: Survey) -> list[CheckResult]:
    """Return the result of every check."""
    return [_result(check, target, survey) for check in CHECKS]


def _result(check: Check, target: Target, survey: Survey) -> CheckResult:
    if target.location not in LOCATIONS[check.where]:
        findings = Findings(unknown=[("", ONLY_IN_JOB[target.location])])
    elif check.where != "everywhere" and not survey.reports:
        findings = Findings(unknown=[("", "no host answered")])
    else:
        findings = check.judge(target, survey)
        errors = survey.errors(check.part, remedy=check.remedy)
        (findings.failures if check.remedy else findings.unknown).extend(errors)
    result: Literal["ok", "failed", "not checked"]
    result = "failed" if findings.failures else "not checked" if findings.unknown else "ok"
    lines = _grouped([*findings.failures, *findings.unknown]) or [findings.summary]
    return CheckResult(check=check.name, result=result, lines=lines)


def _grouped(lines: Iterable[HostLine]) -> list[str]:
    """Return (host, message) pairs as lines, with the hosts of one message on one line."""
    hosts: dict[str, list[str]] = {}
    for host, message in lines:
        hosts.setdefault(message, []).append(host)
    return [f"{', '.join(names)}: {message}".removeprefix(": ") for message, names in hosts.items()]
