"""One environment per framework: which programs start again in it, which do not, and where packages are looked for.

Small projects: the real packages' first imports, programs that print what they were started with, and environments
without packages.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest

from common.errors import UserError
from common.utils import environments

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
import keras_impl
import json, os, sys
print(json.dumps([sys.prefix, sys.argv[1:], sys.flags.optimize, os.environ.get("OMPI_COMM_WORLD_RANK"), os.getpid()]))
"""


def make_environment(folder):
    """Make an environment without packages, as set-up leaves it."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(Path(sys.executable).resolve())
    (folder / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\n")
    (folder / "lib" / f"python3.{sys.version_info.minor}" / "site-packages").mkdir(parents=True)
    (folder / "horovod-twins").mkdir()
    (folder / "horovod-twins" / "stamp.json").write_text("{}")
    return folder


@pytest.fixture
def project(tmp_path):
    """A project with a program of Keras, and Keras' environment beside another one."""
    root = tmp_path / "project"
    for name in ("common/__init__", "common/errors", "common/utils/__init__", "common/utils/paths",
                 "common/utils/environments", "keras_impl/__init__"):  # fmt: skip
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / f"{name}.py", root / f"{name}.py")
    (root / "keras_impl" / "program.py").write_text(PROGRAM)
    make_environment(root / ".venv-keras")
    make_environment(root / ".venv-torch")
    (root / ".venv").symlink_to(".venv-torch")
    return root


def start(project, *words, environment=".venv", cwd=None, before=()):
    """Start Python; return its exit code, what the program printed, and its error."""
    command = [str(project / environment / "bin" / "python"), *words]
    variables = {"PYTHONPATH": os.pathsep.join(map(str, [*before, project])), "OMPI_COMM_WORLD_RANK": "3"}
    process = subprocess.Popen(command, cwd=cwd or project, env=variables, stdout=PIPE, stderr=PIPE, text=True)
    out, error = process.communicate(timeout=60)
    printed = json.loads(out) if out.startswith("[") else out
    if isinstance(printed, list):
        assert printed.pop() == process.pid
    return process.returncode, printed, error


def test_a_program_switches_to_its_environment_with_all_that_it_was_given(project):
    expected = [str(project / ".venv-keras"), ["two words", "--flag"], 1, "3"]
    for words in (["keras_impl/program.py"], ["-m", "keras_impl.program"], [str(project / "keras_impl/program.py")]):
        assert start(project, "-O", *words, "two words", "--flag") == (0, expected, "")


def test_in_its_environment_or_in_the_only_one_it_stays(project):
    program = "keras_impl/program.py"
    assert start(project, program, environment=".venv-keras")[1][0] == str(project / ".venv-keras")
    (project / ".venv-link").symlink_to(".venv-keras")
    assert start(project, program, environment=".venv-link")[1][0] == str(project / ".venv-link")
    shutil.rmtree(project / ".venv-keras")
    assert start(project, program)[1][0] == str(project / ".venv")


def test_other_processes_that_import_the_package_are_left_alone(project):
    here = str(project / ".venv")
    (project / "other.py").write_text(PROGRAM)
    (project / "notebook.py").write_text(f"import sys; sys.argv[0] = 'keras_impl/program.py'\n{PROGRAM}")
    for words in (["-c", PROGRAM], ["other.py", "keras_impl/program.py"], ["-m", "other"], ["notebook.py"]):
        assert start(project, *words)[1][0] == here, words
    assert start(project, "-c", PROGRAM, cwd=project / "keras_impl")[1][0] == here


def check_refused(project, problem):
    line = f"keras_impl: error: the environment {problem}. Run `make setup`\n"
    assert start(project, "keras_impl/program.py") == (2, "", line)


# Other packages of our names


