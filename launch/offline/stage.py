"""`python -m launch stage`: pack all that a machine without network needs into one tar file or folder.

    python -m launch stage -o bundle.tar --dataset mnist cifar10 --weights runs/NAME/weights.safetensors

`bundle.py` describes a bundle, `unstage.py` sets up from it.
"""

import argparse
import platform
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

from common.errors import UserError, expanded
from common.run_folder.revision import source_revision
from common.utils.command_line import path
from common.utils.paths import ROOT
from launch.installation.environment import FRAMEWORKS, Environment
from launch.offline import bundle, bundle_script, packing
from launch.offline import sources as stage_sources
from launch.offline import wheels as stage_wheels
from launch.offline.packing import BundledFile
from launch.sites.site_files import read_launch_site

ALL, PURE, NONE = "all", "pure", "none"  # wheels


def add_command(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    parser = commands.add_parser(
        "stage",
        help="pack all that nodes without internet need",
        description="Pack code, wheels, the built Horovod, data sets and weights, with checksums, for `unstage`.",
    )
    parser.add_argument(
        "-o", "--output", type=path, required=True, metavar="NAME", help="a tar file if it ends in .tar, else a folder"
    )
    parser.add_argument("--frameworks", nargs="+", choices=FRAMEWORKS, default=[], help="default: those of this clone")
    parser.add_argument(
        "--dataset", nargs="+", action="extend", default=[], metavar="NAME", help="published ones, or prepared:FILE"
    )
    parser.add_argument(
        "--weights", nargs="+", action="extend", default=[], type=path, metavar="FILE", help=".safetensors files"
    )
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--site", metavar="NAME", help="for its nodes: a shipped site, or a file of your own")
    kind.add_argument(
        "--architecture", metavar="NAME", help="for machines of which `uname -m` says this (default: as here)"
    )
    wheels = parser.add_mutually_exclusive_group()
    wheels.add_argument("--wheels", type=path, metavar="FOLDER", help="already filled: make wheels WHEELS=DIR")
    wheels.add_argument("--no-wheels", action="store_true", help="pack no packages")
    parser.add_argument("--gpu", action="store_true", help="insist on packages for GPUs")
    parser.add_argument(
        "--uncommitted",
        action="store_true",
        help="pack the code of the working tree, uncommitted changes included",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Gather, pack, print the sizes.

    Raises:
        UserError: something cannot be fetched, is damaged, or does not fit.
    """
    out = expanded(options.output).absolute()
    with packing.temporary_place(out) as place:
        sources, description = gather(options, place)
        stage_sources.require_different_names(sources)
        print_sizes(sources)
        checksum = packing.pack(sources, description, out=out, place=place)
    print(f"{out}: manifest {checksum}")
    print(f"On the other machine: {how_to_unstage(out)}")


def gather(options: argparse.Namespace, place: Path) -> tuple[list[BundledFile], dict[str, Any]]:
    """Return all files and the description of a bundle; `place` is an empty folder for what has to be made."""
    architecture, frameworks = architecture_of(options), frameworks_of(options)
    (place / "code").mkdir()
    (place / "wheels").mkdir()
    sources = [BundledFile(file=Path(bundle_script.__file__), path=bundle.SCRIPT)]
    sources += stage_sources.code_sources(ROOT, place / "code", uncommitted=options.uncommitted)
    data = stage_sources.dataset_sources(options.dataset)
    weights = stage_sources.weights_sources(options.weights)
    wheels, setup = gather_wheels(options, place / "wheels", architecture=architecture, frameworks=frameworks)
    entries = sorted({PurePosixPath(source.path).parts[1] for source in data if source.path.startswith("datasets/")})
    prepared = [f"{stage_sources.PREPARED}{source.path}" for source in data if source.path.startswith("inputs/")]
    description = {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "revision": source_revision(ROOT),
        "target": {
            "architecture": architecture,
            "python": ".".join(platform.python_version_tuple()[:2]),
            "glibc": "".join(platform.libc_ver()),
        },
        "setup": setup,
        "datasets": entries,
        "try_dataset": next(iter([*entries, *prepared]), "synthetic"),
        "versions": Environment(root=ROOT).pins(),
    }
    return [*sources, *wheels, *data, *weights], description


def architecture_of(options: argparse.Namespace) -> str:
    """Return the kind of processor that the bundle is for."""
    if options.site is not None:
        return read_launch_site(options.site).architecture
    return options.architecture or platform.machine()


def frameworks_of(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the frameworks to pack, without those that the site refuses; none: those of this clone."""
    chosen, site = options.frameworks, read_launch_site(options.site) if options.site is not None else None
    if site and site.refuses:
        site.check_frameworks(chosen)
        chosen = chosen or [name for name in FRAMEWORKS if name not in site.refuses]
    return tuple(name for name in FRAMEWORKS if name in chosen)


def gather_wheels(
    options: argparse.Namespace, folder: Path, *, architecture: str, frameworks: tuple[str, ...]
) -> tuple[list[BundledFile], dict[str, Any]]:
    """Return the wheels, and what set-up on the other machine has to know; `folder` is empty."""
    foreign = architecture != platform.machine()
    if options.no_wheels:
        if options.gpu:
            raise UserError("--gpu is about packages. Received: --gpu --no-wheels, which packs none. Leave out either")
        return [], {"wheels": NONE, "frameworks": list(frameworks or FRAMEWORKS), "gpu": False}
    if options.wheels:
        named = expanded(options.wheels).absolute()
        if not named.is_dir():
            raise UserError(f"--wheels names no folder. Received: {named}. Fill one: make wheels WHEELS=DIR")
        environment = stage_wheels.environment_in(named, ROOT, frameworks, gpu=options.gpu)
        sources = stage_wheels.pure_sources(environment, named) if foreign else stage_wheels.wheel_sources(named)
    else:
        environments = stage_wheels.environments_of(ROOT, frameworks, gpu=options.gpu)
        environment = stage_wheels.together(environments)
        if foreign:
            stage_wheels.fill_pure(environment, folder)
        else:
            stage_wheels.fill(environments, folder)
        sources = stage_wheels.wheel_sources(folder)
    setup = {
        "wheels": PURE if foreign else ALL,
        "frameworks": list(environment.frameworks),
        "gpu": bool(environment.cuda),
    }
    if foreign:
        missing = stage_wheels.from_modules(environment, sources)
        print(f"note: only pure-Python wheels run on {architecture}; from modules come {' '.join(missing)}")
        return sources, setup | {"from_modules": missing}
    stage_wheels.require_all(environment, sources)
    if not stage_wheels.has_built_horovod(sources):
        print(
            f"note: no Horovod for {' and '.join(environment.frameworks)} alone was built here: the other machine "
            "compiles it, which needs a C++ compiler and 4 minutes"
        )
    return sources, setup


def print_sizes(sources: list[BundledFile]) -> None:
    """Print a line for each part: files and bytes."""
    counts, sizes = Counter[str](), Counter[str]()
    for source in sources:
        part = source.path.partition("/")[0]
        counts[part] += 1
        sizes[part] += source.bytes
    for part in counts:
        print(f"{part:<11} {counts[part]:5} files {bundle.size_of(sizes[part]):>10}")
    sys.stdout.flush()


def how_to_unstage(out: Path) -> str:
    """Return the commands for the other machine, where the bundle is copied into the current folder."""
    if out.suffix == ".tar":
        return f"tar xf {out.name} && python3 {bundle.TOP}/{bundle.SCRIPT}"
    return f"python3 {out.name}/{bundle.SCRIPT}"
