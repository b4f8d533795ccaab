"""The Python that set-up works with. Any Python 3 can read this file, to hand over or to report the error."""

import os
import shutil
import subprocess
import sys

PYTHONS = ("3.11", "3.12", "3.13")  # as in pyproject.toml
NO_WHEEL = "tensorflow-cpu 2.21.0"  # the first package that newer ones lack
PATIENCE_SECONDS = 20
MARK = "HOROVOD_TWINS_HANDED_OVER"
EXIT_CODE_USER_ERROR = 2  # as in common.errors, which older Pythons may not be able to read
PROBE = """
import os, sys, sysconfig
print("%d.%d" % sys.version_info[:2])
import ensurepip, venv
print("venv")
print(os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))
"""


def hand_over(program: str, venv: str = "", pythons: tuple = PYTHONS) -> None:
    """Return if this Python will do; else start the program again by one that does, or exit with a one-line error.

    It is the one that the variable PYTHON names; else the one that the environment was made by; else this one; else
    the newest on PATH that runs and has what is needed.

    Args:
        program: its name, for the error.
        venv: the folder of the environment, if there is one.
        pythons: the versions that will do.
    """
    if os.environ.pop(MARK, ""):
        return
    named, maker = os.environ.get("PYTHON", ""), made_by(venv)
    if not named and maker and same(maker, sys.executable):
        return  # without asking it anything, as that takes a while
    first = [shutil.which(named) or named] if named else [maker, sys.executable] if maker else [sys.executable]
    fitting = [path for path in first if not problem_of(path, pythons)] or ([] if named else newest(pythons))
    if fitting and same(fitting[0], sys.executable):
        return
    if fitting:
        os.environ[MARK] = "1"
        os.execv(fitting[0], [fitting[0], *sys.argv])
    needed, problem = " or ".join(pythons), problem_of(first[-1], pythons)
    print(
        f"{program}: error: Python {needed} with its module venv and its headers is needed. Received: {first[-1]}, "
        f"{problem}. Install one (Debian, Ubuntu: apt-get install python3-venv python3-dev), load its module, or name "
        "it: make setup PYTHON=/path/to/python3",
        file=sys.stderr,
    )
    sys.exit(EXIT_CODE_USER_ERROR)


def made_by(venv: str) -> str:
    """Return the Python that an environment was made by, if it is still there."""
    try:
        with open(venv + "/pyvenv.cfg") as file:  # noqa: PTH123 - old Pythons
            paths = [line.split(" = ")[1].strip() for line in file if line.startswith("executable = ")]
    except OSError:
        return ""
    return paths[0] if paths and os.access(paths[0], os.X_OK) else ""


def same(path: str, other: str) -> bool:
    """Return whether two paths are of one Python."""
    return os.path.realpath(path) == os.path.realpath(other)


def newest(pythons: tuple) -> list:
    """Return the newest Python on PATH that will do, if any: of a version manager's programs some do not run."""
    names = ["python" + version for version in reversed(pythons)] + ["python3"]
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    paths = [folder + "/" + name for name in names for folder in folders]
    return [path for path in paths if os.access(path, os.X_OK) and not problem_of(path, pythons)][:1]


def problem_of(path: str, pythons: tuple) -> str:
    """Return why a Python will not do; empty if it will."""
    pipe = subprocess.PIPE
    try:
        done = subprocess.run([path, "-c", PROBE], stdout=pipe, stderr=pipe, timeout=PATIENCE_SECONDS, check=False)
        version, *found = done.stdout.decode().split()
    except (OSError, ValueError, subprocess.SubprocessError):
        return "which does not run"
    if version not in pythons:
        newer = [int(part) for part in version.split(".")] > [int(part) for part in PYTHONS[-1].split(".")]
        return f"Python {version}" + (f", for which there is no wheel of {NO_WHEEL}" if newer else "")
    return "" if found == ["venv", "True"] else f"Python {version} without " + ("headers" if found else "venv")
