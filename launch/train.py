"""`python -m launch train`: check the settings, print the command, start the ranks.

The checks, and the fetching of the data with a bar, come before any rank starts: so what the user can mend is one line,
without the lines that a launcher adds when its ranks end with an error.
"""

import argparse
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.config import Config
from common.errors import UserError
from common.experiment import prepare_experiment
from common.pinning import choose_gpu
from common.program import read_settings
from common.records import check_new_folder
from common.resume import read_resumable_run
from launch.processes import run_filtered, trainer_environment

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = {"torch": "torch_impl/train.py", "keras": "keras_impl/train.py"}


def add_command(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    parser = commands.add_parser(
        "train",
        help="train on this host: check the settings, then horovodrun",
        description="Check the settings, print the command, start the ranks. Settings of the trainer follow after --.",
    )
    parser.add_argument("--framework", choices=sorted(PROGRAMS), default="torch", help="default: %(default)s")
    parser.add_argument("--np", type=int, default=4, help="number of ranks (default: %(default)s)")
    parser.add_argument("--controller", choices=["mpi", "gloo"], help="how ranks talk (default: Horovod's choice, mpi)")
    parser.add_argument("--dry-run", action="store_true", help="print the command only")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command; return the launcher's exit code."""
    if options.np < 1:
        raise UserError(f"there is no run without ranks. Received: --np {options.np}. Give 1 or more")
    program = PROGRAMS[options.framework]
    command = train_command(program, np=options.np, controller=options.controller, arguments=options.trainer_arguments)
    settings = read_settings(options.trainer_arguments, program=program)
    if isinstance(settings, UserError):
        raise settings
    check_settings(settings, framework=options.framework, size=options.np)
    print(shlex.join(command), flush=True)
    if options.dry_run:
        return 0
    if shutil.which(command[0], path=trainer_environment()["PATH"]) is None:
        raise UserError(
            f"{command[0]} is not installed. Received: {sys.executable}. Run `make setup` and use its .venv"
        )
    return run_filtered(command, environment=trainer_environment())


def train_command(program: str, *, np: int, controller: str | None, arguments: Sequence[str]) -> list[str]:
    """Return the command that starts a trainer on this host, as one would type it in the current folder."""
    path = os.path.relpath(ROOT / program)
    chosen = [f"--{controller}"] if controller else []
    return ["horovodrun", "-np", str(np), *chosen, "python", path, *arguments]


def check_settings(settings: Config, *, framework: str, size: int) -> None:
    """Fetch the data if needed and check all that can be checked before ranks are started.

    Raises:
        UserError: something does not fit together.
    """
    experiment = prepare_experiment(settings, size=size, progress=sys.stderr.isatty())
    record = settings.record
    if record.resume:
        read_resumable_run(Path(record.resume), framework=framework, experiment=experiment)
    else:
        check_new_folder(record.folder(record.name or "new"))
    if shutil.which("nvidia-smi") is None:  # where it is, the ranks look, as they see the devices
        choose_gpu([], config=settings.device, local_rank=0, local_size=size)
