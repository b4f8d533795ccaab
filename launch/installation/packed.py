"""Which environments a folder of wheels is for. One for the CPU has no such list: it serves either framework."""

import json
from collections.abc import Sequence
from pathlib import Path

from common.errors import UserError
from launch.installation.environment import NAMES, Environment, frameworks_of, in_order

NAME = "environments.json"


def pack(folder: Path, environments: Sequence[Environment]) -> None:
    """Write the list, if the environments are for GPUs."""
    if any(environment.cuda for environment in environments):
        keys = ("folder", "frameworks", "cuda", "capabilities")
        content = [{key: getattr(environment, key) for key in keys} for environment in environments]
        (folder / NAME).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def unpack(folder: Path, *, root: Path) -> tuple[Environment, ...]:
    """Return the environments in a clone that a folder of wheels is for; none: for the CPU.

    Raises:
        UserError: the list is damaged.
    """
    path = folder / NAME
    if not path.exists():
        return ()
    try:
        return tuple(
            Environment(
                root=root,
                folder=str(entry["folder"]),
                frameworks=tuple(entry["frameworks"]),
                cuda=int(entry["cuda"]),
                capabilities=tuple(entry["capabilities"]),
            )
            for entry in json.loads(path.read_text(encoding="utf-8"))
        )
    except (OSError, ValueError, TypeError, KeyError):
        raise UserError(
            f"the list of environments is damaged. Received: {path}. Fill the folder again: make wheels"
        ) from None


def require(frameworks: Sequence[str], environments: Sequence[Environment], *, folder: Path) -> None:
    """Raise UserError if a folder of wheels for these environments lacks a framework that is wanted."""
    lacking = [NAMES[name] for name in in_order({*frameworks} - {*frameworks_of(environments)})]
    if lacking:
        raise UserError(
            f"the folder of wheels lacks a framework. Received: {folder} without {' and '.join(lacking)}. Name what it "
            "has, or fill another folder: make wheels GPU=1 WHEELS=DIR"
        )
