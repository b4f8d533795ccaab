"""The recipes for containers agree, call one script, and need no more than the image is given.

No engine for containers is needed here: what the script does was run in a bare Debian 12 (README, "Containers").
"""

import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from launch.sites.site_files import read_launch_site

ROOT = Path(__file__).resolve().parents[2]
CONTAINERS = ROOT / "launch" / "containers"
SCRIPT = CONTAINERS / "build.sh"
DOCKERFILE, APPTAINER, BUILD = (
    (CONTAINERS / name).read_text(encoding="utf-8") for name in ("Dockerfile", "apptainer.def", "build.sh")
)
PROJECT = "/opt/horovod-twins"


def of_lines(pattern, text):
    return re.findall(pattern, text, flags=re.MULTILINE)


def setting(name):
    return of_lines(rf"^{name}=(\S+)", BUILD)[0]


def section(name):
    """Return the lines of all sections of this name in the Apptainer recipe, each as words."""
    return [line.split() for part in of_lines(rf"^%{name}\n((?:    .*\n)+)", APPTAINER) for line in part.splitlines()]


def test_shellcheck_finds_nothing():
    if shutil.which("shellcheck") is None:
        pytest.skip("no shellcheck here: apt-get install shellcheck")
    scripts = [SCRIPT, ROOT / "launch" / "installation" / "cuda12.sh"]
    done = subprocess.run(["shellcheck", *scripts], capture_output=True, text=True, check=False)
    assert done.stdout == ""


def test_both_recipes_take_the_same_steps_of_the_script_on_the_same_base():
    steps = of_lines(r"^RUN /opt/build.sh (\w+)", DOCKERFILE)
    script = f"{PROJECT}/launch/containers/build.sh"
    assert [words[:2] for words in section("post")] == [[script, step] for step in steps] and len(steps) == 3
    (base,) = of_lines(r"^ARG BASE=(\S+)", DOCKERFILE)
    assert of_lines(r"^From: (\S+)", APPTAINER) == [base, base]
    assert of_lines(r"^USER (\d+)\n", DOCKERFILE) == [setting("USER_ID")]
    # Programs are found alike in both images, and by ssh.
    path = "/.venv/bin:/usr/local/bin:/usr/bin:/bin"
    assert f" PATH={PROJECT}{path} " in DOCKERFILE and f"SetEnv PATH=$PROJECT{path}\n" in BUILD
    assert ["export", f"PATH={PROJECT}{path}"] in section("environment")


def test_the_kubernetes_site_fits_the_image():
    site = read_launch_site("kubernetes")
    assert (site.project_folder, site.python) == (setting("PROJECT"), f"{PROJECT}/.venv/bin/python")
    assert site.kubernetes.ssh_path == f"/home/{setting('USER_NAME')}/.ssh"


def test_both_images_hold_what_the_project_is_made_of():
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert ignored[1] == "*"
    let_in = {line[1:] for line in ignored if line.startswith("!")} - {"wheels"}
    files = [words for words in section("files") if len(words) == 2]
    assert sorted(files) == sorted([name, f"{PROJECT}/{name}"] for name in let_in)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = {name.rstrip("*") for name in project["tool"]["setuptools"]["packages"]["find"]["include"]}
    assert let_in == {*packages, "pyproject.toml", project["project"]["readme"], "LICENSE"}
    assert all((ROOT / name).exists() for name in let_in)


@pytest.mark.parametrize(
    "arguments",
    ["", "everything cpu", "packages cpu", "project tpu torch", "project gpu jax", """project cpu torch 'x"; id; "'"""],
)
def test_wrong_arguments_are_one_line(arguments):
    done = subprocess.run([str(SCRIPT), *shlex.split(arguments)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "Received: " in done.stderr
