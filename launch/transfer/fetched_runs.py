"""Run folders on their way here: which there are, and whether one may take the place of the one that is here."""

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from common.distributed.console import counted
from common.errors import UserError
from common.run_folder.records import EPOCHS_FILE, RUN_FILE, WEIGHTS_FILE, Hashes, RecordedRun, Status, read_run
from common.run_folder.set_aside import SET_ASIDE
from launch.transfer.remote_files import Entry, checksum, shown

# What a run itself removes when it resumes; anything else that is only here was added by somebody.
_OF_THE_RUN = (WEIGHTS_FILE, "checkpoints/")


@dataclass(frozen=True)
class Root:
    """A folder there.

    Attributes:
        path: as `place` makes it.
        name: here; empty: its content is put here without a folder around it, unless it is itself a run.
    """

    path: str
    name: str

    @classmethod
    def at(cls, path: str, *, name: str) -> "Root":
        """Return a folder of any path; a relative one is made to begin with "./", so that no tool takes it for a flag.

        Raises:
            UserError: the name is none.
        """
        path = posixpath.normpath(path)
        if name in (".", ".."):
            raise UserError(f"the folder has no name of its own. Received: {path}. Give its whole path")
        return cls(path if path.startswith("/") else f"./{path}", name)


@dataclass(frozen=True)
class RemoteRun:
    """A run folder there.

    Attributes:
        path: there.
        to: where it is put here.
        files: path within it -> what is there.
    """

    path: str
    to: Path
    files: Mapping[str, Entry]

    def is_here(self) -> bool:
        """Return whether it is on a shared file system, where it would be put."""
        # Either is enough: a running run rewrites them.
        return any(name in self.files and self.files[name].is_file(self.to / name) for name in (RUN_FILE, EPOCHS_FILE))


def find_runs(entries: Mapping[str, Entry], root: Root, *, to: Path) -> list[RemoteRun]:
    """Return the run folders in a folder there: all that hold `run.json`, but for what was set aside.

    Raises:
        UserError: a name leads out of the folder.
    """
    start = f"{root.path}/"
    inside = {name.removeprefix(start): entry for name, entry in entries.items() if name.startswith(start)}
    for name in inside:
        if not {"", ".", ".."}.isdisjoint(name.split("/")):
            raise UserError(f"a name leads out of its folder. Received: {shown(name)}. Do not trust this machine")
    if RUN_FILE in inside:
        name = root.name or PurePosixPath(root.path).name
        if name in ("", ".."):
            raise UserError(f"the run has no name of its own. Received: {root.path}. Give its whole path")
        return [RemoteRun(root.path, to / name, inside)]
    folders = {posixpath.dirname(name) for name in inside if posixpath.basename(name) == RUN_FILE}
    runs = []
    for folder in sorted(folders):
        parents = {str(parent) for parent in PurePosixPath(folder).parents}
        if SET_ASIDE not in folder.split("/") and folders.isdisjoint(parents):
            files = {
                name.removeprefix(f"{folder}/"): entry
                for name, entry in inside.items()
                if name.startswith(f"{folder}/")
            }
            runs.append(RemoteRun(f"{root.path}/{folder}", to / root.name / folder, files))
    return runs


def sums_of(folder: Path) -> dict[str, str] | None:
    """Return path within a run folder here -> SHA-256; None: there is none, or it holds other than plain files."""
    if not folder.is_dir():
        return None
    sums = {}
    for path in folder.rglob("*"):
        within = path.relative_to(folder)
        if any(part.startswith(".") for part in within.parts):
            continue  # half written
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            return None
        if path.is_file():
            sums[within.as_posix()] = checksum(path)
    return sums


def why_not_replaceable(here: Path, there: Path) -> str | None:
    """Return why a run folder is no earlier state of another one, in words; None: it is one.

    The other holds all that it holds; or it is of the same start, or of one that went on from it, of the same first
    weights and order, and the other's epochs begin with its own.
    """
    sums, others = sums_of(here), sums_of(there)
    if sums is None or others is None:
        return "it is not a folder of plain files"
    own = sorted(name for name in sums.keys() - others.keys() if not name.startswith(_OF_THE_RUN))
    if own:
        return f"{shown(own[0])} is here only"
    if sums.items() <= others.items():
        return None
    try:
        first, second = read_run(here), read_run(there)
    except UserError:
        return "a record cannot be read"
    lines = [(folder / EPOCHS_FILE).read_bytes().splitlines() for folder in (here, there)]
    if lines[1][: len(lines[0])] != lines[0]:
        return f"its {counted(len(lines[0]), 'epoch')} are not the first of the {len(lines[1])} there"
    return _other_start(first, second)


def _other_start(first: RecordedRun, second: RecordedRun) -> str | None:
    """Return why the second cannot be the first as it went on."""
    old, new = first.record.status, second.record.status
    if not isinstance(old, Status) or not isinstance(new, Status):
        return "it does not say when it was started"
    if new.heartbeat_at < old.heartbeat_at:
        return "it is later"
    before, after = old.resumed_after_epochs, new.resumed_after_epochs
    if (old.started_at, before) == (new.started_at, after):
        return None if old.state == "running" else "it has ended, and files of it differ"
    if after[: len(before)] != before or len(after) == len(before):
        return "it is of another start"
    known = first.record.hashes, second.record.hashes
    if all(isinstance(hashes, Hashes) for hashes in known):
        firsts = [(hashes.initial_weights, hashes.sample_order) for hashes in known if isinstance(hashes, Hashes)]
        if firsts[0] != firsts[1]:
            return "first weights or order of the samples differ"
    return None
