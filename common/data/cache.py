"""The cache of data sets: one folder per data set, complete or absent, checked on every load.

    <cache folder>/datasets/mnist/train_images.npy    (60000, 28, 28, 1) uint8
                                  train_labels.npy    (60000,) int64
                                  test_images.npy, test_labels.npy
                                  meta.json           classes, pixel statistics, origin; size and CRC-32 of the files
    <cache folder>/datasets/.mnist.lock

An entry is built in its own folder and renamed into place, so a reader never sees part of one. The builder holds the
lock, which works across processes and hosts; readers need neither lock nor write permission. Each load computes the
CRC-32 of all bytes (1 to 4 GB/s) and rebuilds a damaged entry. Files above 2 GB are checked by size on a load, and
in full by `python -m common datasets verify`.
"""

import contextlib
import errno
import json
import shutil
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import filelock
import numpy as np

from common.data.dataset import Content, Dataset, PixelStatistics, Split, check_labels
from common.data.progress import say
from common.errors import UserError
from common.utils.atomic import temporary_folder_beside
from common.utils.cache_folder import cache_folder
from common.utils.printable import printable
from common.utils.whole_files import parse_json, read_bytes

FORMAT_VERSION = 1
FULL_CHECK_BYTES = 2 * 1024**3
QUIET_WAIT_SECONDS = 3
ARRAY_FILES = ("train_images.npy", "train_labels.npy", "test_images.npy", "test_labels.npy")


class DamagedEntryError(Exception):
    """A cache entry differs from what was written; the message says how."""


def datasets_folder() -> Path:
    """Return the folder of the cached data sets (not created)."""
    return cache_folder() / "datasets"


def load_or_build(entry: str, build: Callable[[Path], Content], *, name: str) -> Dataset:
    """Return a data set from the cache; build it first if it is missing or damaged.

    Args:
        build: returns the content; its argument is an empty folder for downloads, deleted afterwards.

    Raises:
        UserError: from the builder, or the cache cannot be read or written, or the disk is full.
    """
    waiting_since = time.time()
    with _user_errors():
        with contextlib.suppress(FileNotFoundError, DamagedEntryError):
            return load_entry(entry, name=name)
        with _build_lock(entry):
            try:
                return load_entry(entry, name=name)  # another process has built it meanwhile
            except FileNotFoundError:
                pass
            except DamagedEntryError as error:
                say(f"data set {name} in the cache is damaged ({error}); building it again")
            _build_entry(entry, build, waiting_since)
            return load_entry(entry, name=name)


def load_entry(entry: str, *, name: str, full_check: bool = False) -> Dataset:
    """Return a data set that is in the cache.

    Args:
        full_check: check the bytes of large files too.

    Raises:
        FileNotFoundError: the entry does not exist.
        DamagedEntryError: it differs from what was written.
        UserError: labels are out of range.
    """
    folder = datasets_folder() / entry
    meta = read_meta(entry)
    arrays = []
    for file_name in ARRAY_FILES:
        path, expected = folder / file_name, meta["files"][file_name]
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            raise DamagedEntryError(f"{file_name} is missing") from None
        if size != expected["bytes"]:
            raise DamagedEntryError(f"{file_name} has {size} bytes instead of {expected['bytes']}")
        if (full_check or size <= FULL_CHECK_BYTES) and crc32_of_file(path) != expected["crc32"]:
            raise DamagedEntryError(f"{file_name} has another checksum")
        arrays.append(np.load(path, mmap_mode="r", allow_pickle=False))
    class_names = tuple(meta["class_names"])
    for labels in (arrays[1], arrays[3]):
        check_labels(labels, class_count=len(class_names), where=str(folder))
    return Dataset(
        name=name,
        train=Split(images=arrays[0], labels=arrays[1]),
        test=Split(images=arrays[2], labels=arrays[3]),
        class_names=class_names,
        mean=tuple(meta["mean"]),
        standard_deviation=tuple(meta["standard_deviation"]),
        validation_samples=meta.get("validation_samples", 0),  # missing in entries of earlier versions
        notes=tuple(meta.get("notes", ())),
    )


def read_meta(entry: str) -> dict[str, Any]:
    """Return the description of a cache entry, checked against its own checksum.

    Raises:
        FileNotFoundError: the entry does not exist.
        DamagedEntryError: the description differs from what was written, or is of another version.
    """
    folder = datasets_folder() / entry
    if not folder.is_dir():
        raise FileNotFoundError(folder)
    try:
        meta = parse_json(read_bytes(folder / "meta.json"))
        checksum = meta.pop("crc32")
    except FileNotFoundError:
        raise DamagedEntryError("meta.json is missing") from None
    except (ValueError, KeyError, AttributeError):
        raise DamagedEntryError("meta.json is unreadable") from None
    if checksum != _crc32_of_meta(meta) or meta.get("format") != FORMAT_VERSION:
        raise DamagedEntryError("meta.json has another checksum or version")
    return meta


