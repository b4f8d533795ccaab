"""Write `launch/installation/requirements/*.txt`: the exact version of every package that set-up installs.

    make lock

The needs are read from pyproject.toml, the versions from the environment that runs this (`.venv`), so to update a
version: change pyproject.toml, `pip install` the new version into `.venv`, run the tests, `make lock`.
A package that several sets need is in each of their files, with the same version. The environment has to be one for
the CPU with all of them; one with extras that set-up never installs may hold versions that only they ask for.
"""

import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from importlib import metadata

from packaging.requirements import Requirement

from common.errors import UserError
from common.utils.command_line import run_command
from common.utils.paths import ROOT
from launch.installation.plan import CUDA_PACKAGES

FOLDER = ROOT / "launch" / "installation" / "requirements"
HEADER = "# {title}.\n# Written by `make lock` from pyproject.toml and the tried environment; do not edit by hand.\n"
EXTRAS = ("mlflow", "onnx", "parquet")  # never installed by set-up
TITLES = {
    "base": "Run-time packages of the project, MPI and the tools that build Horovod",
    "torch": "PyTorch (the CPU build; on a GPU machine the normal one, which brings its CUDA packages along)",
    "tensorflow": "TensorFlow (on a GPU machine `tensorflow` takes the place of `tensorflow-cpu`)",
    "dev": "Tools for tests, lint and types",
}


def main() -> None:
    """Write the four lock files.

    Raises:
        UserError: the environment has extras or CUDA, or lacks a package.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    refuse_extras(extras)
    refuse_cuda()
    roots = {
        "base": project["dependencies"] + extras["horovod"],
        "torch": extras["torch"],
        "tensorflow": extras["tensorflow"],
        "dev": extras["dev"],
    }
    for name, pins in {name: closure(needs) for name, needs in roots.items()}.items():  # all, before any is written
        lines = [f"{package}=={version}\n" for package, version in sorted(pins.items())]
        (FOLDER / f"{name}.txt").write_text(HEADER.format(title=TITLES[name]) + "".join(lines), encoding="utf-8")
        print(f"launch/installation/requirements/{name}.txt: {len(pins)} packages")


def refuse_extras(extras: Mapping[str, Sequence[str]]) -> None:
    """Raise UserError if a package of `EXTRAS` is installed here."""
    here = {one.name.lower() for one in metadata.distributions()}
    found = [need for extra in EXTRAS for need in extras[extra] if Requirement(need).name in here]
    if found:
        raise UserError(
            f"the environment has extras, which the lock files must not see. Received: {', '.join(found)}. "
            "Lock from one that `make setup` made and nothing was added to"
        )


def refuse_cuda() -> None:
    """Raise UserError if this environment is for GPUs: the lock files are those of the CPU builds."""
    here = {one.name.lower() for one in metadata.distributions()}
    found = sorted(name for name in here - {"nvidia-ml-py"} if name.startswith(CUDA_PACKAGES))  # which asks the driver
    if found:
        raise UserError(
            f"the environment is for GPUs, the lock files are not. Received: {', '.join(found[:3])}. "
            "Lock from a clone that `make setup GPU=0` made"
        )


def closure(needs: list[str]) -> dict[str, str]:
    """Return name -> installed version of the needed packages and of all they need in this environment."""
    pins: dict[str, str] = {}
    todo = [Requirement(need) for need in needs]
    seen: set[tuple[str, frozenset[str]]] = set()
    while todo:
        need = todo.pop()
        name = re.sub(r"[-_.]+", "-", need.name).lower()
        if (name, frozenset(need.extras)) in seen:
            continue
        seen.add((name, frozenset(need.extras)))
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            raise UserError(
                f"the environment lacks a package. Received: none of {name}. Install all: "
                'make lint FRAMEWORKS="torch keras"'
            ) from None
        pins[name] = found.version.split("+")[0]  # "2.13.0+cpu": which build it is, set-up decides
        for line in found.requires or []:
            further = Requirement(line)
            if applies(further, need.extras):
                todo.append(further)
    return pins


def applies(need: Requirement, extras: set[str]) -> bool:
    """Return whether a dependency is wanted here, given the extras that were asked for."""
    if need.marker is None:
        return True
    return any(need.marker.evaluate({"extra": extra}) for extra in extras or {""})


if __name__ == "__main__":
    sys.exit(run_command(main, program="make lock"))
