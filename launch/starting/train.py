"""`python -m launch train`: check the settings, print the command, start the ranks.

The checks, and the fetching of the data with a bar, come before any rank starts: so a user error is one line,
without the lines that a launcher adds when its ranks end with an error.
"""

import argparse
import math
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from common.config import Config, read_recipe, requested
from common.config.rules import flag_of
from common.distributed.pinning import choose_gpu
from common.errors import EXIT_CODE_USER_ERROR, UserError
from common.names import framework_here
from common.run.program import read_settings
from common.run.resume import AlreadyFinished, look_at_run, read_resumable_run, recorded_first_copies
from common.run_folder.records import RunState, read_record, state_of
from common.run_folder.run_writer import check_new_folder
from common.task.prepare import prepare
from common.task.task import Task
from common.utils.command_line import whole_number
from launch.starting.elastic import ElasticStart
from launch.starting.largest_batch import find_largest_batch
from launch.starting.launchers import Launcher, launcher_at
from launch.starting.processes import (
    DEFAULT_RANKS,
    PROGRAMS,
    run_to_end,
    trainer_environment,
)

EXIT_CODE_NOTHING_FITS = 1
UNNAMED = ".new"  # in place of the name that a run without one gets at its start; no run has it
NEW_FOLDER = "NEW_FOLDER"  # how a dry run calls the one that would be made


