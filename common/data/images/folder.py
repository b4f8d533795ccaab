"""A folder of images as a data set: one subfolder of image files for each class, which may have subfolders.

    PATH/cat/*.png  PATH/dog/*.png                    split by a fixed seed: 15 % of each class are test images
    PATH/train/cat/*.png ... PATH/val/ ... PATH/test/ used as their names say; one of val and test may be missing

The images are decoded once, into the cache of data sets. The key of the entry contains all file names, sizes and
modification times and the options, so a changed folder is decoded again. What is left out of the folder, and what is
done to images beside decoding, is counted in the notes of the data set.
"""

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from common.data import cache as dataset_cache
from common.data.dataset import Content, Dataset, SplitContent
from common.data.images.listing import PARTS, list_folder
from common.data.images.reading import Header, ReadImage, Tally, common_shape, read_header, read_image, some
from common.data.images.rows import SPLIT_SEED, TEST_SHARE, Rows, rows_in_order
from common.data.progress import announce, images_bar
from common.errors import UserError, expanded
from common.utils.workers import in_order

CHUNK_IMAGES = 32
RULES = 2  # of reading a file; what was read by others is not used


@dataclass
class RowReader:
    """Reads the images of a folder row by row, on all cores; only a few chunks are in memory at a time.

    Attributes:
        shape: (height, width, channels) of all images.
        resize: other sizes are resized; otherwise they are not readable.
        strict: unreadable images are an error at the end of their part; otherwise their pixels are 0.
        place: of the files, in what is printed; empty: names are relative to the folder.
        tally: what was done to the images.
        unreadable: names, each with the reason.
    """

    rows: Rows
    shape: tuple[int, int, int]
    resize: bool = True
    strict: bool = False
    place: Path = field(default_factory=Path)
    tally: Tally = field(default_factory=Tally)
    unreadable: list[tuple[str, str]] = field(default_factory=list)

    def content(self) -> Content:
        """Return the data set; its images are read when they are iterated over."""
        labels, (training, validation, _) = self.rows.labels, self.rows.counts
        return Content(
            class_names=self.rows.class_names,
            image_shape=self.shape,
            train=SplitContent(self._chunks(0, 1), labels[: training + validation]),
            test=SplitContent(self._chunks(2), labels[training + validation :]),
            origin=f"folder {self.rows.folder}",
            validation_samples=validation,
            notes=self.tally.notes,
        )

    def _chunks(self, *parts: int) -> Iterator[np.ndarray]:
        for part in parts:
            rows = self.rows.of_part(part)
            starts = range(0, len(rows), CHUNK_IMAGES)
            chunks = (rows[start : start + CHUNK_IMAGES] for start in starts)
            with images_bar(len(rows), doing=f"{PARTS[part]} images") as bar:
                for images in in_order(self._read, chunks):
                    yield self._pixels(images, part)
                    bar.update(len(images))
            if self.strict and self.unreadable:
                raise _unreadable_images(self.unreadable, f"{len(rows):,} {PARTS[part]} images")

    def _read(self, rows: range) -> list[tuple[int, ReadImage | str]]:
        """Return row and image of each, or why it is not readable."""
        return [
            (row, read_image(self.rows.folder / self.rows.file(row), shape=self.shape, resize=self.resize))
            for row in rows
        ]

    def _pixels(self, images: Sequence[tuple[int, ReadImage | str]], part: int) -> np.ndarray:
        """Return (images, height, width, channels) uint8, and count the images."""
        pixels = np.zeros((len(images), *self.shape), np.uint8)
        again = PARTS[part] == "test" and self.rows.tests_validation
        for place, (row, image) in enumerate(images):
            name = str(self.place / self.rows.file(row))
            if isinstance(image, str):
                self.unreadable.append((name, image))
                continue
            pixels[place] = image.pixels
            groups = f"class {self.rows.class_names[self.rows.labels[row]]}", f"the {PARTS[part]} images"
            self.tally.add(name, image, groups=groups, again=again)
        return pixels


def load_images(
    folder: Path,
    *,
    name: str,
    image_size: tuple[int, int] | None = None,
    gray: bool = False,
) -> Dataset:
    """Return the images of a folder as a data set.

    Args:
        image_size: (height, width) to which all images are resized (bilinear, without keeping proportions); None: all
            must have the same size.
        gray: convert to one channel; otherwise all must be gray or all in color.

    Raises:
        UserError: the folder does not exist, has fewer than two classes, a class without images, unreadable images, or
            images of different sizes or channels; the message lists the first few.
    """
    folder = expanded(folder).absolute()
    if image_size is not None and min(image_size) < 1:
        raise UserError(f"images need at least 1 x 1 pixels. Received: {image_size}. Give height and width in pixels")
    try:
        listing = list_folder(folder)
        rows = rows_in_order(folder, listing)
        entry = f"images-{plain_name(folder)}-{_key(rows, image_size, gray)}"
    except OSError as error:
        raise UserError(
            f"the folder of images cannot be read: {error.strerror}. Received: {error.filename}. "
            "Correct the path or its permissions"
        ) from error

    def build(_: Path) -> Content:
        shape = common_shape(_headers(rows), image_size, gray)
        announce(f"decoding {len(rows.own())} images of {folder}")
        return RowReader(rows, shape, resize=image_size is not None, strict=True, place=folder).content()

    dataset = dataset_cache.load_or_build(entry, build, name=name)
    return dataclasses.replace(dataset, notes=(*listing.notes, *dataset.notes))


def plain_name(folder: Path) -> str:
    """Return the name of a folder, without what is not allowed or odd in names of other files."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", folder.name)[:40] or "folder"


def _key(rows: Rows, image_size: tuple[int, int] | None, gray: bool) -> str:
    """Return a hash of all that determines the content: file names, sizes, modification times, options."""
    files = []
    for name in map(rows.file, rows.own()):
        status = (rows.folder / name).stat()
        files.append((name, status.st_size, status.st_mtime_ns))
    content = json.dumps([RULES, files, image_size, gray, TEST_SHARE, SPLIT_SEED])
    return hashlib.blake2b(content.encode(errors="surrogateescape"), digest_size=8).hexdigest()


def _headers(rows: Rows) -> list[tuple[str, Header]]:
    """Return path and header of each image.

    Raises:
        UserError: some are unreadable.
    """
    headers, unreadable = [], []
    files = [rows.folder / rows.file(row) for row in rows.own()]
    for file, header in zip(files, in_order(read_header, files), strict=True):
        if isinstance(header, str):
            unreadable.append((str(file), header))
        else:
            headers.append((str(file), header))
    if unreadable:
        raise _unreadable_images(unreadable, f"{len(files):,} images")
    return headers


def _unreadable_images(unreadable: Sequence[tuple[str, str]], images: str) -> UserError:
    first = some([f"{name} ({reason})" for name, reason in unreadable], joint="; ")
    return UserError(
        f"{len(unreadable):,} of {images} are not readable. Received: {first}. Convert, replace or remove them"
    )
