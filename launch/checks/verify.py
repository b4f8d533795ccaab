"""`python -m launch verify`: run a finished run again from its own record, and say whether it reproduces.

    python -m launch verify runs/NAME                      into runs/NAME-verify, beside it
    python -m launch verify runs/NAME --time-ratio 1.2     stricter about time

Exit code 0: it reproduces; 1: it does not; 2: it could not be run again. `launch/checks/verdict.py` holds the rules.
"""

import argparse
import importlib.util
import math
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common.config import Config
from common.distributed.ranks import under_launcher
from common.errors import EXIT_CODE_INTERRUPTED, UserError, expanded
from common.model.weights import weights_hash
from common.run_folder.environment import TUNING_VARIABLES, Environment
from common.run_folder.records import DataRecord, Hashes, Run, Totals, World, read_run
from launch.checks.verdict import another_experiment, judge, on_cpu
from launch.experiments.runs import this_host
from launch.starting.launchers import train_command
from launch.starting.processes import PROGRAMS, require_program, run_filtered, settings_flags, trainer_environment
from launch.starting.train import check_settings

EXIT_CODE_DOES_NOT_REPRODUCE = 1
_MODULES = {"torch": ("torch",), "keras": ("keras", "tensorflow")}
_INTERRUPTED = (EXIT_CODE_INTERRUPTED, 143)  # of a program that Ctrl-C or SIGTERM has ended; horovodrun may say 1


