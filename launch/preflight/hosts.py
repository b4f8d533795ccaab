"""Checks of a preflight on the hosts and what joins them: pure functions of the plan and of what was answered."""

import statistics

from common.checks.preflight_worker import ExchangeReport
from common.distributed.console import counted
from launch.preflight.answers import Answers, Verdict, differences, on_hosts
from launch.preflight.host_probe import Data, Folder
from launch.preflight.plan import Plan
from launch.preflight.software import SET_UP, TITLES

OWN_FOLDERS = ("hosts", "skypilot")  # schedulers whose hosts may share no folder: rank 0 alone writes runs
CLOCK_SECONDS = 1.0  # further apart, files of one host lie in the other's future, and power traces and logs do not fit
FREE_BYTES = 10**9  # a run of ResNet-34 with its checkpoints takes about half of it


def check_network(plan: Plan, answers: Answers) -> Verdict:
    """The network interface is there on every host, is up and has an address."""
    wanted, failures = plan.site.network_interface, []
    for host, probe in answers.probes.items():
        interfaces = probe.interfaces or {}
        ready = [name for name, addresses in interfaces.items() if addresses and name != "lo"]
        if probe.interfaces is None:
            continue
        if wanted is not None and not interfaces.get(wanted):
            state = "is up without an address" if wanted in interfaces else "is not there or not up"
            others = ", ".join(ready) or "none"
            remedy = "Name one that every host has (`network_interface` in the site's file)"
            failures.append((host, f"network interface {wanted} {state}; ready: {others}. {remedy}"))
        elif wanted is None and len(plan.hosts) > 1 and not ready:
            failures.append((host, "no network interface but lo has an address. Bring one up"))
    if wanted:
        found = f"{wanted} is up and has an address"
    else:
        found = "every host has an address" if len(plan.hosts) > 1 else "not needed by one host"
    return Verdict(found=found, failures=on_hosts(failures), unknown=answers.untold("interfaces"))


def uses_gpus(plan: Plan, answers: Answers) -> bool:
    """Return whether ranks will train on GPUs: as told, as the job was given some, or as some host has."""
    if plan.device != "auto":
        return plan.device == "gpu"
    return plan.expects_gpus or any(probe.gpus for probe in answers.probes.values())


def check_gpus(plan: Plan, answers: Answers) -> Verdict:
    """There is a GPU for each rank of a host, and they are the same on all hosts."""
    if plan.device == "cpu":
        return Verdict(found="not needed with --device cpu")
    told = {host: probe.gpus for host, probe in answers.probes.items() if probe.gpus is not None}
    remedy = "Ask for a GPU a rank (--gres, CUDA_VISIBLE_DEVICES), start fewer ranks, or use --device cpu"
    failures = on_hosts(
        (host, f"{counted(len(gpus), 'GPU')} to be seen for {counted(plan.hosts[host], 'rank')}. {remedy}")
        for host, gpus in told.items()
        if uses_gpus(plan, answers) and len(gpus) < plan.hosts[host]
    )
    models = {host: ", ".join(sorted(set(gpus))) for host, gpus in told.items()}
    if not failures:
        failures = differences(models, what="the GPU", remedy="Use hosts with equal GPUs: their times do not compare")
    untold = answers.untold("gpus", remedy="Mend the driver there: `nvidia-smi` has to list the GPUs")
    found = next(iter(models.values()), "")
    return Verdict(
        found=f"{found}, one a rank at least" if found else "none on any host: ranks train on the CPU",
        failures=failures + untold,
    )


def check_nccl(plan: Plan, answers: Answers) -> Verdict:
    """Horovod is compiled with NCCL where ranks train on GPUs."""
    if not uses_gpus(plan, answers):
        return Verdict(found="not needed without GPUs")
    remedy = "Compile it with NCCL there: `make setup GPU=1`, or name --device cpu"
    failures = [
        (host, f"Horovod for {TITLES[framework]} lacks NCCL: gradients would go through the host's memory. {remedy}")
        for host, probe in answers.probes.items()
        for framework, build in (probe.horovod or {}).items()
        if framework in plan.frameworks and not build.nccl
    ]
    return Verdict(found="compiled into Horovod", failures=on_hosts(failures), unknown=answers.untold("horovod"))


