"""Set-up: make `.venv`, install the pinned packages, build Horovod once and keep the wheel, install the project.

    make setup                       both frameworks
    make setup FRAMEWORKS=torch      PyTorch only: nothing of TensorFlow is downloaded
    make setup WHEELS=DIR            without any network, from a folder that `make wheels WHEELS=DIR` filled
    make setup GPU=0                 leave an NVIDIA GPU unused (GPU=1: insist on one)
    python3 launch/setup.py --dry-run --gpu     print the commands and run none

Runs with the standard library alone, on the system's Python. What it would do is planned in `setup_plan.py` (pure),
done in `setup_run.py`, remembered in `setup_state.py`; `horovod_wheel.py` knows how Horovod is built.
The GPU variant could be tried on no machine so far: its commands are tested, their result is not.
"""

import argparse
import os
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NEEDED_PYTHON = (3, 11)  # older ones can read this file too (hence the quoted types), to say what is missing
EXIT_CODE_USER_ERROR = 2  # as in common.errors, which is not imported before the Python is known to be right
EXIT_CODE_INTERRUPTED = 130


def main(arguments: "list[str] | None" = None) -> int:
    """Set up and return the exit code. Another Python than the needed one hands over to it, or says so."""
    if sys.version_info[:2] != NEEDED_PYTHON:
        return hand_over_to_needed_python()
    sys.path[0] = str(ROOT)  # not launch/, where this file lies: `import common` and `import launch` are meant
    from common.errors import UserError

    try:
        set_up(parse(arguments))
    except UserError as error:
        print(f"setup: {error}", file=sys.stderr)
        return EXIT_CODE_USER_ERROR
    except KeyboardInterrupt:
        print("\nsetup: interrupted; the same command goes on from here", file=sys.stderr)
        return EXIT_CODE_INTERRUPTED
    return 0


def hand_over_to_needed_python() -> int:
    """Start this program again with python3.11 if there is one; else say what is missing."""
    version = ".".join(map(str, NEEDED_PYTHON))
    other = shutil.which(f"python{version}")
    if other and "HOROVOD_TWINS_HANDED_OVER" not in os.environ:
        os.environ["HOROVOD_TWINS_HANDED_OVER"] = "1"
        os.execv(other, [other, *sys.argv])
    received = sys.version.split()[0]
    print(
        f"setup: Python {version} is needed. Received: Python {received} ({sys.executable}). "
        f"Install python{version} and its venv module, or name it: make setup PYTHON=/path/to/python{version}",
        file=sys.stderr,
    )
    return EXIT_CODE_USER_ERROR


def parse(arguments: "list[str] | None") -> argparse.Namespace:
    """Read the command line; the right Python runs by now."""
    from common.utils.command_line import Parser

    parser = Parser(prog="setup.py", description="Set up .venv: packages, MPI, Horovod, the project.")
    parser.add_argument("--frameworks", default="", help='"torch", "keras" or both; empty: as last time, at first both')
    parser.add_argument("--need", default="", help="a framework that has to be there, whatever was chosen before")
    parser.add_argument("--dev", action="store_true", help="the tools for tests, lint and types too")
    parser.add_argument("--gpu", dest="gpu", action="store_true", default=None, help="build for an NVIDIA GPU")
    parser.add_argument("--no-gpu", dest="gpu", action="store_false", help="leave an NVIDIA GPU unused")
    parser.add_argument("--wheels", default="", metavar="DIR", help="install from this folder, without any network")
    parser.add_argument("--fill-wheels", default="", metavar="DIR", help="fill that folder for another machine")
    parser.add_argument("--dry-run", action="store_true", help="print the commands, run none")
    parser.add_argument("--root", type=Path, default=ROOT, help="the clone to set up (default: this one)")
    return parser.parse_args(arguments)


def set_up(options: argparse.Namespace) -> None:
    """Bring `.venv` to what the options ask for; nothing happens if it is there already."""
    from launch.installation import plan as setup_plan
    from launch.installation import run as setup_run
    from launch.installation import state as setup_state

    state = setup_state.State(options.root)
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
            setup_run.carry_out(request, state)
        if options.fill_wheels:
            folder = Path(options.fill_wheels).expanduser().absolute()
            setup_run.fill_wheels(request, state, folder)
            print(f"setup: on the other machine, of the same kind: make setup WHEELS={folder}")


if __name__ == "__main__":
    sys.exit(main())
