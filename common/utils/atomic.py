"""Files and folders that a reader sees whole or not at all. Standard library only: set-up uses it, too."""

import fcntl
import glob
import os
import platform
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

_LONGEST_NAME = 100  # characters kept of a name, so that the temporary name does not exceed the file system's limit


@contextmanager
def atomic_file(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path`; rename it to `path` at the end, or remove it after an error.

    Args:
        path: of the file, which is replaced if it exists.
        durable: wait until the data is on disk, so that it survives a crash of the machine.

    Yields:
        An empty file to write to, with the permissions that the umask leaves.
    """
    temporary = path.with_name(f"{_prefix(path)}{uuid.uuid4().hex}")
    temporary.touch(exist_ok=False)  # unlike a file of `tempfile`, which only its owner may read
    mode = temporary.stat().st_mode
    try:
        yield temporary
        temporary.chmod(mode)  # a library may have put a file of its own in its place
        if durable:
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        error.filename = error.filename or str(path)  # a failed write does not name the file
        raise
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, text: str) -> None:
    """Replace a file so that a reader, even after a crash, sees the old text or the new text, never a part."""
    with atomic_file(path, durable=True) as temporary:
        temporary.write_text(text, encoding="utf-8")


def remove_partial_files(folder: Path) -> None:
    """Remove the temporary files that `atomic_file` has left in a folder where its process was killed."""
    for file in folder.glob(".*.partial-*"):
        if file.is_file():
            file.unlink(missing_ok=True)


def make_executable(path: Path) -> None:
    """Let those execute a file who may read it."""
    mode = path.stat().st_mode
    path.chmod(mode | (mode & 0o444) >> 2)


@contextmanager
def temporary_folder_beside(path: Path) -> Iterator[Path]:
    """Yield an empty hidden folder beside `path`, on the same disk; it is always removed at the end.

    So are those for the same `path` that killed processes of this host have left: nobody locks them any more. Whether
    another host still has its own is unknown where locks are of a host alone, as on some network file systems.
    """
    prefix = f"{_prefix(path)}{platform.node()}-"
    with ExitStack() as held:
        with _locked(path.parent, wait=True) as is_alone:  # who looks for leftovers finds no new folder without a lock
            for old in path.parent.glob(f"{glob.escape(prefix)}*") if is_alone else ():
                with _locked(old) as is_left:
                    if is_left:
                        shutil.rmtree(old, ignore_errors=True)
            folder = Path(tempfile.mkdtemp(dir=path.parent, prefix=prefix))
            held.callback(shutil.rmtree, folder, ignore_errors=True)
            held.enter_context(_locked(folder))
        yield folder


@contextmanager
def _locked(folder: Path, *, wait: bool = False) -> Iterator[bool]:
    """Hold the lock of a folder, which ends with its process; yield whether it was to be had."""
    with ExitStack() as held:
        is_held = False
        with suppress(OSError):  # another one has it, this is no folder, or its file system has no locks
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            held.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            is_held = True
        yield is_held


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
