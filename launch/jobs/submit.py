"""`python -m launch submit`: a trainer or an experiment as a job at a site.

    python -m launch submit --site aws-g5 --nodes 2 --gpus-per-node 4 -- keras_impl/train.py --model resnet34
    python -m launch submit --site slurm --ranks-per-node 2 -- experiment smoke

`--dry-run` prints what would be submitted. Settings are checked first, and on a login node of Slurm all that preflight
can check there, so that no job waits in a queue only to fail.
"""

import argparse
import shlex
import sys
from dataclasses import dataclass, replace
from datetime import date, datetime
from functools import partial
from pathlib import Path
from typing import Any

from common.config import Config
from common.distributed.console import counted
from common.errors import UserError, expanded
from common.pipeline.forecast import forecast_bytes, partition_of
from common.run_folder.records import now
from common.sites.prices import Price
from common.utils.command_line import whole_number, word
from launch.experiments.estimate import outline_of
from launch.jobs.experiment_jobs import check_experiment
from launch.jobs.job import (
    JOBS_FOLDER,
    Job,
    JobRecord,
    check_name,
    new_folder,
    read_settings,
    write_files,
    write_record,
)
from launch.jobs.login_check import check_on_login_node
from launch.jobs.schedulers import scheduler
from launch.jobs.schedulers.slurm import node_cores
from launch.sites.site_files import LaunchSite, read_launch_site
from launch.starting.processes import PROGRAMS

EXPERIMENT = "experiment"
# Set by the job itself, so that the same words after "--" mean the same experiment at every site.
_OF_THE_JOB = ("--runs-folder", "--name", "--site", "--hosts", "--resume")
NOT_ELASTIC = (
    "a job's ranks do not come and go. Received: --elastic. Give --restarts N to submit, or start the run by "
    "`python -m launch train --elastic`"
)