def add_command(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    parser = commands.add_parser(
        "train",
        help="train on this host: check the settings, then horovodrun",
        description="Check the settings, print the command, start the ranks. Settings of the trainer follow after --.",
    )
    parser.add_argument(
        "--framework", type=framework_here, choices=sorted(PROGRAMS), default="torch", help="default: %(default)s"
    )
    parser.add_argument("--np", type=whole_number, default=DEFAULT_RANKS, help="number of ranks (default: %(default)s)")
    parser.add_argument(
        "--controller", choices=["mpi", "gloo"], help="communication backend (default: Horovod's choice, mpi)"
    )
    parser.add_argument("--site", metavar="SITE", help="where this is, if ranks are started otherwise there")
    parser.add_argument("--hosts", metavar="a:2,b:2", help="hosts and their slots, or a host file")
    parser.add_argument(
        "--elastic", action="store_true", help="ranks may end and join: the run goes on with the others"
    )
    parser.add_argument("--min-np", type=whole_number, help="least number of ranks of an elastic run (default: 1)")
    parser.add_argument("--max-np", type=whole_number, help="most ranks of an elastic run (default: --np)")
    parser.add_argument(
        "--restarts",
        type=partial(whole_number, least=0),
        default=0,
        help="start the ranks again when one ends or hangs, so many times, from the newest checkpoint (default: 0)",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the command only")
    parser.add_argument("--find-largest-batch", action="store_true", help="only try which batch fits into memory")
    parser.add_argument(
        "--memory-limit", metavar="MB", type=whole_number, help="end the run where a rank takes more for its model"
    )
    parser.add_argument("--memory-gb", type=float, help="of this host, for the largest batch (default: what is free)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command; return the launcher's exit code."""
    program = PROGRAMS[options.framework]
    start = launcher_at(options.site, hosts=options.hosts)
    start.check_frameworks([options.framework])
    _check_search_for_batch(options, start)
    if options.restarts:
        options.trainer_arguments += _found_again(options)
    if options.memory_limit is not None:
        options.trainer_arguments += ["--memory-limit", str(options.memory_limit)]
    if options.elastic or "--elastic" in options.trainer_arguments:
        return _run_elastic(options, start)
    if options.min_np is not None or options.max_np is not None:
        raise UserError("only ranks of an elastic run come and go. Received: --min-np or --max-np. Give --elastic, too")
    settings = _settings(start, options.trainer_arguments, program=program)
    controller = settings.strategy.controller(options.controller)
    command = start.command(program, np=options.np, controller=controller, arguments=options.trainer_arguments)
    try:
        task = check_settings(settings, framework=options.framework, size=options.np)
    except AlreadyFinished as done:
        print(done)
        return 0
    if options.find_largest_batch:
        return _find_largest_batch(options, settings, task, start=start)
    print(shlex.join(command), flush=True)
    if options.dry_run:
        return 0
    start.check(np=options.np)
    return _run(command, task.config, restarts=options.restarts, environment=trainer_environment())


def _settings(start: Launcher, arguments: Sequence[str], *, program: str) -> Config:
    settings = read_settings(start.recorded_arguments(arguments), program=program)
    if isinstance(settings, UserError):
        raise settings
    return settings


def _run_elastic(options: argparse.Namespace, start: Launcher) -> int:
    """Start ranks that may come and go; return the launcher's exit code."""
    program = PROGRAMS[options.framework]
    if options.controller == "mpi" or options.find_largest_batch:
        raise UserError(
            "ranks that come and go are connected by Gloo, and a search for a batch needs ranks that stay. Received: "
            "--elastic with --controller mpi or --find-largest-batch. Leave one of the two out"
        )
    arguments = [one for one in options.trainer_arguments if one != "--elastic"] + ["--elastic"]
    with tempfile.TemporaryDirectory(prefix="horovod-twins-hosts-") as folder:
        elastic = ElasticStart(
            launcher=start,
            np=options.np,
            least=1 if options.min_np is None else options.min_np,
            most=options.max_np or options.np,
            folder=Path(NEW_FOLDER if options.dry_run else folder),
        )
        settings = _settings(start, arguments, program=program)
        try:
            first_copies = recorded_first_copies(settings, framework=options.framework, report=_say)
            task = check_settings(settings, framework=options.framework, size=options.np, first_copies=first_copies)
            if elastic.most > options.np:  # ranks that join must not end the run
                prepare(settings, ranks=elastic.most, first_copies=task.first_copies)
        except AlreadyFinished as done:
            print(done)
            return 0
        command = [*elastic.words(), *start.program_words(program, arguments)]
        print(shlex.join(command), flush=True)
        if options.dry_run:
            print(f"{NEW_FOLDER} is made at the start; its hosts.sh prints: {' '.join(elastic.first_hosts)}")
            return 0
        elastic.check()
        elastic.write_files()
        print(f"hosts: {elastic.hosts_file}, a line each; it may be changed while the run goes on", flush=True)
        environment = {**trainer_environment(), **elastic.variables}
        return _run(command, settings, restarts=options.restarts, environment=environment)


def _found_again(options: argparse.Namespace) -> list[str]:
    """Return the flags by which ranks that are started again find their run, and by which one that hangs ends it.

    Raises:
        UserError: it is found in another way already.
    """
    given = options.trainer_arguments
    recipe = requested("--recipe", given)
    tables = read_recipe(Path(recipe)) if recipe else {}
    if requested("--resume", given) is not None:
        raise UserError("a start of a run finds it again by its name. Received: --restarts and --resume. Give --name")
    flags = [] if "--resume-or-start" in given else ["--resume-or-start"]
    if not _has(given, tables, "faults", "on_stall") and not (options.elastic or "--elastic" in given):
        flags += ["--on-stall", "end"]
    if not _has(given, tables, "record", "name"):
        flags += ["--name", f"{options.framework}-np{options.np}-{datetime.now():%Y%m%d-%H%M%S}"]
    return flags


def _has(given: Sequence[str], tables: Mapping[str, Any], subject: str, name: str) -> bool:
    """Return whether the arguments of a trainer, or the tables of its recipe, have a setting."""
    return requested(flag_of(name), given) is not None or name in tables.get(subject, {})


def _run(command: Sequence[str], settings: Config, *, restarts: int, environment: Mapping[str, str]) -> int:
    """Run ranks, and again when one of them has ended; return the launcher's exit code."""
    for left in range(restarts, -1, -1):
        ended = run_to_end(command, environment=environment)
        if ended.code == 0 or ended.was_interrupted or not left:
            break
        if ended.code == EXIT_CODE_USER_ERROR or _state_of_run(settings) == "failed":
            break  # an error, which would come again
        number = restarts - left + 1
        print(f"the ranks have ended: restart {number} of {restarts}, from the newest checkpoint", flush=True)
    return ended.code


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def _state_of_run(settings: Config) -> RunState | None:
    """Return the state of the run that ranks have left; None: there is none."""
    folder = settings.record.folder()
    try:
        return state_of(read_record(folder))
    except UserError:
        return None


def _check_search_for_batch(options: argparse.Namespace, start: Launcher) -> None:
    """Raise UserError unless a search for the largest batch, and its memory, are asked for together and here."""
    if not options.find_largest_batch:
        if options.memory_gb is not None:
            raise UserError(
                f"the memory is for a search of a batch. Received: --memory-gb {options.memory_gb:g}. "
                "Give --find-largest-batch, too"
            )
        return
    if options.dry_run:
        raise UserError(
            "a search for a batch is many runs. Received: --find-largest-batch and --dry-run. Leave one of the two out"
        )
    if start.elsewhere:
        raise UserError(
            "a search for a batch watches the memory of this host alone. Received: --find-largest-batch and "
            f"{start.elsewhere}. Leave out --hosts and --site"
        )


def _find_largest_batch(options: argparse.Namespace, settings: Config, task: Task, *, start: Launcher) -> int:
    if settings.record.resume:
        raise UserError(
            f"a resumed run keeps its batch. Received: --find-largest-batch and --resume {settings.record.resume}. "
            "Leave one of the two out"
        )
    if options.memory_gb is not None and not 0 < options.memory_gb < math.inf:
        raise UserError(
            f"--memory-gb is out of range. Received: --memory-gb {options.memory_gb}. Give gigabytes above 0, such as 8"
        )
    found = find_largest_batch(
        task,
        start=start,
        framework=options.framework,
        controller=options.controller,
        arguments=options.trainer_arguments,
        memory_gb=options.memory_gb,
    )
    return 0 if found else EXIT_CODE_NOTHING_FITS


def check_settings(settings: Config, *, framework: str, size: int, first_copies: int | None = None) -> Task:
    """Fetch the data if needed and check all that can be checked before ranks are started.

    Args:
        size: number of ranks, servers included.

    Returns:
        The task as each rank will see it.

    Raises:
        UserError: something does not fit together.
        AlreadyFinished: `--resume-or-start` found a finished run.
    """
    settings.check_ranks(size)
    task = prepare(settings, ranks=size - (settings.strategy.servers or 0), first_copies=first_copies)
    record = settings.record
    folder, standing = record.folder(unnamed=UNNAMED), look_at_run(settings, framework=framework, report=_say)
    if standing == "finished":
        raise AlreadyFinished(folder)
    if record.resume or standing == "to be resumed":
        read_resumable_run(folder, framework=framework, task=task)
    elif standing != "to be set aside":
        check_new_folder(folder)
    if shutil.which("nvidia-smi") is None:  # where it is, the ranks look, as they see the devices
        choose_gpu([], config=settings.device, local_rank=0, local_size=size)
    return task
