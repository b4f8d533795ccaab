"""A bundle: what is in it, and reading it with every file checked.

    bundle/manifest.json    what is in it, for which kind of machine; path, size and SHA-256 of every other file
           unstage.py       sets up from it (`bundle_script.py`)
           code/            the project
           wheels/          as `make wheels` fills it; for another architecture the pure-Python ones only
           datasets/NAME/   entries of the cache of data sets
           inputs/          weights and prepared images

Standard library only: the machine that reads it has nothing else yet.
"""

import contextlib
import hashlib
import io
import json
import os
import shutil
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from common.errors import UserError
from common.utils.atomic import temporary_folder_beside
from common.utils.whole_files import parse_json, read_text

FORMAT = 1
TOP = "bundle"
MANIFEST = "manifest.json"
SCRIPT = "unstage.py"
PARTS = ("code", "wheels", "datasets", "inputs")
CHUNK = 1 << 20  # bytes
# What a manifest holds that is read; "": at its top.
_KINDS: dict[str, dict[str, type]] = {
    "": {"files": list, "target": dict, "setup": dict, "datasets": list, "try_dataset": str},
    "files": {"path": str, "bytes": int, "sha256": str},
    "target": {"architecture": str, "glibc": str},
    "setup": {"wheels": str, "frameworks": list, "gpu": bool},
}