def add_command(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    parser = commands.add_parser(
        "verify",
        help="run a run again from its record: does it reproduce?",
        description="Run a finished run again, as recorded, and say whether it reproduces (exit code 0 or 1).",
    )
    parser.add_argument("run_folder", metavar="RUN", help="a run folder")
    parser.add_argument(
        "--time-ratio",
        type=float,
        default=1.5,
        help="epochs may take so many times as long as then, or less by as much (default: %(default)s)",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code.

    Raises:
        UserError: there is no such run, it cannot be run again here, or the rerun failed.
    """
    if not 1 <= options.time_ratio < math.inf:
        raise UserError(
            f"a ratio of times is 1 or more, for it holds both ways. Received: --time-ratio {options.time_ratio}. "
            "Give for example 1.5"
        )
    before = read_run(expanded(options.run_folder))
    rerun = plan_rerun(before)
    print(f"verifying {before.folder} by running it again as {rerun.folder}", flush=True)
    experiment = check_settings(rerun.config, framework=before.record.framework, size=rerun.size)
    other = another_experiment(
        before, initial_weights=weights_hash(experiment.first_weights), sample_order=experiment.sample_order_hash
    )
    if other:
        print(*other, "does not reproduce: it would be another experiment, and was not run", sep="\n")
        return EXIT_CODE_DOES_NOT_REPRODUCE
    print(shlex.join(rerun.command), flush=True)
    code = run_filtered(rerun.command, environment={**trainer_environment(), **rerun.variables})
    if code in _INTERRUPTED or (code and _ended_by_signal(rerun.folder)):
        print("interrupted: no verdict")
        return EXIT_CODE_INTERRUPTED
    if code:
        raise UserError(f"the rerun failed. Received: exit code {code} of {rerun.folder}. Mend what it says above")
    verdict = judge(before, read_run(rerun.folder), time_ratio=options.time_ratio)
    print("", *verdict.lines, sep="\n")
    return 0 if verdict.reproduces else EXIT_CODE_DOES_NOT_REPRODUCE


def _ended_by_signal(folder: Path) -> bool:
    try:
        return read_run(folder).state == "interrupted"
    except UserError:  # it ended before it had a run folder
        return False


@dataclass(frozen=True)
class Rerun:
    """How a run is run again.

    Attributes:
        config: as recorded, but for the name of the run folder, and with device and threads as they turned out.
        size: ranks.
        folder: the new run folder.
        command: the whole command.
        variables: that decide on sums and exchange, as recorded.
    """

    config: Config
    size: int
    folder: Path
    command: list[str]
    variables: Mapping[str, str]


def plan_rerun(before: Run) -> Rerun:
    """Return how to run a run again.

    Raises:
        UserError: it was not measured, did not finish, or needs what this machine does not have.
    """
    record, path = before.record, before.folder
    if record.origin != "measured":
        raise UserError(f"only a measured run can be run again. Received: {path}, {record.origin}. Name a measured run")
    if before.state != "finished":
        raise UserError(f"the run is not finished. Received: {path}, {before.state}. Wait for it, or --resume it")
    config, world, environment = record.config, record.world, record.environment
    parts = [config, world, environment, record.hashes, record.data, record.totals]
    if not all(isinstance(part, Config | World | Environment | Hashes | DataRecord | Totals) for part in parts):
        raise UserError(f"the record lacks what a rerun needs. Received: {path}. Name a run with a whole record")
    assert isinstance(config, Config) and isinstance(world, World) and isinstance(environment, Environment)
    _check_machine(record.framework, world)
    threads = world.threads_per_rank
    assert isinstance(threads, int), "a measured run knows its threads"
    if not world.oversubscribed:  # a machine with fewer cores gets fewer threads, and the verdict tells it
        threads = min(threads, max(1, int(this_host().cores) // world.size))
    folder = _free_folder(path)
    config = replace(
        config,
        device=replace(config.device, device="cpu" if on_cpu(world) else "gpu", threads=threads),
        record=replace(
            config.record,
            runs_folder=os.path.relpath(folder.parent),
            name=folder.name,
            resume=None,
            resume_or_start=False,
            progress="auto",
            site="local",
        ),
    )
    command = train_command(
        PROGRAMS[record.framework],
        np=world.size,
        controller=world.controller if world.size > 1 else None,
        arguments=changed_flags(config),
    )
    if _was_without_launcher(world, environment):
        command = command[command.index("python") :]
    else:
        require_program(command[0])
    variables = {name: environment.variables[name] for name in TUNING_VARIABLES if name in environment.variables}
    return Rerun(config, world.size, folder, command, variables)


def changed_flags(config: Config) -> list[str]:
    """Return the flags of all settings that are not the defaults: a command line that gives just these settings."""
    defaults = Config().as_dict()
    return settings_flags(
        {
            name: value
            for subject, values in config.as_dict().items()
            for name, value in values.items()
            if value != defaults[subject][name]
        }
    )


def _check_machine(framework: str, world: World) -> None:
    if framework not in PROGRAMS:
        raise UserError(f"there is no trainer for it. Received: {framework}. Name a run of {' or '.join(PROGRAMS)}")
    missing = [name for name in (*_MODULES[framework], "horovod") if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"what the run needs is not installed. Received: {framework} without {', '.join(missing)}. "
            f"Run `make setup FRAMEWORKS={framework}`"
        )
    host = this_host()
    what, there = ("cores", host.cores) if on_cpu(world) else ("GPUs", host.gpus)
    if world.size > there and not world.oversubscribed:
        raise UserError(
            f"the run had more ranks than this machine has {what}. Received: {world.size} ranks, {there} {what}. "
            "Verify it on a larger machine"
        )


def _was_without_launcher(world: World, environment: Environment) -> bool:
    """Return whether the run was one process that `python` started: it then takes Gloo, where mpirun would name MPI."""
    variables = environment.variables
    return world.size == 1 and variables.get("HOROVOD_CONTROLLER") == "gloo" and not under_launcher(variables)


def _free_folder(path: Path) -> Path:
    """Return the first of RUN-verify, RUN-verify-2, ... that does not exist."""
    place, number = path.resolve(), 1
    first = folder = place.with_name(f"{place.name}-verify")
    while folder.exists():
        number += 1
        folder = place.with_name(f"{first.name}-{number}")
    return folder
