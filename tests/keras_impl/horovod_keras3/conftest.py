"""The wheel of `horovod_keras3`, in an environment that has the packages of this one and nothing of this project."""

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from frameworks import need
from processes import ROOT, TESTS, launcher_command, run_command


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    """Made as users make it, but without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    command = ["make", "horovod-keras3", f"PYTHON={sys.executable}", f"DIST={folder}", "WHEELS="]
    variables = os.environ | {"PIP_NO_BUILD_ISOLATION": "0"}  # 0: the build takes what is installed
    subprocess.run(command, cwd=ROOT, env=variables, check=True)
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="session")
def python(wheel, tmp_path_factory):
    """The Python of the environment."""
    need("keras")
    place = tmp_path_factory.mktemp("environment")
    venv.create(place)
    packages = sysconfig.get_path("purelib", vars={"base": str(place), "platbase": str(place)})
    # The path alone: what is in its own .pth files, such as this project, does not come along.
    Path(packages, "others.pth").write_text(sysconfig.get_path("purelib"))
    install = ["--python", str(place / "bin" / "python"), "install", "--no-index", "--quiet", str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", *install], check=True)
    return place / "bin" / "python"


@pytest.fixture(scope="session")
def in_turn(python):
    """A function that does jobs in one start of ranks; it returns for each job what `in_turn.py` has of each rank."""

    def do(launcher, jobs, *, folder):
        command = [*launcher_command(launcher), str(python), "-I", str(TESTS / "in_turn.py"), *jobs]
        done = run_command(command, folder=folder)
        files = [folder / f"{rank}.json" for rank in range(int(launcher[-1]))]
        of_ranks = [json.loads(file.read_text()) if file.exists() else {} for file in files]
        missing = (1, f"not reached:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}", None)
        return {job: [of_rank.get(job, missing) for of_rank in of_ranks] for job in jobs}

    return do
