"""One environment for everything, `.venv`, or one per framework, `.venv-torch` and `.venv-keras`.

Set-up makes two where the packages of PyTorch and TensorFlow would overwrite each other, as those for different
versions of CUDA do; `.venv` is then a link to the first. Standard library only: programs import this before packages.
"""

import os
import sys
import sysconfig
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import NoReturn

from common.errors import EXIT_CODE_USER_ERROR, UserError
from common.utils.paths import ROOT

_HANDED_OVER = "handed-over"  # an option of the interpreter (-X): unlike a variable, no other program inherits it


def hand_over(framework: str) -> None:
    """Start a program of the framework's folder again in the framework's own environment, if it runs in another one.

    The process, its arguments, the interpreter's options and all variables stay, so launchers notice nothing. Other
    processes that import the folder (a notebook, a test) are left alone. Where the environment cannot be used, the
    process ends with one line and exit code 2; with several ranks each has its line, as one host alone may be broken.
    """
    try:
        _require_own_program(f"{framework}_impl")
        if not _runs_program_of(ROOT / f"{framework}_impl"):
            return
        folder = other_environment(framework)
        if folder is not None:
            _start_again(folder)
    except UserError as error:
        print(f"{framework}_impl: error: {error}", file=sys.stderr)
        sys.exit(EXIT_CODE_USER_ERROR)


def _require_own_program(folder: str) -> None:
    """Raise UserError if this process runs a program of another copy of the project, whose packages are hidden."""
    program = Path(sys.argv[0])
    package = program.resolve().parent
    of_package = package.name == folder and (package / "__init__.py").is_file()
    if sys.argv[0] in sys.orig_argv and program.is_file() and of_package:
        copy = package.parent
        if not copy.samefile(ROOT):  # a folder may be mounted twice
            raise UserError(
                f"another copy of this project comes first. Received: {program} of {copy} with the packages of {ROOT}. "
                f"Set PYTHONPATH={copy}"
            )


def project_first() -> dict[str, str]:
    """Return variables for a `python -m` of ours: others of its name, there or on PYTHONPATH, are not started."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}


def _start_again(folder: Path) -> NoReturn:
    """Replace this program by itself in another environment."""
    python, problem = str(folder / "bin" / "python"), "it runs in another environment"
    if _HANDED_OVER not in sys._xoptions:
        try:
            os.execv(python, [python, "-X", _HANDED_OVER, *sys.orig_argv[1:]])
        except OSError as error:
            problem = str(error.strerror)
    raise UserError(f"the environment cannot be used. Received: {python}: {problem}. Run `make setup`")


def _runs_program_of(folder: Path) -> bool:
    """Return whether this process was started for a program of a folder, by its path or by `python -m`."""
    program = sys.argv[0]  # while Python looks for the module of `-m`, that word
    is_file_there = Path(program).is_file() and Path(program).resolve().parent == folder
    return program in sys.orig_argv and (program == "-m" or is_file_there)


def other_environment(framework: str) -> Path | None:
    """Return the framework's own environment; None: it has none, or this process runs in it.

    Raises:
        UserError: it is incomplete.
    """
    folder = ROOT / f".venv-{framework}"
    if not folder.is_dir() or folder.samefile(sys.prefix):
        return None
    for needed in ("bin/python", "pyvenv.cfg", "horovod-twins/stamp.json"):  # set-up writes the stamp last
        if not (folder / needed).exists():
            raise UserError(f"the environment is incomplete. Received: {folder} without {needed}. Run `make setup`")
    return folder


def package_folders(framework: str) -> list[str]:
    """Return where the framework's programs find packages: `sys.path`, or the folder of their own environment.

    Raises:
        UserError: that environment is incomplete.
    """
    folder = other_environment(framework)
    return sys.path if folder is None else [sysconfig.get_path("purelib", "venv", {"base": str(folder)})]


def missing_packages(framework: str, names: Sequence[str] = ()) -> list[str]:
    """Return which of these packages, and of the framework itself, its programs do not find. Imports none.

    Raises:
        UserError: its environment is incomplete.
    """
    folders = package_folders(framework)
    return [name for name in (framework, *names) if PathFinder.find_spec(name, folders) is None]
