"""What a clone and a wheel contain: no file that the project needs is missing, ignored or forgotten."""

import functools
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from made_environment import environment_with

from analysis import __main__ as analysis
from common import __main__ as common
from common.config import parse_command_line
from launch import __main__ as launch

ROOT = Path(__file__).resolve().parents[1]
read_settings = functools.partial(parse_command_line, program="torch_impl/train.py")
FOLDERS = ("common", "torch_impl", "keras_impl", "launch", "analysis")


def git(*arguments):
    """Return the paths that a git command lists; skip the test where the project is no checkout."""
    if not (ROOT / ".git").exists():
        pytest.skip("the project is no checkout of git")
    command = ["git", "-C", str(ROOT), *arguments, "-z"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [path for path in output.split("\0") if path]


def project_files():
    """Return the files that the next commit would have: tracked or new, not ignored, and in the working tree."""
    listed = git("ls-files", "--cached", "--others", "--exclude-standard")
    return {path for path in listed if (ROOT / path).is_file()}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of the project's files, built in a copy: setuptools would pack what an earlier build left here."""
    folder = tmp_path_factory.mktemp("wheel")
    for path in project_files():
        (folder / "project" / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, folder / "project" / path)
    build = ["wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder), "./project"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", *build], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_every_file_of_the_packages_and_no_other(wheel):
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = {path for path in project_files() if path.split("/")[0] in FOLDERS}
    assert {"launch/sites/slurm.toml", "launch/installation/lock.txt"} <= expected
    assert packed == expected


@pytest.mark.ci
def test_an_installed_wheel_needs_no_clone(wheel, tmp_path):
    python = environment_with(wheel, tmp_path / "environment")

    def printed(*arguments):
        done = subprocess.run([python, "-I", *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert str(tmp_path / "environment") in printed("-c", "import launch; print(launch.__file__)")
    sites = printed("-m", "launch", "sites")
    assert all(site in sites for site in ("cte-power", "kubernetes", "slurm"))
    job = printed("-m", "launch", "submit", "--dry-run", "--site", "slurm", "--", "experiment", "smoke")
    assert "#SBATCH" in job
    assert "smoke" in printed("-m", "launch", "experiment", "run", "smoke", "--dry-run")


def test_nothing_that_is_imported_or_packaged_is_ignored():
    """Any file in a package's folder but what Python and tools leave there: an ignored one is in no clone."""
    ignored = git("ls-files", "--others", "--ignored", "--exclude-standard", "--", *FOLDERS, "tests")
    left_by_tools = re.compile(r"(^|/)__pycache__/|\.egg-info/")
    assert [path for path in ignored if not left_by_tools.search(path)] == []


def test_nothing_needed_is_untracked():
    """A file that is imported and was never added works here and nowhere else."""
    untracked = git("ls-files", "--others", "--exclude-standard", "--", *FOLDERS, "tests")
    assert untracked == [], "git add them"


@pytest.mark.parametrize("program", [common.main, launch.main, analysis.main, read_settings])
def test_every_program_prints_its_version(program, capsys):
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    with pytest.raises(SystemExit) as end:
        program(["--version"])
    assert (end.value.code or 0, *capsys.readouterr()) == (0, f"horovod-twins {version}\n", "")
