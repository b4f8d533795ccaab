"""Prepare a folder of class folders of images as one file (see `common.data.images.prepared_file`).

First the order of the rows is determined by the seed: each class is split into the parts, and each part is shuffled.
All cores then read the images in this order. Only a few chunks are in memory at a time, and a file name and three
numbers per image.
"""

import contextlib
import functools
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import numpy as np
from tqdm import tqdm

from common.data.dataset import PixelStatistics
from common.data.images.listing import PARTS, FolderListing, list_folder
from common.data.images.prepared_file import VERSION, Description, PixelType, header_bytes
from common.data.images.prepared_rows import Rows, Shares, lay_out, parse_shares
from common.data.images.reading import Tally, read_image, some
from common.data.progress import say
from common.distributed.console import Console
from common.errors import UserError, expanded
from common.utils.atomic import atomic_file
from common.utils.workers import in_order

CHUNK_IMAGES = 32
DEFAULT_SHARES = "85/2/13"
_HALVES = (np.arange(256) / 255).astype(np.float16)  # pixel / 255, as in the thesis


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a prepared file.

    Attributes:
        size: (width, height) in pixels, to which all are resized (bilinear, without keeping proportions).
        shares: of training, validation and test; None: as the folder is split, or DEFAULT_SHARES.
    """

    size: tuple[int, int]
    gray: bool
    pixels: PixelType
    shares: Shares | None
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
        tally: what was done to them.
        broken: files, relative to the folder, each with the reason.
    """

    images: np.ndarray
    statistics: PixelStatistics
    tally: Tally
    broken: list[tuple[str, str]]


@dataclass(frozen=True)
class Preparation:
    """The result: the file's description, the source of each row, the skipped files, and lines about the others."""

    description: Description
    rows: Rows
    skipped: list[tuple[str, str]]
    notes: list[str]


def prepare(folder: Path, file: Path, settings: Settings) -> Preparation:
    """Write a file of prepared images, atomically.

    Args:
        folder: with one subfolder of image files per class, or with the folders train, val and test of such ones.
        file: must not exist.

    Raises:
        UserError: there are no class folders, files are broken, a class is too small, shares of a folder that is split
            already, or the file exists.
        OSError: something cannot be read or written.
    """
    folder, file = expanded(folder).absolute(), expanded(file)
    if file.exists():
        raise UserError(f"the file already exists and is not overwritten. Received: {file}. Name a new one")
    listing = list_folder(folder)
    if listing.counts and settings.shares:
        raise UserError(
            f"the folder is already split, into folders for training and others. Received: --split "
            f"{settings.shares.text}, {folder}. Leave --split out"
        )
    with _whole_file(file) as output:
        write = functools.partial(_write, output, folder, settings=settings)
        made = write(listing)
        if made.skipped and not settings.skip_broken:
            raise _broken_files(made.skipped, listing)
        if broken := made.skipped:
            # The split depends on the remaining files, so everything starts again.
            say(f"{len(broken):,} broken file(s) found, starting again without them")
            made = write(listing.without({name for name, _ in broken}), skipped_files=len(broken))
            if made.skipped:  # readable in the first pass
                raise _broken_files(made.skipped, listing)
            made = replace(made, skipped=broken)
    return made


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
    listing: FolderListing,
    *,
    settings: Settings,
    skipped_files: int = 0,
) -> Preparation:
    """Write the whole file; after the first broken image only search for others."""
    shares = settings.shares or parse_shares(DEFAULT_SHARES)
    rows = lay_out(folder, listing, shares=shares, seed=settings.seed)
    training, validation, test = rows.counts
    labels = rows.labels.astype("<i8").tobytes()
    description = Description(
        version=VERSION,
        class_names=tuple(listing.classes),
        image_shape=settings.image_shape,
        pixels=settings.pixels,
        training_samples=training,
        validation_samples=validation,
        test_samples=test,
        split="folders" if listing.counts else shares.text,
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
    checksum, tally = 0, Tally()
    broken: list[tuple[str, str]] = []
    bar = Console.automatic_bars()
    if not bar:
        say(f"preparing {description.samples:,} images of {folder}")
    read = functools.partial(_read_chunk, rows, settings=settings, tests_validation=listing.tests_validation)
    with tqdm(total=description.samples, desc="preparing", unit="image", disable=not bar, leave=False) as advance:
        for chunk in in_order(read, rows.chunks(CHUNK_IMAGES)):
            advance.update(len(chunk.images))
            broken += chunk.broken
            if not broken:
                data = chunk.images.reshape(-1).view(np.uint8).data
                output.write(data)
                checksum = zlib.crc32(data, checksum)
                statistics.counts += chunk.statistics.counts
                tally.merge(chunk.tally)
    if not broken:
        description = replace(
            description,
            mean=statistics.mean,
            standard_deviation=statistics.standard_deviation,
            images_crc32=checksum,
        )
        output.seek(0)
        output.write(header_bytes(description, length=len(header)))
    # Of validation images that are those of the test, too, a broken one was met twice.
    return Preparation(description, rows, sorted({*broken}), [*listing.notes, *tally.notes()])


def _read_chunk(rows: Rows, chunk: tuple[range, int], *, settings: Settings, tests_validation: bool) -> Chunk:
    """Read the images of some rows, all of one part."""
    numbers, part = chunk
    pixels = np.zeros((len(numbers), *settings.image_shape), np.uint8)
    tally, broken = Tally(), []
    for place, row in enumerate(numbers):
        name = rows.file(row)
        image = read_image(rows.folder / name, shape=settings.image_shape)
        if isinstance(image, str):
            broken.append((name, image))
        else:
            pixels[place] = image.pixels
            class_name = rows.class_names[rows.labels[row]]
            groups, again = (f"class {class_name}", f"the {PARTS[part]} images"), part == 2 and tests_validation
            tally.add(name, image, groups=groups, again=again)
    statistics = PixelStatistics(settings.image_shape[2])
    if part == 0:
        statistics.add(pixels)
    # A uint8 is never out of range; any mode but "raise" skips NumPy's check.
    stored = np.take(_HALVES, pixels, mode="wrap") if settings.pixels == "float16" else pixels
    return Chunk(stored, statistics, tally, broken)


def _broken_files(broken: Sequence[tuple[str, str]], listing: FolderListing) -> UserError:
    files = len({file for files in listing.classes.values() for file in files})
    first = some([f"{name} ({reason})" for name, reason in broken], joint="; ")
    return UserError(
        f"{len(broken):,} of {files:,} image files are broken. Received: {first}. Convert, replace or remove them, or "
        "give --skip-broken"
    )
