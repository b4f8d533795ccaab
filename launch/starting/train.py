"""`python -m launch train`: check the settings, print the command, start the ranks.

The checks, and the fetching of the data with a bar, come before any rank starts: so a user error is one line,
without the lines that a launcher adds when its ranks end with an error.
"""

import argparse
import math
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from common.config import Config
from common.distributed.pinning import choose_gpu
from common.errors import UserError
from common.run_folder.records import check_new_folder
from common.training.entry_point import read_settings
from common.training.resume import AlreadyFinished, look_at_run, read_resumable_run
from common.training.run_setup import RunSetup, prepare_run
from common.utils.command_line import whole_number
from launch.starting.largest_batch import find_largest_batch
from launch.starting.launchers import launcher_at
from launch.starting.processes import DEFAULT_RANKS, PROGRAMS, run_filtered, trainer_environment

EXIT_CODE_NOTHING_FITS = 1


def add_command(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    parser = commands.add_parser(
        "train",
        help="train on this host: check the settings, then horovodrun",
        description="Check the settings, print the command, start the ranks. Settings of the trainer follow after --.",
    )
    parser.add_argument("--framework", choices=sorted(PROGRAMS), default="torch", help="default: %(default)s")
    parser.add_argument("--np", type=whole_number, default=DEFAULT_RANKS, help="number of ranks (default: %(default)s)")
    parser.add_argument("--controller", choices=["mpi", "gloo"], help="how ranks talk (default: Horovod's choice, mpi)")
    parser.add_argument("--site", metavar="SITE", help="where this is, if ranks are started otherwise there")
    parser.add_argument("--hosts", metavar="a:2,b:2", help="hosts and their slots, or a host file")
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
    start.site.check_frameworks([options.framework])
    if options.memory_limit is not None:
        options.trainer_arguments += ["--memory-limit", str(options.memory_limit)]
    command = start.command(program, np=options.np, controller=options.controller, arguments=options.trainer_arguments)
    settings = read_settings(start.recorded_arguments(options.trainer_arguments), program=program)
    if isinstance(settings, UserError):
        raise settings
    try:
        setup = check_settings(settings, framework=options.framework, size=options.np)
    except AlreadyFinished as done:
        print(done)
        return 0
    if options.find_largest_batch:
        return _find_largest_batch(options, settings, setup)
    print(shlex.join(command), flush=True)
    if options.dry_run:
        return 0
    start.check(np=options.np)
    return run_filtered(command, environment=trainer_environment())


def _find_largest_batch(options: argparse.Namespace, settings: Config, setup: RunSetup) -> int:
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
        setup,
        framework=options.framework,
        controller=options.controller,
        arguments=options.trainer_arguments,
        memory_gb=options.memory_gb,
    )
    return 0 if found else EXIT_CODE_NOTHING_FITS


def check_settings(settings: Config, *, framework: str, size: int) -> RunSetup:
    """Fetch the data if needed and check all that can be checked before ranks are started.

    Returns:
        The run setup as each rank will see it.

    Raises:
        UserError: something does not fit together.
        AlreadyFinished: `--resume-or-start` found a finished run.
    """
    setup = prepare_run(settings, size=size)
    record = settings.record
    folder = Path(record.resume) if record.resume else record.folder(record.name or "new")
    standing = None
    if record.resume_or_start:
        standing = look_at_run(settings, framework=framework, report=lambda line: print(line, file=sys.stderr))
        if standing == "finished":
            raise AlreadyFinished(settings)
    if record.resume or standing == "to be resumed":
        read_resumable_run(folder, framework=framework, setup=setup)
    elif standing != "to be set aside":
        check_new_folder(folder)
    if shutil.which("nvidia-smi") is None:  # where it is, the ranks look, as they see the devices
        choose_gpu([], config=settings.device, local_rank=0, local_size=size)
    return setup