def add_command(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    parser = commands.add_parser(
        "submit",
        help="run a trainer or an experiment as a job at a site",
        description="Submit a job. What it runs follows after --: the path of a trainer, or `experiment` and a name, "
        "and then their own settings.",
    )
    parser.add_argument("--site", default="local", help="a name that `sites` shows, or a file (default: %(default)s)")
    parser.add_argument("--nodes", type=whole_number, default=1, help="default: %(default)s")
    parser.add_argument("--gpus-per-node", type=partial(whole_number, least=0), default=0, help="default: %(default)s")
    parser.add_argument("--ranks-per-node", type=whole_number, help="default: one per GPU, without GPUs 1")
    parser.add_argument("--name", help="of the job and of its run folder (default: what it runs, and the time)")
    limit = "time limit of each run, or of an experiment as a whole (default: %(default)s)"
    parser.add_argument("--minutes", type=whole_number, default=60, help=limit)
    parser.add_argument("--repeats", type=whole_number, default=1, help="runs of a trainer, each with the next seed")
    again = "start a trainer's ranks again when one ends or hangs, so many times (default: 0)"
    parser.add_argument("--restarts", type=partial(whole_number, least=0), default=0, help=again)
    parser.add_argument("--spot", action="store_true", help="on spot machines: cheaper, but they may be taken away")
    parser.add_argument("--no-preflight", action="store_true", help="skip the checks, here and in the job")
    parser.add_argument(
        "--runs-folder",
        type=word,
        metavar="FOLDER",
        help="folder of its run folders at the site (default: the site's, or runs)",
    )
    parser.add_argument(
        "--jobs-folder", type=word, default=JOBS_FOLDER, help="where jobs are kept (default: %(default)s)"
    )
    parser.add_argument("--dry-run", action="store_true", help="print what would be submitted")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    job = _job(options)
    there = scheduler(job.site.scheduler)
    files = there.render(job)
    print(f"{_words(job)} on {job.site.title}: {_cost(job)}", file=sys.stderr)
    if job.site.scheduler == "slurm" and not node_cores(job):
        print(f"note: each rank gets one core, as the cores of {job.node} are unknown; for more, write [sites.NAME] "
              "with `cores` into a copy of launch/sites/slurm.toml", file=sys.stderr)  # fmt: skip
    machine = job.site.machines[job.node]
    if options.dry_run:
        if machine.retired:
            print(f"note: {job.node} has been retired since {machine.retired}; its successor is {machine.successor}",
                  file=sys.stderr)  # fmt: skip
        for name, text in files.items():
            print(text if len(files) == 1 else f"# {name}\n{text}", end="")
        return 0
    if machine.retired:
        raise UserError(
            f"this machine has been retired since {machine.retired}. Received: {job.node}. Use its successor, "
            f"{machine.successor}; --dry-run shows what would have been submitted"
        )
    if job.preflight and job.site.scheduler == "slurm":
        check_on_login_node(job)
    elsewhere = [] if options.jobs_folder == JOBS_FOLDER else ["--jobs-folder", options.jobs_folder]
    follow, cancel = (
        shlex.join(["python", "-m", "launch", command, job.name, *elsewhere]) for command in ("status", "cancel")
    )
    identifier = _submit(job, files, parent=expanded(options.jobs_folder), remedy=f"End what runs with: {cancel}")
    print(f"submitted {job.name} ({job.site.scheduler} {identifier}); follow it with: {follow}")
    return 0


def _submit(job: Job, files: dict[str, str], *, parent: Path, remedy: str) -> str:
    """Submit a job, and keep its record from the moment at which something of it may run; return its id.

    Raises:
        UserError: it was not submitted, and where something may run nevertheless, how that is ended.
    """
    there, folder = scheduler(job.site.scheduler), new_folder(job.name, parent=parent)
    kept: list[JobRecord] = []

    def keep(identifier: str) -> None:
        record = JobRecord(
            name=job.name, site=job.site.reference, id=identifier, submitted_at=now(),
            command=["python", "-m", "launch", *sys.argv[1:]], size=job.size, repeats=job.tasks,
            runs=job.run_folders(),
        )  # fmt: skip
        write_record(folder, record)
        kept.append(record)

    try:
        write_files(folder, files)
        identifier = there.submit(job, folder, keep=keep)
    except BaseException as error:
        if not kept or (isinstance(error, UserError) and _is_gone(kept[0], folder)):
            _withdraw(folder)
            raise
        if isinstance(error, UserError):
            raise UserError(f"{error}. {remedy}") from None
        print(f"note: the job is kept. {remedy}", file=sys.stderr)
        raise
    if not kept:
        keep(identifier)
    return identifier


def _is_gone(record: JobRecord, folder: Path) -> bool:
    """Return whether the scheduler says that nothing is left of a job."""
    try:
        return scheduler(record.read_site().scheduler).state(record, folder).state == "gone"
    except UserError:
        return False


def _withdraw(folder: Path) -> None:
    """Remove what was written for a job that was not submitted, so that the same command can be given again."""
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


def _job(options: argparse.Namespace) -> Job:
    """Return the requested job, checked.

    Raises:
        UserError: no such job is possible.
    """
    site = read_launch_site(options.site)
    if options.runs_folder is not None:
        _check_line(options.runs_folder)
        site = replace(site, runs_folder=options.runs_folder)
    if site.scheduler == "local" and options.nodes > 1:
        raise UserError(
            f"{site.name} is one machine. Received: --nodes {options.nodes}. Give --ranks-per-node for more ranks, or "
            "the --site of several hosts"
        )
    node, _ = site.node_for(options.gpus_per_node)
    longest = site.slurm.max_hours if site.scheduler == "slurm" else None
    if longest is not None and options.minutes > 60 * longest:
        raise UserError(
            f"{site.name} allows at most {longest:g} hours. Received: --minutes {options.minutes}. "
            "Give less: a trainer resumes from its checkpoints"
        )
    if options.spot and site.scheduler != "skypilot":
        raise UserError(f"{site.name} has no spot machines. Received: --spot. Leave it out")
    words = options.trainer_arguments
    if not words:
        raise UserError(
            f"there is nothing to run. Received: nothing after --. Name {', '.join(PROGRAMS.values())} or "
            f"{EXPERIMENT} NAME there"
        )
    ranks_per_node = options.ranks_per_node or max(1, options.gpus_per_node)
    ranks = options.nodes * ranks_per_node
    slots = ranks if site.scheduler != "local" else None
    what = _what(words, options, site=site, slots=slots)
    program, arguments = what.program, what.arguments
    name = _default_name(program, what.experiment) if options.name is None else options.name
    check_name(name)
    settings = read_settings(arguments, program=program) if program else None
    if options.restarts and not program:
        raise UserError(
            "an experiment makes failed runs when it is submitted again. Received: --restarts. Leave it out"
        )
    if settings:
        if settings.faults.elastic:
            raise UserError(NOT_ELASTIC)
        settings.strategy.check_framework(str(program))
        settings.check_ranks(ranks)
        _check_device(settings, program, ranks=ranks_per_node, nodes=options.nodes, gpus=options.gpus_per_node)
        if settings.strategy.needs_mpi:
            site = replace(site, controller="mpi")  # no other connects its ranks
    return Job(
        name=name, site=site, node=node, nodes=options.nodes,
        ranks_per_node=ranks_per_node, gpus_per_node=options.gpus_per_node,
        program=program, experiment=what.experiment, arguments=tuple(arguments), minutes=options.minutes,
        repeats=options.repeats, restarts=options.restarts, seed=settings.training.seed if settings else 1,
        spot=options.spot or site.skypilot.spot, preflight=not options.no_preflight and site.container is None,
        preflight_flags=(
            *_preflight_flags(program, settings, gpus=options.gpus_per_node, site=site),
            *_flag("--runs-folder", options.runs_folder),
        ),
        servers=(settings.strategy.servers or 0) if settings else 0, parts=what.parts,
    )  # fmt: skip


def _check_device(settings: Config, program: str | None, *, ranks: int, nodes: int, gpus: int) -> None:
    """Raise UserError for what a trainer would refuse only after the job has waited; `ranks`, `gpus`: of a node."""
    device, servers = settings.device, settings.strategy.servers or 0
    workers = min(ranks, nodes * ranks - servers)  # of the first node: servers, which use no GPU, are the last ranks
    if device.device != "cpu" and 0 < gpus < workers and not device.share_gpu:
        raise UserError(
            f"each worker of a node needs its own GPU. Received: --ranks-per-node {ranks}, --gpus-per-node {gpus}. "
            f"Give --ranks-per-node {gpus + ranks - workers} or fewer, or to the trainer --device cpu, "
            "or --share-gpu (not for times)"
        )
    if program == PROGRAMS["keras"] and device.device == "cpu" and not device.channels_last:
        raise UserError(
            "TensorFlow's kernels for CPUs need channels last. Received: --no-channels-last and --device cpu. "
            "Leave it out, or use torch"
        )


def _preflight_flags(program: str | None, settings: Config | None, *, gpus: int, site: LaunchSite) -> list[str]:
    """Return the flags that describe the job to its preflight; those of an experiment vary by run."""
    if settings is None:
        return ["--dataset", "none", *(["--device", "gpu"] if gpus else [])]
    (framework,) = (name for name, path in PROGRAMS.items() if path == program)
    device, threads, needs_mpi = settings.device.device, settings.device.threads, settings.strategy.needs_mpi
    device = "gpu" if gpus and device == "auto" else device
    if settings.device.share_gpu:  # ranks have no GPU of their own, and exchange gradients in host memory
        device = "cpu"
    return [
        *("--framework", framework, "--device", device, "--dataset", settings.data.dataset),
        *_flag("--threads", threads),
        *(["--compile"] if settings.model.compile else []),
        *_flag("--controller", site.controller if needs_mpi else None),
        *_flag("--memory-mb", _memory_mb(settings)),
    ]


def _memory_mb(settings: Config) -> int | None:
    """Return what training will take of a rank beyond the framework, by the numbers of its layers; None: not known.

    Raises:
        UserError: the model cannot be divided as the settings say.
    """
    outline = outline_of(settings)
    if outline is None:
        return None
    partition = partition_of(outline.model(settings), settings.parts)
    forecast = forecast_bytes(partition, settings, images=settings.training.batch_size)
    return -(-max(forecast) // 10**6)


def _flag(name: str, value: object) -> list[str]:
    return [] if value is None else [name, str(value)]


@dataclass(frozen=True, kw_only=True)
class _What:
    """The trainer or the experiment, what follows it, and how many tasks share the runs of an experiment."""

    program: str | None = None
    experiment: str | None = None
    arguments: list[str]
    parts: int = 1


def _what(words: list[str], options: argparse.Namespace, *, site: LaunchSite, slots: int | None) -> _What:
    """Return what is to run; `slots`: how many ranks fit, None: any number."""
    first, arguments = words[0], words[1:]
    for one in words:
        _check_line(one)
    names = {one.partition("=")[0].replace("_", "-") for one in arguments}  # trainers read --runs_folder, too
    given = [flag for flag in _OF_THE_JOB if flag in names]
    if given:
        raise UserError(f"the job sets this itself. Received: {given[0]} after --. Leave it out there")
    if first == EXPERIMENT:
        name, parts = check_experiment(words, repeats=options.repeats, site=site, slots=slots)
        return _What(experiment=name, arguments=arguments[1:], parts=parts)
    if first not in PROGRAMS.values():
        raise UserError(f"unknown program. Received: {first}. Use {', '.join(PROGRAMS.values())}, or {EXPERIMENT} NAME")
    site.check_frameworks({name for name, path in PROGRAMS.items() if path == first})
    return _What(program=first, arguments=arguments)


def _check_line(word: str) -> None:
    if any(ord(character) < 32 or ord(character) == 127 for character in word):
        raise UserError(f"a script cannot hold a word of several lines. Received: {word!r}. Use one line")


def _default_name(program: str | None, experiment: str | None) -> str:
    what = Path(experiment).stem if experiment else str(program).split("_")[0]
    return f"{what}-{datetime.now():%Y%m%d-%H%M%S}"


def _words(job: Job) -> str:
    gpus = f", {counted(job.gpus_per_node, 'GPU')} each" if job.gpus_per_node else ""
    repeats = f", {job.repeats} times" if job.repeats > 1 else ""
    repeats += f", {job.parts} runs at once" if job.parts > 1 else ""
    return (
        f"{job.program or f'experiment {job.experiment}'}{repeats}, {counted(job.size, 'rank')} on "
        f"{counted(job.nodes, 'node')}{gpus}"
    )


def _cost(job: Job) -> str:
    machine, today = job.site.machines[job.node], date.today()
    price, lower, cost = machine.price(), machine.price(spot=True), job.cost_usd()
    limit = f"up to {counted(job.minutes, 'minute')}"
    if job.tasks > 1:
        limit += f" a {'task' if job.experiment else 'run'}, {counted(job.total_minutes, 'minute')} in all"
    if price is None or cost is None:
        return f"{limit}, no hourly price"
    spot = "; spot machines cost less, at prices that change daily" if job.spot else ""
    if spot and lower:
        spot += f": ${lower.usd_per_hour:g} an hour on {lower.dated(on=today)}"
    return (
        f"{limit}, ${cost:.2f} for these minutes alone ({job.nodes} x {job.node} at ${price.usd_per_hour:g} an hour, "
        f"{price.terms}, {price.dated(on=today)}{_elsewhere(job, price)}{spot})"
    )


def _elsewhere(job: Job, price: Price) -> str:
    """Return what of a rented cluster's cost is not in the price: other regions, and minutes before and after."""
    if job.site.scheduler != "skypilot":
        return ""
    region = job.site.skypilot.region
    other = (
        "" if region and region == price.region else f"; the region is {region or 'not fixed'}: its price may differ"
    )
    return f"{other}; set-up and idle minutes come on top"
