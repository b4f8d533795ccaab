"""From what a page was made: the same command finds out whether the page is up to date without reading the runs."""

import argparse
import hashlib
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from analysis.runs.folders import Found
from common.run_folder.records import now
from common.utils.paths import ROOT

NEVER = "0"  # in place of the digest of files: there are none that have it
_PROGRAM = ("analysis", "common")  # folders of the files that make a page, with the data that they read
_WRITTEN = re.compile(rb'<meta name="made-from" content="([0-9a-f]+) ([0-9a-f]+)">')
_HEAD_BYTES = 4096  # of a page, which contain that line


@dataclass(frozen=True)
class MadeFrom:
    """Two digests: of the command with its options, and of the day, the program's files and all files of the runs."""

    command: str
    files: str

    def __str__(self) -> str:
        return f"{self.command} {self.files}"


def made_from(options: argparse.Namespace, found: Found) -> MadeFrom:
    """Return from what the command makes its page now.

    Args:
        options: of the command: those of `add_runs_options`, output, title and strict.
        found: the folders of its runs.
    """
    # What belongs to several runs, such as the record of a search, is in the folder around them.
    around = {*found.paths} | {folder.parent for folder in found.folders}
    walked = (folder for name in _PROGRAM for folder, _, _ in os.walk(ROOT / name))
    program = sorted(Path(folder) for folder in walked if "__pycache__" not in folder)
    files = _states([*found.folders, *sorted(around), *program], without=Path(options.output))
    command = {name: getattr(options, name) for name in ("runs", "examples", "published", "title", "strict")}
    return MadeFrom(_digest([command]), _digest([now()[:10], *files]))  # the day: prices grow old


def written_from(page: Path) -> MadeFrom | None:
    """Return from what an existing page was made; None: there is no page of `report`."""
    try:
        with page.open("rb") as file:
            found = _WRITTEN.search(file.read(_HEAD_BYTES))
    except OSError:
        return None
    return MadeFrom(found[1].decode(), found[2].decode()) if found else None


def _states(folders: Iterable[Path], *, without: Path) -> Iterable[object]:
    """Yield name, size and time of the last change of every file in these folders, not of those inside."""
    own = without.stat() if without.exists() else None
    for folder in folders:
        try:
            with os.scandir(folder) as entries:
                files = sorted((entry.path, entry.stat()) for entry in entries if entry.is_file())
        except OSError as error:  # reading the runs reports it
            yield str(folder), str(error)
            continue
        yield from (
            (path, state.st_size, state.st_mtime_ns)
            for path, state in files
            if own is None or not os.path.samestat(state, own)
        )


def _digest(parts: Iterable[object]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(json.dumps(part).encode() + b"\n")
    return digest.hexdigest()
