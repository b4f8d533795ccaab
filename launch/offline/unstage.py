"""`python -m launch unstage`, and `unstage.py` in a bundle: set up from a bundle, on a machine without a network.

    tar xf bundle.tar && python3 bundle/unstage.py       where nothing of the project is there yet
    python -m launch unstage bundle.tar --folder DIR     where it is

Every file is checked before one is put in its place, and nothing that exists is overwritten. Standard library only.
"""

import argparse
import contextlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.errors import UserError, expanded
from common.utils.atomic import atomic_file, atomic_folder, make_executable
from common.utils.cache_folder import cache_folder
from common.utils.command_line import Parser, end_cleanly_on_sigterm, path, run_command
from launch.offline.bundle import (
    MANIFEST,
    SCRIPT,
    check_files,
    disk_is_short,
    read_manifest,
    sha256_of_file,
    sha256_of_manifest,
    unpacked,
)

ORIGIN = "staged.json"  # in the folder that was set up: the manifest, which names the commit of the code
UNFINISHED = ".unstage-unfinished"  # there until the last step is done: the same command then resumes
DEFAULT_FOLDER = "horovod-twins"


def add_command(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    parser = commands.add_parser(
        "unstage",
        help="set up from a bundle without a network",
        description="Check every file of a bundle that `stage` packed, then set up from it without a network.",
    )
    add_arguments(parser)
    parser.set_defaults(run=run)


def add_arguments(parser: argparse.ArgumentParser, *, default: Path | None = None) -> None:
    """Add the arguments of the command; `default` is the bundle of the script in one."""
    parser.add_argument(
        "bundle",
        type=path,
        nargs="?" if default else None,
        default=default,
        metavar="BUNDLE",
        help="tar file or folder" + (" (default: the one that this script is in)" if default else ""),
    )
    parser.add_argument(
        "--folder", type=path, default=Path(DEFAULT_FOLDER), metavar="FOLDER", help="created (default: %(default)s)"
    )
    parser.add_argument("--cache-folder", type=path, metavar="FOLDER", help="for data sets (default: this user's)")
    parser.add_argument("--check", action="store_true", help="check the bundle only")


def main(arguments: Sequence[str] | None = None, *, bundle: str) -> int:
    """Run as the script of a bundle; return the exit code."""
    parser = Parser(prog=SCRIPT, description="Set up from a bundle without a network.")
    add_arguments(parser, default=Path(bundle))
    options = parser.parse_args(arguments)
    end_cleanly_on_sigterm()
    return run_command(lambda: run(options), program="unstage")


def run(options: argparse.Namespace) -> None:
    """Check and set up.

    Raises:
        UserError: the bundle is damaged or for other machines, a place is taken, set-up fails.
    """
    cache = options.cache_folder and expanded(options.cache_folder).absolute()
    bundle, folder = expanded(options.bundle).absolute(), expanded(options.folder).absolute()
    unstage(bundle, folder, cache=cache, only_check=options.check)


def unstage(bundle: Path, folder: Path, *, cache: Path | None = None, only_check: bool = False) -> None:
    """Check a bundle, then set up from it.

    Args:
        bundle: tar file or folder.
        folder: of the project; must not exist, or come from an interrupted set-up from the same bundle.
        cache: for data sets; None: the cache of this user.

    Raises:
        UserError: the bundle is damaged or for other machines, a place is taken, set-up fails.
    """
    with contextlib.ExitStack() as stack:
        if bundle.is_dir():
            opened = bundle
        else:
            near = bundle.parent if only_check else existing_parent(folder)
            opened = stack.enter_context(unpacked(bundle, near=near))
        manifest = read_manifest(opened)
        check_files(opened, manifest)
        if only_check:
            return
        check_machine(manifest)
        check_place(folder, manifest)
        datasets_folder = (cache or cache_folder()) / "datasets"
        new_datasets = check_datasets(opened / "datasets", manifest, datasets_folder)
        check_disk(folder, manifest)
        put_code(opened, folder, manifest)
        for name in new_datasets:
            put_dataset(opened / "datasets" / name, datasets_folder / name)
        put_inputs(opened / "inputs", folder / "inputs")
        set_up(folder, opened / "wheels", manifest)
        (folder / UNFINISHED).unlink()
    print_next_steps(folder, manifest, cache)


def existing_parent(path: Path) -> Path:
    """Return the nearest folder above `path` that exists."""
    return next(parent for parent in path.parents if parent.is_dir())


# What can be known to be wrong before anything is made


def check_machine(manifest: dict[str, Any]) -> None:
    """Check that this is the kind of machine that the bundle is for; warn if Horovod has to be compiled.

    Raises:
        UserError: another architecture.
    """
    target = manifest["target"]
    if platform.machine() != target["architecture"]:
        received = f"Received: {platform.machine()} here, {target['architecture']} in the bundle"
        raise UserError(f"the bundle is for another kind of machine. {received}. Pack one with --architecture")
    glibc = "".join(platform.libc_ver())
    if manifest["setup"]["wheels"] == "all" and glibc != target["glibc"]:
        print(
            f"note: {glibc} here, {target['glibc']} where Horovod was built: it is built again, which needs a compiler"
        )


def check_place(folder: Path, manifest: dict[str, Any]) -> None:
    """Raise UserError unless the folder is free or of an interrupted set-up from the same bundle."""
    if not (folder.exists() or folder.is_symlink()):
        return
    mark = folder / UNFINISHED
    if not mark.is_file():
        raise UserError(f"nothing is overwritten. Received: {folder}, which exists. Name another: --folder DIR")
    if mark.read_text(encoding="utf-8") != sha256_of_manifest(manifest):
        raise UserError(f"set-up from another bundle was started there. Received: {folder}. Name another: --folder DIR")


def check_datasets(folder: Path, manifest: dict[str, Any], cached: Path) -> list[str]:
    """Return the data sets that the cache lacks.

    Raises:
        UserError: it has one of that name whose arrays are others.
    """
    missing = []
    for name in manifest["datasets"]:
        if not (cached / name).exists():
            missing.append(name)
            continue
        for file in (folder / name).glob("*.npy"):
            there = cached / name / file.name
            if not there.is_file() or sha256_of_file(there) != sha256_of_file(file):
                raise UserError(
                    f"the cache has another data set of that name. Received: {cached / name}. Remove it if it is "
                    "damaged, or name another cache: --cache-folder DIR"
                )
        print(f"{name} is in the cache already: {cached / name}")
    return missing


def check_disk(folder: Path, manifest: dict[str, Any]) -> None:
    """Raise UserError if code, data and inputs do not fit; what the packages need, set-up knows."""
    needed = sum(file["bytes"] for file in manifest["files"] if not file["path"].startswith("wheels/"))
    free = shutil.disk_usage(existing_parent(folder)).free
    if free < needed:
        raise UserError(disk_is_short(needed, free, folder))


# Putting things in their places


def put_code(bundle: Path, folder: Path, manifest: dict[str, Any]) -> None:
    """Create the project's folder in one step; programs stay executable. An unfinished one is kept as it is."""
    if folder.exists():
        print(f"resuming in {folder}")
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(folder) as partial:
        for file in manifest["files"]:
            top, _, path = file["path"].partition("/")
            if top == "code":
                (partial / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(bundle / file["path"], partial / path)
                if file["executable"]:
                    make_executable(partial / path)
        shutil.copyfile(bundle / MANIFEST, partial / ORIGIN)
        (partial / UNFINISHED).write_text(sha256_of_manifest(manifest), encoding="utf-8")
    print(f"code: {folder}")


def put_dataset(source: Path, target: Path) -> None:
    """Copy a data set into the cache in one step."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(target) as partial:
        shutil.copytree(source, partial, dirs_exist_ok=True)
    print(f"data set {target.name}: {target}")


def put_inputs(source: Path, target: Path) -> None:
    """Copy weights and prepared images, if there are any, each in one step."""
    for file in sorted(source.iterdir()) if source.is_dir() else ():
        target.mkdir(exist_ok=True)
        with atomic_file(target / file.name) as partial:
            shutil.copyfile(file, partial)
        print(f"input: {target / file.name}")


def set_up(folder: Path, wheels: Path, manifest: dict[str, Any]) -> None:
    """Make the project's environment from the wheels, as far as the bundle has them.

    Raises:
        UserError: it fails; what failed was printed.
    """
    setup = manifest["setup"]
    if setup["wheels"] == "none":
        print("the bundle has no wheels: packages are not set up")
    elif setup["wheels"] == "pure":
        set_up_on_modules(folder, wheels, setup)
    else:
        gpu = "--gpu" if setup["gpu"] else "--no-gpu"
        command = [sys.executable, "launch/setup.py", "--frameworks", " ".join(setup["frameworks"]), gpu]
        run_program([*command, "--wheels", str(wheels)], folder)


def set_up_on_modules(folder: Path, wheels: Path, setup: dict[str, Any]) -> None:
    """Make an environment on top of the packages of this Python, which a module brought; say what is still missing."""
    python = str(folder / ".venv" / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    run_program([sys.executable, "-m", "venv", "--clear", "--system-site-packages", str(folder / ".venv")], folder)
    run_program([*pip, *(str(path) for path in sorted(wheels.glob("*.whl")))], folder)
    run_program([*pip, "--no-build-isolation", "--editable", str(folder)], folder)
    program = (
        "import importlib.metadata as m, sys\n"
        "for name in sys.argv[1:]:\n"
        "    try: print(name, 'from modules:', m.version(name.split('==')[0]))\n"
        "    except m.PackageNotFoundError: print(name, 'is missing: a module or a build here has to bring it')"
    )
    run_program([python, "-c", program, *setup["from_modules"]], folder)


def run_program(command: list[str], folder: Path) -> None:
    """Run one program of set-up, without what would lead it to other packages.

    Raises:
        UserError: it fails.
    """
    without = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in without}
    environment["PYTHON"] = sys.executable  # which the wheels are for
    sys.stdout.flush()
    code = subprocess.run(command, cwd=folder, env=environment, check=False).returncode
    if code != 0:
        raise UserError(
            f"set-up failed, see above. Received: exit code {code} of {' '.join(command[1:3])}. Fix that, then "
            "run the same command to resume"
        )


def print_next_steps(folder: Path, manifest: dict[str, Any], cache: Path | None) -> None:
    """Print the command to try."""
    print("done. To try it:")
    if cache:
        print(f"  export HOROVOD_TWINS_CACHE={shlex.quote(str(cache))}")
    print(f"  cd {shlex.quote(str(folder))}")
    if manifest["setup"]["wheels"] == "none":
        print("  make setup")
    framework = manifest["setup"]["frameworks"][0]
    dataset = shlex.quote(manifest["try_dataset"])
    print(f"  .venv/bin/python -m launch train --framework {framework} --np 2 -- --epochs 1 --dataset {dataset}")
