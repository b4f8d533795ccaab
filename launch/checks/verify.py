"""`python -m launch verify`: run a finished run again from its own record, and show whether it reproduces.

    python -m launch verify runs/NAME                      into the new folder runs/NAME-verify
    python -m launch verify runs/NAME --time-ratio 1.2     stricter about time
    python -m analysis verify runs/NAME-verify             show the result again

Exit code 0: it reproduces; 1: it does not; 2: it could not be run again. `analysis/questions/verify.py` has the rules.
"""

import argparse
import itertools
import math
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common.checks.verify_record import WholeRun, whole_run, write_verify
from common.config import Config, changed_settings, settings_flags
from common.distributed.launchers import under_launcher
from common.errors import EXIT_CODE_INTERRUPTED, UserError, expanded
from common.model.weights import weights_hash
from common.run_folder.environment import TUNING_VARIABLES, Environment
from common.run_folder.records import Hashes, RecordedRun, World, read_run
from common.task.task import Task
from common.utils.command_line import word
from common.utils.environments import missing_packages
from launch.experiments.survey import this_host
from launch.starting.analysis import run_analysis
from launch.starting.launchers import launcher_at
from launch.starting.processes import PROGRAMS, require_program, run_filtered, trainer_environment
from launch.starting.train import check_settings

EXIT_CODE_DOES_NOT_REPRODUCE = 1
_FURTHER_PACKAGES = {"torch": ["horovod"], "keras": ["tensorflow", "horovod"]}
_INTERRUPTED = (EXIT_CODE_INTERRUPTED, 143)  # of a program ended by Ctrl-C or SIGTERM; horovodrun may return 1


