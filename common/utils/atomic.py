"""Files and folders that a reader sees whole or not at all. Standard library only: set-up uses it, too."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LONGEST_NAME = 100  # characters kept of a name, so that the temporary name does not exceed the file system's limit


@contextmanager
def atomic_file(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path`; rename it to `path` at the end, or remove it after an error.

    Args:
        path: of the file, which is replaced if it exists.
        durable: wait until the data is on disk, so that it survives a crash of the machine.

    Yields:
        An empty file to write to.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=_prefix(path))
    os.close(descriptor)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)
        if durable:
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, text: str) -> None:
    """Replace a file so that a reader, even after a crash, sees the old text or the new text, never a part."""
    with atomic_file(path, durable=True) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def temporary_folder_beside(path: Path) -> Iterator[Path]:
    """Yield an empty hidden folder beside `path`, on the same disk; it is always removed at the end."""
    folder = Path(tempfile.mkdtemp(dir=path.parent, prefix=_prefix(path)))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield an empty temporary folder; rename it to `path`, which must not exist, at the end, or remove it."""
    with temporary_folder_beside(path) as parent:
        temporary = parent / "new"  # unlike the folder around it, it has the usual permissions
        temporary.mkdir()
        yield temporary
        temporary.rename(path)


def _prefix(path: Path) -> str:
    return f".{path.name[:_LONGEST_NAME]}.partial-"
