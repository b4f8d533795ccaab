"""The command line of set-up, which `launch/setup.py` starts. Standard library only, as all that it imports."""

import argparse
import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from common.errors import EXIT_CODE_INTERRUPTED, UserError
from common.names import framework_here
from common.utils.command_line import Parser, end_cleanly_on_sigterm, path, run_command
from common.utils.paths import ROOT
from launch.installation.cuda import Node, check, choose, describe
from launch.installation.environment import (
    FRAMEWORKS,
    ONLY,
    Environment,
    arrange,
    frameworks_of,
    in_order,
    locked,
    pack,
    remembered,
    require,
    unpack,
)
from launch.installation.node import described_node, gpu_present, this_node
from launch.installation.run import SetUp, check_all

DESCRIPTION = "Set up .venv: packages, MPI, Horovod, the project."


def main(arguments: Sequence[str] | None = None) -> int:
    """Set up; return the exit code."""
    end_cleanly_on_sigterm()
    code = run_command(lambda: set_up(parse(arguments)), program="setup")
    if code == EXIT_CODE_INTERRUPTED:
        print("\nsetup: interrupted; run the same command to resume", file=sys.stderr)
    return code


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = Parser(prog="setup.py", description=DESCRIPTION)
    add_options(parser)
    return parser.parse_args(arguments)


def add_command(commands: Any) -> None:
    """Add the command to argparse's subcommands, for who has an environment already."""
    parser = commands.add_parser("setup", help="set up, or plan it for a site's GPUs", description=DESCRIPTION)
    add_options(parser)
    parser.set_defaults(run=set_up)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--frameworks", default="", help='"torch", "keras" or both (default: as in the last set-up, at first both)'
    )
    parser.add_argument("--need", default="", help="a framework to install whatever was chosen before")
    parser.add_argument("--dev", action="store_true", help="install the tools for tests, lint and types, too")
    parser.add_argument("--gpu", dest="gpu", action="store_true", default=None, help="build for an NVIDIA GPU")
    other = parser.add_mutually_exclusive_group()
    other.add_argument("--no-gpu", dest="gpu", action="store_false", default=None, help="leave an NVIDIA GPU unused")
    other.add_argument("--node", default="", metavar="SITE", help="for the GPUs of that site's nodes, such as aws-g5")
    parser.add_argument("--wheels", default="", metavar="FOLDER", help="install from this folder, without a network")
    parser.add_argument("--fill-wheels", default="", metavar="FOLDER", help="fill that folder for another machine")
    parser.add_argument("--dry-run", action="store_true", help="print the commands, run none")
    parser.add_argument("--root", type=path, default=ROOT, help="the clone to set up (default: this one)")


def set_up(options: argparse.Namespace) -> None:
    """Bring the environments to what the options ask for; do nothing if they are there already."""
    wheels = Path(options.wheels).expanduser().absolute() if options.wheels else None
    look = functools.cache(lambda: node_of(options))  # which takes a while
    environments = [
        replace(environment, dev=options.dev, wheels=wheels) for environment in decide(options, wheels, look)
    ]
    is_complete = (options.root / ONLY / "bin").exists() and all(map(Environment.is_complete, environments))
    if is_complete and not options.dry_run and not options.fill_wheels:
        return
    node = look() if any(environment.cuda for environment in environments) else None
    for environment in environments:
        if node:
            check(environment, node, with_nvcc=False)
    if options.dry_run:
        for line in describe(node, environments) if node else []:
            print(f"# {line}")
        for environment in environments:
            SetUp(environment, node, dry=True).run()
        return
    with locked(options.root):
        # Another set-up may have made some while this one waited.
        missing = [environment for environment in environments if not environment.is_complete()]
        set_ups = [SetUp(environment.with_installed(), node) for environment in missing]
        check_all(options.root, set_ups)
        arrange(options.root, environments)
        for work in set_ups:  # all before the first: after an interruption it is known what was wanted
            work.environment.begin()
        for work in set_ups:
            work.run()
        if options.fill_wheels:
            folder = Path(options.fill_wheels).expanduser().absolute()
            for environment in environments:
                SetUp(environment, node).fill(folder)
            pack(folder, environments)
            print(f"setup: on the other machine, of the same kind: make setup WHEELS={folder}")


def node_of(options: argparse.Namespace) -> Node:
    """Return the node to set up for: this machine, or the one described; what compiles is here in any case."""
    if not options.node:
        return this_node()
    there = described_node(options.node)
    if options.dry_run:
        return there
    here = this_node()
    return replace(there, toolkits=here.toolkits, notes=here.notes)


def decide(options: argparse.Namespace, wheels: Path | None, look: Callable[[], Node]) -> Sequence[Environment]:
    """Return the environments to make; `look` returns the node with GPUs, if it comes to that.

    Raises:
        UserError: a framework cannot use the node's GPUs.
    """
    made, packed = remembered(options.root), unpack(wheels, root=options.root) if wheels else ()
    begun = frameworks_of(made)
    installed = {name for environment in made for name in environment.frameworks_there()}
    frameworks = named_frameworks(options, begun)
    had_gpu = any(environment.cuda for environment in made)
    gpu = options.gpu
    if gpu is None:
        gpu = bool(options.node or packed) or (had_gpu if made else wheels is None and gpu_present())
    if not gpu:
        return [Environment(root=options.root, frameworks=frameworks)]
    kept = [environment for environment in made if {*environment.frameworks} & {*frameworks}]
    # What was begun and did not work is given up where less is asked for now.
    unwanted = {*frameworks_of(kept)} - {*frameworks} - installed
    if had_gpu and not options.node and {*begun} >= {*frameworks} and not unwanted:
        return kept
    if wheels and packed:
        require(frameworks, packed, folder=wheels)
        return [environment for environment in packed if {*environment.frameworks} & {*frameworks}]
    wanted = in_order({*frameworks, *(installed if had_gpu else ())})
    return choose(look(), Environment(root=options.root, frameworks=wanted))


def named_frameworks(options: argparse.Namespace, begun: tuple[str, ...]) -> tuple[str, ...]:
    """Return the frameworks that are named, else those of last time, else both; and the one that is needed."""
    named, needed = (
        list(map(framework_here, words.replace(",", " ").split())) for words in (options.frameworks, options.need)
    )
    for name in [*named, *needed]:
        if name not in FRAMEWORKS:
            raise UserError(f"FRAMEWORKS takes torch, keras or both, FRAMEWORK takes one of them. Received: {name}")
    return in_order({*(named or begun or FRAMEWORKS), *needed})
