"""The Python that set-up takes, out of those that a test puts in its way."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from made_programs import add_script

from common.errors import EXIT_CODE_USER_ERROR
from launch.installation import needed_python

ROOT = Path(__file__).resolve().parents[3]
HERE = os.path.realpath(sys.executable)
PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from launch.installation import needed_python
needed_python.PYTHONS = tuple(sys.argv[3].split())
needed_python.hand_over("setup", sys.argv[2], needed_python.PYTHONS)
print("taken", sys.argv[4:], sys.executable)
"""


@pytest.fixture
def place(tmp_path):
    """A folder of Pythons on PATH, which tell a version; `ask` starts the program by this one."""

    class Place:
        folder, venv, pythons = tmp_path / "bin", tmp_path / ".venv", "3.11 3.12 3.13"

        def add(self, name, version, *, has="venv True", runs=True):
            """Put a Python there, which prints its path when it is taken."""
            probe = f'if [ "$1" = -c ]; then printf "{version}\\n{has}\\n"; exit; fi'
            return add_script(self.folder / name, f"{probe if runs else 'exit 127'}\necho taken $0")

        def ask(self, **variables):
            """Return what the program prints, and its exit code."""
            program = tmp_path / "program.py"
            program.write_text(PROGRAM)
            clean = {name: value for name, value in os.environ.items() if name != "PYTHON"}
            done = subprocess.run(
                [HERE, program, ROOT, self.venv, self.pythons],
                env=clean | {"PATH": str(self.folder)} | variables, capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.stderr.count("\n") == (done.returncode != 0)
            return done.stdout + done.stderr, done.returncode

    return Place()


def test_the_list_of_pythons_is_the_one_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest, newest = needed_python.PYTHONS[0], needed_python.PYTHONS[-1]
    assert project["requires-python"] == f">={oldest},<3.{int(newest.split('.')[1]) + 1}"
    assert needed_python.NO_WHEEL.replace(" ", "==") in project["optional-dependencies"]["tensorflow"]


def test_the_one_that_starts_set_up_is_taken_if_it_will_do(place):
    place.add("python3.13", "3.13")
    assert place.ask() == (f"taken [] {HERE}\n", 0)


def test_else_the_newest_that_runs_and_has_what_is_needed(place):
    place.pythons = "3.97 3.98 3.99"
    place.add("python3.99", "3.99", runs=False)  # a version manager's, of a version that is not chosen
    place.add("python3.98", "3.98", has="venv False")
    path = place.add("python3.97", "3.97")
    place.add("python3", "3.97")
    assert place.ask() == (f"taken {path}\n", 0)


def test_what_is_named_is_taken_or_refused(place):
    path = place.add("other", "3.12")
    assert place.ask(PYTHON="other") == place.ask(PYTHON=str(path)) == (f"taken {path}\n", 0)
    assert place.ask(PYTHON=HERE) == (f"taken [] {HERE}\n", 0)
    place.add("python3.12", "3.12")
    for text, problem in {
        "none": "none, which does not run",
        str(place.add("old", "3.9")): "Python 3.9",
        str(place.add("new", "3.14")): f"Python 3.14, for which there is no wheel of {needed_python.NO_WHEEL}",
        str(place.add("no-venv", "3.12", has="")): "Python 3.12 without venv",
        str(place.add("no-headers", "3.12", has="venv False")): "Python 3.12 without headers",
    }.items():
        printed, code = place.ask(PYTHON=text)
        assert code == EXIT_CODE_USER_ERROR and re.search(rf"Received: .*{re.escape(problem)}\. Install", printed), (
            printed
        )


def test_the_one_that_made_the_environment_stays(place):
    place.venv.mkdir()
    path = place.add("theirs", "3.12")
    (place.venv / "pyvenv.cfg").write_text(f"home = {path.parent}\nversion = 3.12.1\nexecutable = {path}\n")
    assert place.ask() == (f"taken {path}\n", 0)
    assert place.ask(PYTHON=HERE) == (f"taken [] {HERE}\n", 0), "unless another is named"
    path.unlink()
    assert place.ask() == (f"taken [] {HERE}\n", 0)
    (place.venv / "pyvenv.cfg").write_text(f"version = 3.12.1\nexecutable = {add_script(path, 'exit 1')}\n")
    assert place.ask() == (f"taken [] {HERE}\n", 0), "it no longer runs"


def test_none_is_one_line(place):
    place.pythons = "3.98 3.99"
    printed, code = place.ask()
    assert code == EXIT_CODE_USER_ERROR
    assert printed.startswith("setup: error: Python 3.98 or 3.99 with its module venv and its headers is needed.")