def entries() -> list[str]:
    """Return the names of all entries in the cache, sorted."""
    folder = datasets_folder()
    return sorted(path.name for path in folder.glob("[!.]*") if path.is_dir()) if folder.is_dir() else []


def _build_entry(entry: str, build: Callable[[Path], Content], waiting_since: float) -> None:
    """Build an entry and put it in place; the lock is held.

    A failure is recorded next to the lock, so that a process that was already waiting fails with the same message.
    Otherwise 64 ranks would take 64 times as long to report that there is no network.
    """
    parent = datasets_folder()
    failure_note = parent / f".{entry}.failed"
    if failure_note.exists() and failure_note.stat().st_mtime >= waiting_since:
        raise UserError(failure_note.read_text(encoding="utf-8"))
    try:
        with _user_errors(), temporary_folder_beside(parent / entry) as partial:
            (partial / "work").mkdir()
            (partial / "entry").mkdir()
            _write_entry(partial / "entry", build(partial / "work"))
            shutil.rmtree(partial / "work")  # not left by a process that ends once the entry is in place
            if (parent / entry).exists():
                (parent / entry).rename(partial / "damaged")
            (partial / "entry").rename(parent / entry)
    except UserError as error:
        with contextlib.suppress(OSError):  # if the disk is too full even for this, each process tries by itself
            failure_note.write_text(printable(str(error)), encoding="utf-8")
        raise
    failure_note.unlink(missing_ok=True)


def _write_entry(folder: Path, content: Content) -> None:
    """Write the arrays, then their description. With plain writes a full disk is an error; with a map it is a crash."""
    statistics = PixelStatistics(content.image_shape[2])
    labels = content.labels()
    chunks = content.train_chunks(statistics), content.test_chunks()
    for split, split_labels, split_chunks in zip(("train", "test"), labels, chunks, strict=True):
        np.save(folder / f"{split}_labels.npy", split_labels)
        with (folder / f"{split}_images.npy").open("wb") as file:
            shape = (len(split_labels), *content.image_shape)
            np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
            for chunk in split_chunks:
                file.write(chunk.data)
    meta = {
        "format": FORMAT_VERSION,
        "origin": content.origin,
        "class_names": list(content.class_names),
        "mean": list(statistics.mean),
        "standard_deviation": list(statistics.standard_deviation),
        "validation_samples": content.validation_samples,
        "notes": content.notes(),
        "files": {
            name: {
                "shape": list(np.load(folder / name, mmap_mode="r").shape),
                "bytes": (folder / name).stat().st_size,
                "crc32": crc32_of_file(folder / name),
            }
            for name in ARRAY_FILES
        },
    }
    (folder / "meta.json").write_text(json.dumps(meta | {"crc32": _crc32_of_meta(meta)}, indent=1) + "\n")


def crc32_of_file(path: Path, *, start: int = 0) -> int:
    """Return the CRC-32 of the bytes of a file from `start` on."""
    checksum = 0
    with path.open("rb") as file:
        file.seek(start)
        while chunk := file.read(1 << 20):
            checksum = zlib.crc32(chunk, checksum)
    return checksum


def _crc32_of_meta(meta: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(meta, sort_keys=True).encode())


@contextlib.contextmanager
def _build_lock(entry: str) -> Iterator[None]:
    """Hold the lock of an entry; report a long wait. A killed process loses its lock."""
    datasets_folder().mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(datasets_folder() / f".{entry}.lock")
    try:
        lock.acquire(timeout=QUIET_WAIT_SECONDS)
    except filelock.Timeout:
        say(f"waiting for another process that is building data set {entry} (lock {lock.lock_file})")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _user_errors() -> Iterator[None]:
    """Turn an error of the file system into a UserError with a remedy."""
    try:
        yield
    except OSError as error:
        where = f"Received: {error.strerror or error} ({error.filename or datasets_folder()})"
        elsewhere = "set HOROVOD_TWINS_CACHE to a folder"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                f"the disk of the cache folder is full. {where}. Make room, or {elsewhere} on another disk"
            ) from error
        raise UserError(
            f"the cache folder {cache_folder()} cannot be used. {where}. Correct it, or {elsewhere} that can be written"
        ) from error