class ByteProgress:
    """How much is done and how long the rest takes: one line that is rewritten on a terminal, else one at the end."""

    def __init__(self, title: str, total: int) -> None:
        """Start the clock; `total` in bytes."""
        self.title, self.total, self.done = title, total, 0
        self.started = self.shown = time.monotonic()

    def add(self, count: int) -> None:
        """Count so many bytes as done."""
        self.done += count
        now = time.monotonic()
        if sys.stderr.isatty() and now - self.shown > 0.2:
            self.shown = now
            left = (self.total - self.done) * (now - self.started) / self.done
            shown = f"{size_of(self.done)} of {size_of(self.total)}, about {max(0, left):.0f} s left"
            print(f"\r{self.title}: {shown}   ", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Print the sum."""
        if sys.stderr.isatty():
            print("\r" + " " * 79 + "\r", end="", file=sys.stderr, flush=True)
        print(f"{self.title}: {size_of(self.done)} in {time.monotonic() - self.started:.1f} s", flush=True)


def size_of(count: float) -> str:
    """Return a number of bytes as text: 512 B, 1.5 kB, 340.0 MB, 1.3 GB (powers of 1000)."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.1f} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1000
    return f"{count:.1f} GB"


class _Pieces(io.BufferedReader):
    """A tar file, of which no header is larger than a piece: tarfile would take as much memory as one says."""

    def read(self, size: int | None = -1, /) -> bytes:
        """Return so many bytes.

        Raises:
            tarfile.ReadError: they are more than a piece.
        """
        if size is None or not 0 <= size <= CHUNK:
            raise tarfile.ReadError(f"a header of {size} bytes")
        return super().read(size)


@contextlib.contextmanager
def unpacked(archive: Path, *, near: Path) -> Iterator[Path]:
    """Yield the folder that a tar file contains, unpacked into a hidden folder in `near`, which is removed at the end.

    Raises:
        UserError: no tar file, cut off, or with members that are no bundle's.
    """
    if not archive.is_file():
        raise UserError(f"there is no such bundle. Received: {archive}. Name a tar file or folder made by `stage`")
    with temporary_folder_beside(near / TOP) as temporary:
        try:
            with _Pieces(io.FileIO(archive)) as file, tarfile.open(fileobj=file, mode="r:") as tar:
                unpack(tar, temporary)
        except (tarfile.TarError, EOFError) as error:
            raise UserError(
                f"the bundle is not a complete tar file ({error}). Received: {archive}. Copy it here again"
            ) from None
        yield temporary / TOP


def unpack(tar: tarfile.TarFile, folder: Path) -> None:
    """Unpack plain files only; names that lead elsewhere, links, devices and repeated names are refused."""
    members = [member for member in tar.getmembers() if not member.isdir()]
    seen = set()
    for member in members:
        problem = problem_of_path(member.name)
        if problem is None and (not member.isfile() or member.issparse()):
            problem = "it is not a plain file"
        if problem is None and PurePosixPath(member.name).parts[0] != TOP:
            problem = f"it is outside of {TOP}/"
        if problem is None and member.name in seen:
            problem = "it is there twice"
        seen.add(member.name)
        if problem:
            raise UserError(f"the tar file is not a bundle: {problem}. Received: {member.name!r}. Pack it again")
    needed, free = sum(member.size for member in members), shutil.disk_usage(folder).free
    if free < needed:
        raise UserError(disk_is_short(needed, free, folder.parent))
    progress = ByteProgress("unpacking", needed)
    for member in members:
        target = folder / member.name
        target.parent.mkdir(parents=True, exist_ok=True)
        content = tar.extractfile(member)
        assert content is not None, member.name  # a plain file has content
        with content, target.open("wb") as file:
            shutil.copyfileobj(content, file, CHUNK)
        progress.add(member.size)
    progress.end()


def problem_of_path(path: str) -> str | None:
    """Return why a path in a bundle cannot be one; None if it can. Nothing is asked of the file system."""
    parts = path.split("/")
    if not path or path.startswith("/") or ".." in parts or "." in parts or "" in parts:
        return "a path that leads out of the bundle"
    if "\\" in path or any(ord(letter) < 32 for letter in path):
        return "a path with characters that no name here has"
    return None


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the list of what a bundle holds, checked against its own checksum.

    Raises:
        UserError: it is missing, damaged, or of a newer program.
    """
    path = folder / MANIFEST
    try:
        written = parse_json(read_text(path))
        manifest, checksum = written["manifest"], written["sha256"]
    except FileNotFoundError:
        raise UserError(f"a bundle has a {MANIFEST}. Received: {folder}, without. Name one made by `stage`") from None
    except (OSError, ValueError, TypeError, KeyError):
        raise UserError(f"the bundle is damaged: {MANIFEST} cannot be read. Received: {path}. Copy it again") from None
    if checksum != sha256_of_manifest(manifest):
        raise UserError(f"the bundle is damaged: {MANIFEST} has another checksum. Received: {path}. Copy it again")
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        found = manifest.get("format") if isinstance(manifest, dict) else type(manifest).__name__
        received = f"Received: format {found}, this program reads {FORMAT}"
        raise UserError(f"the bundle is of another version of `stage`. {received}. Use the {SCRIPT} in the bundle")
    problem = problem_of_list(manifest)
    if problem:
        raise UserError(f"the bundle's list is not one of `stage`: {problem}. Received: {path}. Pack it again")
    for file in manifest["files"]:
        top = PurePosixPath(file["path"]).parts[:1]
        if problem_of_path(file["path"]) or top[0] not in (*PARTS, SCRIPT):
            raise UserError(f"the bundle's list has an invalid path. Received: {file['path']!r}. Pack it again")
    return dict(manifest)


def problem_of_list(manifest: dict[str, Any]) -> str | None:
    """Return what is missing in a manifest, or is of another kind; None if nothing is."""
    for place, kinds in _KINDS.items():
        whole = manifest if not place else manifest.get(place)
        parts = whole if place == "files" and isinstance(whole, list) else [whole]
        for part in parts:
            for name, kind in kinds.items():
                found = part.get(name) if isinstance(part, dict) else None
                # A truth value is a whole number in Python, but not here.
                if not isinstance(found, kind) or (kind is int and not _is_count(found)):
                    return f"{place + ': ' if place else ''}{name} is no {kind.__name__}"
    names = [*manifest["datasets"], *manifest["setup"]["frameworks"], *manifest["setup"].get("from_modules", [])]
    if not all(isinstance(name, str) for name in names):
        return "a name is no str"
    if not manifest["setup"]["frameworks"] or any(
        problem_of_path(name) or "/" in name for name in manifest["datasets"]
    ):
        return "setup has no framework, or a data set no name"
    return None


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def sha256_of_manifest(manifest: dict[str, Any]) -> str:
    """Return the checksum of a manifest, whatever its layout."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def check_files(folder: Path, manifest: dict[str, Any]) -> None:
    """Check that a bundle holds the files that are listed, as they were, and no others.

    Raises:
        UserError: names the first file that is damaged, missing or additional.
    """
    listed = {file["path"]: file for file in manifest["files"]}
    found = set(files_of(folder)) - {MANIFEST}
    for path in sorted(found - set(listed)):
        raise UserError(f"the bundle has a file too many. Received: {path}. Remove it, or copy the bundle again")
    for path in sorted(set(listed) - found):
        raise UserError(f"the bundle lacks a file. Received: none at {path}. Copy the bundle again")
    progress = ByteProgress("checking", sum(file["bytes"] for file in listed.values()))
    for path, file in sorted(listed.items()):
        if (folder / path).is_symlink() or not (folder / path).is_file():
            raise UserError(f"the bundle holds plain files only. Received: {path}. Copy the bundle again")
        size = (folder / path).stat().st_size
        if size != file["bytes"]:
            received = f"{size} bytes instead of {file['bytes']}"
            raise UserError(f"a file of the bundle is damaged. Received: {path}, {received}. Copy the bundle again")
        if sha256_of_file(folder / path, progress) != file["sha256"]:
            raise UserError(
                f"a file of the bundle is damaged. Received: {path}, another SHA-256. Copy the bundle again"
            )
    progress.end()


def files_of(folder: Path) -> list[str]:
    """Return the paths of all that is no folder, relative; links are not followed."""
    found = []
    for place, folders, files in os.walk(folder):
        links = [name for name in folders if (Path(place) / name).is_symlink()]
        found += [(Path(place) / name).relative_to(folder).as_posix() for name in (*files, *links)]
    return found


def sha256_of_file(path: Path, progress: ByteProgress | None = None) -> str:
    """Return the SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for chunk in iter(lambda: file.read(CHUNK), b""):
            digest.update(chunk)
            if progress:
                progress.add(len(chunk))
    return digest.hexdigest()


def disk_is_short(needed: int, free: int, place: Path) -> str:
    """Return the error for a disk that is too small; sizes in bytes."""
    return f"the disk is too full. Received: {size_of(free)} free at {place}, needed {size_of(needed)}. Make room there"
