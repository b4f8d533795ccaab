"""Which folders hold runs."""

import os
import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from common.errors import UserError
from common.run_folder.records import EPOCHS_FILE, RUN_FILE
from common.run_folder.set_aside import SET_ASIDE

_DEEPEST = 3  # levels of folders that are searched


@dataclass(frozen=True)
class Found:
    """What was found in some paths.

    Attributes:
        paths: that were searched.
        folders: of runs, each once.
        empty: the paths that hold none.
    """

    paths: Sequence[Path]
    folders: Sequence[Path]
    empty: Sequence[Path]


def run_folders(paths: Iterable[Path | str]) -> Found:
    """Find the run folders in these paths.

    Raises:
        UserError: a path does not exist.
    """
    inside = {path: _run_folders(path) for path in map(Path, paths)}
    # A run that is named in two ways is one run.
    unique: dict[object, Path] = {}
    for folder in (folder for of_path in inside.values() for folder in of_path):
        unique.setdefault(_identity(folder), folder)
    return Found([*inside], [*unique.values()], [path for path, of_path in inside.items() if not of_path])


def _run_folders(path: Path, depth: int = 0) -> Sequence[Path]:
    """Return the run folders in a path, itself included, in order of their names, numbers by their value."""
    try:
        with os.scandir(path) as found:
            entries = {entry.name: entry for entry in found}  # one look at each of thousands of folders
    except (FileNotFoundError, NotADirectoryError):
        problem = "this is a file, not a folder" if path.exists() else "there is no such folder"
        raise UserError(f"{problem}. Received: {path}. Name folders with runs") from None
    if RUN_FILE in entries or EPOCHS_FILE in entries:
        return [path]
    if depth == _DEEPEST:
        return []
    inside = [
        name
        for name in sorted(entries, key=_natural)
        if not name.startswith(".") and not _is_set_aside(name, among=entries) and _is_folder(entries[name])
    ]
    return [folder for name in inside for folder in _run_folders(path / name, depth + 1)]


def _identity(folder: Path) -> object:
    """Return what all names of a folder share: its number on its disk, at a tenth of the time of a resolved path."""
    try:
        state = folder.stat()
    except OSError:  # removed meanwhile
        return folder
    return state.st_dev, state.st_ino


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads nowhere
        return False


def _is_set_aside(name: str, *, among: Container[str]) -> bool:
    """Return whether a folder holds no run of a study: what a failed run left, or the rerun of `launch verify`."""
    rerun = re.fullmatch(r"(.+)-verify(-[0-9]+)?", name)
    return name == SET_ASIDE or (rerun is not None and rerun[1] in among)


def _natural(name: str) -> list[int | str]:
    """Return a key that sorts r2 before r10."""
    return [int(part) if number % 2 else part for number, part in enumerate(re.split(r"([0-9]+)", name))]
