"""Write a bundle, as a folder or as a tar file, hashing each file while it is copied. What is in one: `bundle.py`."""

import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from common.errors import UserError
from common.utils.atomic import make_executable, temporary_folder_beside
from launch.offline import bundle

# Given a path in the bundle, what can be read there, its size in bytes, and whether it is a program.
Write = Callable[[str, Any, int, bool], None]


@dataclass(frozen=True, kw_only=True)
class BundledFile:
    """A file that is to be packed, and its path in the bundle."""

    file: Path
    path: str

    @property
    def bytes(self) -> int:
        """Its size."""
        return self.file.stat().st_size


class _Hashed:
    """A file that is read once, hashed on the way."""

    def __init__(self, file: BinaryIO, progress: bundle.ByteProgress) -> None:
        self._file, self._progress, self.digest = file, progress, hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes."""
        chunk = self._file.read(size)
        self.digest.update(chunk)
        self._progress.add(len(chunk))
        return chunk


@contextmanager
def temporary_place(out: Path) -> Iterator[Path]:
    """Give a hidden folder beside `out`, on the same disk; it is removed at the end, whatever happens.

    Raises:
        UserError: `out` exists, or there is no folder to hold it.
    """
    require_new(out)
    if not out.parent.is_dir():
        raise UserError(f"the bundle's folder does not exist. Received: {out.parent}. Make it, or name another")
    with temporary_folder_beside(out) as folder:
        yield folder


def require_new(out: Path) -> None:
    """Raise UserError if something is there already."""
    if out.exists() or out.is_symlink():
        raise UserError(f"nothing is overwritten. Received: {out}, which exists. Remove it, or name another: -o NAME")


def pack(sources: list[BundledFile], description: dict[str, Any], *, out: Path, place: Path) -> str:
    """Write a bundle in `place`, then give it its name; return the manifest's checksum.

    Args:
        sources: all files.
        description: what the manifest says besides their list.
        out: NAME.tar, else a folder.
        place: on the same disk.

    Raises:
        UserError: the disk has too little room, or `out` came into being meanwhile.
    """
    total, free = sum(source.bytes for source in sources), shutil.disk_usage(place).free
    if free < total:
        raise UserError(bundle.disk_is_short(total, free, out.parent))
    progress = bundle.ByteProgress("packing", total)
    with _writer(place / out.name) as write:
        files = [_copy(source, write, progress) for source in sources]
        manifest = {**description, "format": bundle.FORMAT, "files": files}
        checksum = bundle.sha256_of_manifest(manifest)
        text = json.dumps({"sha256": checksum, "manifest": manifest}, indent=1).encode() + b"\n"
        write(bundle.MANIFEST, io.BytesIO(text), len(text), False)
    progress.end()
    require_new(out)
    (place / out.name).rename(out)
    return checksum


def _copy(source: BundledFile, write: Write, progress: bundle.ByteProgress) -> dict[str, Any]:
    """Copy a file; return its line of the manifest."""
    status = source.file.stat()
    executable = bool(status.st_mode & 0o100)
    with source.file.open("rb") as file:
        hashed = _Hashed(file, progress)
        write(source.path, hashed, status.st_size, executable)
    sha256 = hashed.digest.hexdigest()
    return {"path": source.path, "bytes": status.st_size, "sha256": sha256, "executable": executable}


def _writer(place: Path) -> AbstractContextManager[Write]:
    return _tar_writer(place) if place.suffix == ".tar" else _folder_writer(place)


@contextmanager
def _folder_writer(folder: Path) -> Iterator[Write]:
    folder.mkdir()

    def write(path: str, content: Any, size: int, executable: bool) -> None:
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            shutil.copyfileobj(content, file, bundle.CHUNK)
        if executable:
            make_executable(target)

    yield write


@contextmanager
def _tar_writer(file: Path) -> Iterator[Write]:
    """Write a tar file that is not compressed: wheels are already."""
    with tarfile.open(file, "w", format=tarfile.PAX_FORMAT) as tar:

        def write(path: str, content: Any, size: int, executable: bool) -> None:
            member = tarfile.TarInfo(f"{bundle.TOP}/{path}")
            member.size, member.mode = size, 0o755 if executable else 0o644
            tar.addfile(member, content)

        yield write
