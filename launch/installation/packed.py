"""Which environments a folder of wheels is for. One for the CPU has no such list: it serves either framework."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from common.errors import UserError
from launch.installation.cuda import NAMES, Environment

NAME = "environments.json"


def pack(folder: Path, environments: Sequence[Environment]) -> None:
    """Write the list, if the environments are for GPUs."""
    if any(environment.cuda for environment in environments):
        content = [dataclasses.asdict(environment) for environment in environments]
        (folder / NAME).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def unpack(folder: Path) -> tuple[Environment, ...]:
    """Return the environments that a folder of wheels is for; none: for the CPU.

    Raises:
        UserError: the list is damaged.
    """
    path = folder / NAME
    if not path.exists():
        return ()
    try:
        return tuple(
            Environment(
                folder=str(one["folder"]),
                frameworks=tuple(one["frameworks"]),
                cuda=int(one["cuda"]),
                capabilities=tuple(one["capabilities"]),
            )
            for one in json.loads(path.read_text(encoding="utf-8"))
        )
    except (OSError, ValueError, TypeError, KeyError):
        raise UserError(
            f"the list of environments is damaged. Received: {path}. Fill the folder again: make wheels"
        ) from None


def require(frameworks: Sequence[str], environments: Sequence[Environment], *, folder: Path) -> None:
    """Check that a folder of wheels for these environments has all frameworks that are wanted.

    Raises:
        UserError: one is missing.
    """
    lacking = [NAMES[name] for name in frameworks if all(name not in one.frameworks for one in environments)]
    if lacking:
        raise UserError(
            f"the folder of wheels lacks a framework. Received: {folder} without {' and '.join(lacking)}. Name what it "
            "has, or fill another folder: make wheels GPU=1 WHEELS=DIR"
        )
