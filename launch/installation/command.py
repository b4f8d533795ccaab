"""The command line of set-up, which `launch/setup.py` starts. Standard library only, as all that it imports."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from common.errors import EXIT_CODE_INTERRUPTED, EXIT_CODE_USER_ERROR, UserError
from common.utils.command_line import Parser, end_cleanly_on_sigterm, path
from common.utils.paths import ROOT
from launch.installation import plan as setup_plan
from launch.installation import run as setup_run
from launch.installation import state as setup_state


def main(arguments: Sequence[str] | None = None) -> int:
    """Set up; return the exit code."""
    end_cleanly_on_sigterm()
    try:
        set_up(parse(arguments))
    except UserError as error:
        print(f"setup: error: {error}", file=sys.stderr)
        return EXIT_CODE_USER_ERROR
    except KeyboardInterrupt:
        print("\nsetup: interrupted; run the same command to resume", file=sys.stderr)
        return EXIT_CODE_INTERRUPTED
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = Parser(prog="setup.py", description="Set up .venv: packages, MPI, Horovod, the project.")
    parser.add_argument(
        "--frameworks", default="", help='"torch", "keras" or both (default: as in the last set-up, at first both)'
    )
    parser.add_argument("--need", default="", help="a framework to install whatever was chosen before")
    parser.add_argument("--dev", action="store_true", help="install the tools for tests, lint and types, too")
    parser.add_argument("--gpu", dest="gpu", action="store_true", default=None, help="build for an NVIDIA GPU")
    parser.add_argument("--no-gpu", dest="gpu", action="store_false", help="leave an NVIDIA GPU unused")
    parser.add_argument("--wheels", default="", metavar="FOLDER", help="install from this folder, without a network")
    parser.add_argument("--fill-wheels", default="", metavar="FOLDER", help="fill that folder for another machine")
    parser.add_argument("--dry-run", action="store_true", help="print the commands, run none")
    parser.add_argument("--root", type=path, default=ROOT, help="the clone to set up (default: this one)")
    return parser.parse_args(arguments)


def set_up(options: argparse.Namespace) -> None:
    """Bring `.venv` to what the options ask for; do nothing if it is there already."""
    state = setup_state.SetupState(options.root)
    gpu = state.gpu() if options.gpu is None else options.gpu
    request = setup_plan.Request(
        root=options.root,
        frameworks=setup_state.choose_frameworks(options.frameworks, need=options.need, remembered=state.chosen()),
        dev=options.dev,
        gpu=setup_run.gpu_present() if gpu is None else gpu,
        wheels=Path(options.wheels).expanduser().absolute() if options.wheels else None,
    )
    if options.dry_run:
        print(setup_plan.describe(setup_plan.plan(request, machine=setup_run.look_at_machine(request))))
        return
    if state.satisfies(request) and not options.fill_wheels:
        return
    with state.locked():
        if not state.satisfies(request):  # another set-up may have done it while this one waited
            setup_run.run_set_up(request, state)
        if options.fill_wheels:
            folder = Path(options.fill_wheels).expanduser().absolute()
            setup_run.fill_wheels(request, state, folder)
            print(f"setup: on the other machine, of the same kind: make setup WHEELS={folder}")
