"""Which folders hold runs."""

import os
import re
from collections.abc import Container, Iterable, Sequence
from pathlib import Path

from common.errors import UserError
from common.run_folder.records import EPOCHS_FILE, RUN_FILE
from common.run_folder.set_aside import SET_ASIDE

_DEEPEST = 3  # levels of folders that are searched


def run_folders(paths: Iterable[Path]) -> tuple[list[Path], list[Path]]:
    """Return the run folders in these paths, each once, and the paths that hold none.

    Raises:
        UserError: a path does not exist.
    """
    inside = {path: _run_folders(path) for path in paths}
    # A run that is named in two ways is one run.
    unique: dict[str, Path] = {}
    for folder in (folder for of_path in inside.values() for folder in of_path):
        unique.setdefault(os.path.realpath(folder), folder)
    return list(unique.values()), [path for path, of_path in inside.items() if not of_path]


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