def check_threads(plan: Plan, answers: Answers) -> Verdict:
    """Ranks x threads do not exceed the cores of a host."""
    remedy = "Its times would mean little: start fewer ranks there, give fewer --threads, or ask for more cores"
    failures, loads = [], {}
    for host, probe in answers.probes.items():
        if probe.software is None:
            continue
        ranks, cores = plan.hosts[host], probe.software.cores
        threads = plan.threads or max(1, cores // ranks)
        load = f"{counted(ranks, 'rank')} x {counted(threads, 'thread')} on {counted(cores, 'core')}"
        loads[load] = host
        if ranks * threads > cores:
            failures.append((host, f"{load}. {remedy}"))
    return Verdict(found="; ".join(loads), failures=on_hosts(failures), unknown=answers.untold("software"))


def check_disk(plan: Plan, answers: Answers) -> Verdict:
    """Folders can be written and have space; the cache of data sets only where something has yet to come into it."""
    written = [
        (host, name, folder)
        for host, probe in answers.probes.items()
        for name, folder in (probe.folders or {}).items()
        if name != "cache" or (probe.data is not None and probe.data.state == "absent")
    ]
    least = min((folder.free_bytes for _, _, folder in written), default=0) / 1e9
    failures = [(host, problem) for host, name, folder in written if (problem := _folder_problem(name, folder))]
    names = ", ".join(dict.fromkeys(name for _, name, _ in written))
    return Verdict(
        found=f"{least:,.1f} GB free at least ({names})",
        failures=on_hosts(failures),
        unknown=answers.untold("folders"),
    )


def _folder_problem(name: str, folder: Folder) -> str | None:
    if folder.problem:
        return f"the {name} folder {folder.path} cannot be written: {folder.problem}. Mend it or name another"
    if folder.free_bytes < FREE_BYTES:
        free = f"{folder.free_bytes / 1e9:.2f} GB free"
        return f"{free} for the {name} folder {folder.path}. Make it {FREE_BYTES / 1e9:g} GB, or name another folder"
    return None


def check_shared_runs(plan: Plan, answers: Answers) -> Verdict:
    """All hosts write into the same folder of runs, where hosts share folders."""
    if plan.way == "here":
        return Verdict(found="not needed by one host")
    folder = plan.folders["runs"]
    apart = [host for host, probe in answers.probes.items() if probe.sees_runs is False]
    if apart and plan.site.scheduler in OWN_FOLDERS:
        reason = "runs are kept where rank 0 is, and only hosts that share the folder can go on with them (--resume)"
        return Verdict(found=f"{', '.join(apart)}: {folder} is not the folder of this machine; {reason}")
    failures = []
    for host, probe in answers.probes.items():
        if probe.sees_runs is False:
            remedy = "Use a folder on a file system that they share (--runs-folder)"
            failures.append((host, f"{folder} is another folder there than on this machine. {remedy}"))
        elif probe.sees_runs and host not in answers.met:
            remedy = "Look at the shared file system"
            failures.append((host, f"what it writes into {folder} is not seen on this machine. {remedy}"))
    untold = answers.untold("shared", remedy="Let it write there, or name another --runs-folder")
    return Verdict(found=f"every host writes into {folder}", failures=on_hosts(failures) + untold)


def check_data(plan: Plan, answers: Answers) -> Verdict:
    """The data set is in the cache and as it was written."""
    if plan.dataset is None:
        return Verdict(found="no data set was asked for")
    told = {host: probe.data for host, probe in answers.probes.items() if probe.data}
    failures, unknown = [], []
    for host, data in told.items():
        if data.state == "damaged":
            remedy = f"Remove it there, then `python -m common datasets fetch {plan.dataset}`"
            failures.append((host, f"{plan.dataset} is damaged: {data.text}. {remedy}"))
        elif data.state == "absent" and not _can_be_fetched(plan, data):
            remedy = f"Bring it: `python -m common datasets fetch {plan.dataset}` where there is a network"
            failures.append((host, f"{plan.dataset} is {data.text}. {remedy}"))
        elif data.state != "verified":
            unknown.append((host, f"{plan.dataset} is {data.text}"))
    return Verdict(
        found=f"{plan.dataset}: {next(iter(told.values())).text}" if told else "",
        failures=on_hosts(failures),
        unknown=on_hosts(unknown) + answers.untold("data"),
    )


def _can_be_fetched(plan: Plan, data: Data) -> bool:
    return plan.site.internet and data.published


def skew_bounds(window: tuple[float, float], *, first: float, last: float) -> tuple[float, float]:
    """Return the least and the most seconds by which a host's clock can be ahead of this machine's.

    The host read `first` after it was asked and `last` before it had answered, so
    first - skew >= began and last - skew <= ended.

    Args:
        window: this machine's Unix time before the host was asked and after it had answered.
        first, last: the host's Unix time when its probe began and ended.
    """
    began, ended = window
    return last - ended, first - began


def check_clocks(plan: Plan, answers: Answers) -> Verdict:
    """The clocks of hosts agree: by the round trip of the question, or closer by the moments at which sums ended."""
    if plan.way == "here":
        return Verdict(found="one host has one clock")
    failures, unknown, widest = [], [], 0.0
    for host, probe in answers.probes.items():
        low, high = skew_bounds(answers.windows[host], first=probe.clock_first, last=probe.clock_last)
        offsets = _offsets(answers.exchange, node=probe.node)
        if offsets:
            low, high = min(offsets), max(offsets)
        widest = max(widest, abs(low), abs(high))
        if low > CLOCK_SECONDS or high < -CLOCK_SECONDS:
            state = f"its clock is {abs(low + high) / 2:.1f} s {'ahead' if low > 0 else 'behind'}"
            reason = "files, logs and power traces of the hosts would not fit together"
            failures.append((host, f"{state}: {reason}. Start a time service there (chrony, ntpd)"))
        elif low < -CLOCK_SECONDS or high > CLOCK_SECONDS:
            unknown.append((host, f"its clock is between {low:+.1f} and {high:+.1f} s ahead: it answered too slowly"))
    return Verdict(found=f"apart by {widest:.3f} s at most", failures=on_hosts(failures), unknown=on_hosts(unknown))


def _offsets(report: ExchangeReport | str | None, *, node: str) -> list[float]:
    """Return how far the clocks of a host's ranks are ahead of the first rank's, seconds."""
    if not isinstance(report, ExchangeReport):
        return []
    return [offset for host, offset in zip(report.hosts, report.clock_offsets, strict=True) if host == node]


def check_allreduce(plan: Plan, answers: Answers) -> Verdict:
    """A sum over all ranks is right, and ranks are joined as they should be."""
    report = answers.exchange
    if report is None:
        return Verdict(unknown=["no ranks were started: mend first what failed above"])
    if isinstance(report, str):
        return Verdict(failures=[report])
    failures = [
        (report.hosts[rank], f"the sum on rank {rank} is wrong. {SET_UP}, and test its memory and network")
        for rank in report.wrong_ranks
    ]
    if len(report.hosts) != plan.size:
        remedy = "See that the launcher and Horovod use the same MPI, and that PMI fits it"
        found = f"{counted(len(report.hosts), 'rank')} met instead of {plan.size}"
        failures.append((report.hosts[0], f"{found}: each is a run of its own. {remedy}"))
    elif report.controller not in ("none", plan.controller):
        remedy = "Unset HOROVOD_CONTROLLER, or name this --controller"
        failures.append((report.hosts[0], f"ranks are joined by {report.controller}, not {plan.controller}. {remedy}"))
    times = [1e3 * seconds for seconds in report.seconds]
    start = answers.seconds.get("allreduce", 0.0) - sum(report.seconds)
    found = (
        f"{report.bytes / 1e6:g} MB over {counted(plan.size, 'rank')} in {statistics.median(times):.2f} ms (median of "
        f"{len(times)}, {min(times):.2f} to {max(times):.2f}), besides {start:.1f} s for start and end"
    )
    return Verdict(found=found, failures=on_hosts(failures))