def add_command(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    parser = commands.add_parser(
        "verify",
        help="run a run again from its record, to see whether it reproduces",
        description="Run a finished run again, as recorded, and show whether it reproduces (exit code 0 or 1).",
    )
    parser.add_argument("run_folder", type=word, metavar="RUN", help="a run folder")
    parser.add_argument(
        "--time-ratio",
        type=float,
        default=1.5,
        help="how many times as long an epoch of one run may take as one of the other (default: %(default)s)",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code.

    Raises:
        UserError: there is no such run, it cannot be run again here, or the rerun failed.
    """
    if not 1 <= options.time_ratio < math.inf:
        raise UserError(
            f"the ratio of times must be 1 or more. Received: --time-ratio {options.time_ratio}. Give for example 1.5"
        )
    run = read_run(expanded(options.run_folder))
    rerun = plan_rerun(run)
    print(f"running {run.folder} again as {rerun.folder}", flush=True)
    experiment = check_settings(rerun.config, framework=run.record.framework, size=rerun.original.world.processes)
    changes = _changed_start(rerun.original.hashes, experiment)
    if changes:
        print(*changes, "Does not reproduce: it would be another experiment, and was not run.", sep="\n")
        return EXIT_CODE_DOES_NOT_REPRODUCE
    print(shlex.join(rerun.command), flush=True)
    code = run_filtered(rerun.command, environment={**trainer_environment(), **rerun.variables})
    if code in _INTERRUPTED or (code and _ended_by_signal(rerun.folder)):
        print("interrupted: no verdict")
        return EXIT_CODE_INTERRUPTED
    if code:
        raise UserError(f"the rerun failed. Received: exit code {code} of {rerun.folder}. Fix the error shown above")
    write_verify(rerun.folder, run=run.folder, time_ratio=options.time_ratio)
    print(flush=True)
    return run_analysis("verify", rerun.folder)


def _changed_start(then: Hashes, now: Task) -> list[str]:
    """Return a line for each difference that would make the rerun another experiment."""
    hashes = (
        ("first weights", then.initial_weights, weights_hash(now.first_weights)),
        ("sample order", then.sample_order, now.sample_order_hash),
    )
    return [f"{what}: {old} in the record, {new} now" for what, old, new in hashes if old != new]


def _ended_by_signal(folder: Path) -> bool:
    try:
        return read_run(folder).state == "interrupted"
    except UserError:  # it ended before it had a run folder
        return False


@dataclass(frozen=True)
class Rerun:
    """How to run a run again.

    Attributes:
        original: the run.
        config: its settings, except for the run folder, with the device and threads that it used.
        folder: the new run folder.
        command: the whole command.
        variables: the recorded environment variables that influence sums and exchange.
    """

    original: WholeRun
    config: Config
    folder: Path
    command: list[str]
    variables: Mapping[str, str]


def plan_rerun(run: RecordedRun) -> Rerun:
    """Return how to run a run again.

    Raises:
        UserError: it was not measured, is not finished, or needs what this machine does not have.
    """
    if run.record.origin != "measured":
        raise UserError(
            f"only a measured run can be run again. Received: {run.folder}, {run.record.origin}. Give a measured run"
        )
    if run.state != "finished":
        raise UserError(f"the run is not finished. Received: {run.folder}, {run.state}. Wait for it, or --resume it")
    original = whole_run(run)
    world, environment, framework = original.world, original.environment, run.record.framework
    _check_machine(framework, world)
    threads = world.threads_per_rank
    assert isinstance(threads, int), "a measured run records its threads"
    if not world.oversubscribed:  # fewer cores get fewer threads, which the verdict shows
        threads = min(threads, max(1, int(this_host().cores) // world.size))
    folder = _free_folder(run.folder)
    config = replace(
        original.config,
        device=replace(original.config.device, device="cpu" if world.on_cpu else "gpu", threads=threads),
        record=replace(
            original.config.record,
            runs_folder=os.path.relpath(folder.parent),
            name=folder.name,
            resume=None,
            resume_or_start=False,
            progress="auto",
            site="local",
        ),
    )
    command = launcher_at(None, hosts=None).command(
        PROGRAMS[framework],
        np=world.processes,
        controller=world.controller if world.processes > 1 else None,
        arguments=changed_flags(config),
    )
    if _was_without_launcher(world, environment):
        command = command[command.index("python") :]
    else:
        require_program(command[0])
    variables = {name: environment.variables[name] for name in TUNING_VARIABLES if name in environment.variables}
    return Rerun(original, config, folder, command, variables)


def changed_flags(config: Config) -> list[str]:
    """Return the flags of all settings that are not the defaults."""
    return settings_flags({name: value for _, name, _, value in changed_settings(Config(), config)})


def _check_machine(framework: str, world: World) -> None:
    if framework not in PROGRAMS:
        raise UserError(f"no trainer can run this. Received: {framework}. Give a run of {' or '.join(PROGRAMS)}")
    missing = missing_packages(framework, _FURTHER_PACKAGES[framework])
    if missing:
        raise UserError(
            f"the run needs packages that are not installed. Received: {framework} without {', '.join(missing)}. "
            f"Run `make setup FRAMEWORKS={framework}`"
        )
    host = this_host()
    what, there = ("cores", host.cores) if world.on_cpu else ("GPUs", host.gpus)
    if world.size > there and not world.oversubscribed:
        raise UserError(
            f"the run had more ranks than this machine has {what}. Received: {world.size} ranks, {there} {what}. "
            "Verify it on a larger machine"
        )


def _was_without_launcher(world: World, environment: Environment) -> bool:
    """Return whether the run was one process that `python` started: it then uses Gloo, where mpirun would use MPI."""
    variables = environment.variables
    return world.size == 1 and variables.get("HOROVOD_CONTROLLER") == "gloo" and not under_launcher(variables)


def _free_folder(path: Path) -> Path:
    """Return the first of RUN-verify, RUN-verify-2, ... that does not exist."""
    first = path.resolve().with_name(f"{path.resolve().name}-verify")
    others = (first.with_name(f"{first.name}-{number}") for number in itertools.count(2))
    return next(folder for folder in itertools.chain([first], others) if not folder.exists())