@pytest.fixture
def others(tmp_path):
    """A folder with packages of our names, and one with plain folders of these names."""
    for name in ("common", "analysis", "launch", "tests"):
        (tmp_path / "others" / name).mkdir(parents=True)
        (tmp_path / "others" / name / "__init__.py").write_text("raise SystemExit('another package')")
        (tmp_path / "plain" / name).mkdir(parents=True)
    return tmp_path / "others", tmp_path / "plain"


def test_a_program_finds_our_packages_before_others_of_their_names(project, others):
    other, _ = others
    for words in (["keras_impl/program.py"], ["-m", "keras_impl.program"]):
        code, printed, error = start(project, *words, before=[other], environment=".venv-keras")
        assert (code, error) == (0, "") and printed[0] == f"{project}/.venv-keras"


@pytest.mark.parametrize("package", ["keras_impl", "torch_impl"])
def test_a_users_own_script_that_imports_from_us_keeps_its_packages(others, package):
    other, plain = others
    (other / "common" / "__init__.py").write_text("")
    (plain / "mine.py").write_text(f"import {package}, common; print({package}.__file__, common.__file__)")
    variables = os.environ | {"PYTHONPATH": f"{other}{os.pathsep}{ROOT}"}
    command = [sys.executable, str(plain / "mine.py")]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == [str(folder / "__init__.py") for folder in (ROOT / package, other / "common")]


ANALYSIS = f"""
import sys
sys.path[0] = {str(ROOT)!r}
from launch.starting.analysis import run_analysis
run_analysis('--version')
"""


def test_a_command_and_the_analysis_that_it_starts_find_our_packages_before_others_of_their_names(others):
    other, plain = others
    (plain / "launch").rmdir()  # or Python looks for the command there
    shutil.rmtree(other / "launch")
    for words, path in ((["-m", "launch", "--version"], f"{other}{os.pathsep}{ROOT}"), (["-c", ANALYSIS], str(other))):
        command, variables = [sys.executable, *words], os.environ | {"PYTHONPATH": path}
        done = subprocess.run(command, cwd=plain, env=variables, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("horovod-twins")


def test_another_copy_of_the_project_on_the_path_is_one_line(project, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(project, copy, symlinks=True)
    code, printed, error = start(project, "keras_impl/program.py", before=[copy])
    received = f"Received: keras_impl/program.py of {project} with the packages of {copy}. "
    assert (code, printed) == (2, "")
    assert error == f"keras_impl: error: another copy of this project comes first. {received}Set PYTHONPATH={project}\n"


# Environments that cannot be used


@pytest.mark.parametrize("missing", ["bin/python", "pyvenv.cfg", "horovod-twins/stamp.json"])
def test_an_incomplete_environment_is_one_line(project, missing):
    (project / ".venv-keras" / missing).unlink()
    check_refused(project, f"is incomplete. Received: {project}/.venv-keras without {missing}")


@pytest.mark.parametrize(("mode", "problem"), [(0o755, "it runs in another environment"), (0o644, "Permission denied")])
def test_an_environment_of_another_python_is_one_line_and_no_loop(project, mode, problem):
    python = project / ".venv-keras" / "bin" / "python"
    python.unlink()
    python.write_text(f'#!/bin/sh\nexec {project}/.venv/bin/python "$@"\n')
    python.chmod(mode)
    check_refused(project, f"cannot be used. Received: {python}: {problem}")


def test_packages_are_looked_for_where_the_programs_run(project, monkeypatch):
    assert environments.package_folders("keras") is sys.path
    monkeypatch.setattr(environments, "ROOT", project)
    packages = project / ".venv-keras" / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    assert environments.package_folders("keras") == [str(packages)]
    assert environments.missing_packages("keras", ["horovod"]) == ["keras", "horovod"]
    (packages / "keras").mkdir()
    (packages / "keras" / "__init__.py").touch()
    assert environments.missing_packages("keras", ["horovod"]) == ["horovod"]
    (project / ".venv-keras" / "horovod-twins" / "stamp.json").unlink()
    with pytest.raises(UserError, match="the environment is incomplete"):
        environments.missing_packages("keras")
