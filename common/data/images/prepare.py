"""Prepare a folder of class folders of images as one file (see `common.data.images.prepared_file`).

The seed determines the order of the rows. All cores then read the images in this order. Only a few chunks are in memory
at a time, and a file name and two numbers per image.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from common.data.images.folder import RowReader
from common.data.images.listing import FolderListing, list_folder
from common.data.images.prepared_file import VERSION, Description, PixelType, write_prepared
from common.data.images.reading import some
from common.data.images.rows import Rows, Shares, parse_shares, shuffled_rows
from common.data.progress import announce, say
from common.errors import UserError, expanded
from common.utils.atomic import atomic_file

DEFAULT_SHARES = "85/2/13"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a prepared file.

    Attributes:
        image_shape: (height, width, channels), to which all are converted (bilinear, without keeping proportions).
        shares: of training, validation and test; None: as the folder is split, or DEFAULT_SHARES.
    """

    image_shape: tuple[int, int, int]
    pixels: PixelType
    shares: Shares | None
    seed: int
    skip_broken: bool


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
    if listing.has_parts and settings.shares:
        raise UserError(
            f"the folder is already split, into folders for training and others. Received: --split "
            f"{settings.shares.text}, {folder}. Leave --split out"
        )
    with atomic_file(file) as temporary, temporary.open("wb") as output:
        made = _write(output, folder, listing, settings)
        if broken := made.skipped:
            if not settings.skip_broken:
                raise _broken_files(broken, listing)
            # The split depends on the remaining files, so everything starts again.
            say(f"{len(broken):,} broken file(s) found, starting again without them")
            made = _write(output, folder, listing.without({name for name, _ in broken}), settings, skipped=len(broken))
            if made.skipped:  # readable in the first pass
                raise _broken_files(made.skipped, listing)
            made = replace(made, skipped=broken)
    return made


def _write(
    output: IO[bytes], folder: Path, listing: FolderListing, settings: Settings, *, skipped: int = 0
) -> Preparation:
    """Write the whole file; the pixels of broken images are 0 in it."""
    shares = settings.shares or parse_shares(DEFAULT_SHARES)
    rows = shuffled_rows(folder, listing, shares=shares, seed=settings.seed)
    training, validation, test = rows.counts
    description = Description(
        version=VERSION,
        class_names=rows.class_names,
        image_shape=settings.image_shape,
        pixels=settings.pixels,
        training_samples=training,
        validation_samples=validation,
        test_samples=test,
        split="folders" if listing.has_parts else shares.text,
        seed=settings.seed,
        source=folder.name,
        skipped_files=skipped,
    )
    announce(f"preparing {description.samples:,} images of {folder}")
    reader = RowReader(rows, settings.image_shape)
    description = write_prepared(output, description, reader.content())
    # Of validation images that are those of the test, too, a broken one was met twice.
    return Preparation(description, rows, sorted({*reader.unreadable}), [*listing.notes, *reader.tally.notes()])


def _broken_files(broken: Sequence[tuple[str, str]], listing: FolderListing) -> UserError:
    files = len({file for parts in listing.classes.values() for part in parts for file in part})
    first = some([f"{name} ({reason})" for name, reason in broken], joint="; ")
    return UserError(
        f"{len(broken):,} of {files:,} image files are broken. Received: {first}. Convert, replace or remove them, or "
        "give --skip-broken"
    )
