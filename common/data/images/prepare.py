"""Prepare a folder of class folders of images as one file (see `common.data.images.prepared_file`).

First the order of the rows is determined by the seed: each class is split into the parts, and each part is shuffled.
All cores then read the images in this order. Only a few chunks are in memory at a time, and a file name and three
numbers per image.
"""

import contextlib
import functools
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import numpy as np
from tqdm import tqdm

from common.data.dataset import PixelStatistics
from common.data.images.folder import class_folders, read_image, some
from common.data.images.prepared_file import VERSION, Description, PixelType, header_bytes
from common.data.images.prepared_rows import Rows, Shares, lay_out
from common.data.sources import say
from common.distributed.console import Console
from common.errors import UserError, expanded
from common.utils.atomic import atomic_file
from common.utils.workers import in_order

CHUNK_IMAGES = 32
_HALVES = (np.arange(256) / 255).astype(np.float16)  # pixel / 255, as in the thesis


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a prepared file.

    Attributes:
        size: (width, height) in pixels, to which all are resized (bilinear, without keeping proportions).
    """

    size: tuple[int, int]
    gray: bool
    pixels: PixelType
    shares: Shares
    seed: int
    skip_broken: bool

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(height, width, channels)."""
        width, height = self.size
        return height, width, 1 if self.gray else 3


@dataclass(frozen=True)
class Chunk:
    """Some rows of the file, and those of them that cannot be read.

    Attributes:
        images: (rows, height, width, channels) as stored.
        statistics: of the training images among them.
        broken: files, relative to the folder, each with the reason.
    """

    images: np.ndarray
    statistics: PixelStatistics
    broken: list[tuple[Path, str]]


@dataclass(frozen=True)
class Preparation:
    """The result: the file's description, the source of each row, and the skipped files."""

    description: Description
    rows: Rows
    skipped: list[tuple[Path, str]]


def prepare(folder: Path, file: Path, settings: Settings) -> Preparation:
    """Write a file of prepared images, atomically.

    Args:
        folder: with one subfolder of PNG or JPEG files per class.
        file: must not exist.

    Raises:
        UserError: there are no class folders, files are broken, a class is too small, or the file exists.
        OSError: something cannot be read or written.
    """
    folder, file = expanded(folder).absolute(), expanded(file)
    if file.exists():
        raise UserError(f"the file exists already and is not overwritten. Received: {file}. Name a new one")
    if not folder.is_dir():
        raise UserError(f"the folder of images does not exist. Received: {folder}. Name an existing one")
    classes = class_folders(folder)
    with _whole_file(file) as output:
        write = functools.partial(_write, output, folder, settings=settings)
        description, rows, broken = write(classes, skipped_files=0)
        if broken and not settings.skip_broken:
            raise _broken_files(broken, classes)
        if broken:
            # The split depends on the remaining files, so everything starts again.
            say(f"{len(broken):,} broken file(s) found, starting again without them")
            description, rows, again = write(_without(broken, classes), skipped_files=len(broken))
            if again:  # readable in the first pass
                raise _broken_files(again, classes)
    return Preparation(description, rows, broken)


@contextlib.contextmanager
def _whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Yield a temporary file that is renamed to `path` at the end, or removed after an error."""
    try:
        with atomic_file(path) as temporary, temporary.open("wb") as file:
            yield file
    except OSError as error:
        error.filename = error.filename or str(path)  # a failed write does not name the file
        raise


def _write(
    output: IO[bytes],
    folder: Path,
    classes: Mapping[str, Sequence[str]],
    *,
    settings: Settings,
    skipped_files: int,
) -> tuple[Description, Rows, list[tuple[Path, str]]]:
    """Write the whole file; after the first broken image only search for others."""
    rows = lay_out(folder, classes, shares=settings.shares, seed=settings.seed)
    training, validation, test = rows.counts
    labels = rows.labels.astype("<i8").tobytes()
    description = Description(
        version=VERSION,
        class_names=tuple(classes),
        image_shape=settings.image_shape,
        pixels=settings.pixels,
        training_samples=training,
        validation_samples=validation,
        test_samples=test,
        split=settings.shares.text,
        seed=settings.seed,
        source=folder.name,
        skipped_files=skipped_files,
        labels_crc32=zlib.crc32(labels),
    )
    header = header_bytes(description)
    output.seek(0)
    output.truncate()
    output.write(header + labels)
    statistics = PixelStatistics(settings.image_shape[2])
    checksum, broken = 0, []
    bar = Console.automatic_bars()
    if not bar:
        say(f"preparing {description.samples:,} images of {folder}")
    read = functools.partial(_read_chunk, rows, settings=settings)
    with tqdm(total=description.samples, desc="preparing", unit="image", disable=not bar, leave=False) as advance:
        for chunk in in_order(read, rows.chunks(CHUNK_IMAGES)):
            advance.update(len(chunk.images))
            broken += chunk.broken
            if not broken:
                data = chunk.images.reshape(-1).view(np.uint8).data
                output.write(data)
                checksum = zlib.crc32(data, checksum)
                statistics.counts += chunk.statistics.counts
    if not broken:
        description = replace(
            description,
            mean=statistics.mean,
            standard_deviation=statistics.standard_deviation,
            images_crc32=checksum,
        )
        output.seek(0)
        output.write(header_bytes(description, length=len(header)))
    return description, rows, broken


def _read_chunk(rows: Rows, chunk: tuple[range, bool], *, settings: Settings) -> Chunk:
    """Read the images of some rows."""
    numbers, is_training = chunk
    pixels = np.zeros((len(numbers), *settings.image_shape), np.uint8)
    broken = []
    for place, row in enumerate(numbers):
        path = rows.path(row)
        image = read_image(rows.folder / path, shape=settings.image_shape)
        if isinstance(image, str):
            broken.append((path, image))
        else:
            pixels[place] = image
    statistics = PixelStatistics(settings.image_shape[2])
    if is_training:
        statistics.add(pixels)
    # A uint8 is never out of range; any mode but "raise" skips NumPy's check.
    stored = np.take(_HALVES, pixels, mode="wrap") if settings.pixels == "float16" else pixels
    return Chunk(stored, statistics, broken)


def _without(broken: Sequence[tuple[Path, str]], classes: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    left_out = {path for path, _ in broken}
    return {name: [file for file in files if Path(name, file) not in left_out] for name, files in classes.items()}


def _broken_files(broken: Sequence[tuple[Path, str]], classes: Mapping[str, Sequence[str]]) -> UserError:
    files = sum(map(len, classes.values()))
    first = some([f"{path} ({reason})" for path, reason in sorted(broken)], joint="; ")
    return UserError(
        f"{len(broken):,} of {files:,} image files are broken. Received: {first}. Replace or remove them, or give "
        "--skip-broken"
    )
