"""A folder of images as a data set: one subfolder of image files for each class, which may have subfolders.

    PATH/cat/*.png  PATH/dog/*.png                    split by a fixed seed: 15 % of each class are test images
    PATH/train/cat/*.png ... PATH/val/ ... PATH/test/ used as their names say; one of val and test may be missing

The images are decoded once, into the cache of data sets. The key of the entry contains all file names, sizes and
modification times and the options, so a changed folder is decoded again. What is left out of the folder, and what is
done to images beside decoding, is counted in the notes of the data set.
"""

import dataclasses
import functools
import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from common.data import cache as dataset_cache
from common.data.dataset import Content, Dataset, SplitContent
from common.data.images.listing import PARTS, FolderListing, list_folder
from common.data.images.reading import (
    Header,
    ReadImage,
    Refuse,
    Tally,
    common_shape,
    raise_error,
    read_header,
    read_image,
    some,
)
from common.data.progress import say
from common.data.sharding import stable_permutation
from common.distributed.console import Console
from common.errors import UserError, expanded
from common.utils.workers import in_order

TEST_SHARE = 0.15
SPLIT_SEED = 0
CHUNK_IMAGES = 256
RULES = 2  # of reading a file; what was read by others is not used


@dataclass(frozen=True)
class Sample:
    """One image file and its class number."""

    path: Path
    label: int


@dataclass(frozen=True)
class Listing:
    """The content of a folder: class names in alphabetical order, the samples of each part, notes on other files."""

    class_names: tuple[str, ...]
    train: tuple[Sample, ...]
    validation: tuple[Sample, ...]
    test: tuple[Sample, ...]
    notes: tuple[str, ...]
    tests_validation: bool = False

    @property
    def samples(self) -> tuple[Sample, ...]:
        """All of them, each once: the test may have those of the validation."""
        return tuple(dict.fromkeys((*self.train, *self.validation, *self.test)))


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
        listing = split_files(folder, list_folder(folder))
        key = _key(folder, listing, image_size, gray)
    except OSError as error:
        raise UserError(
            f"the folder of images cannot be read: {error.strerror}. Received: {error.filename}. "
            "Correct the path or its permissions"
        ) from error
    entry = f"images-{plain_name(folder)}-{key}"
    decode = functools.partial(_decode_listing, folder, listing, image_size, gray)
    dataset = dataset_cache.load_or_build(entry, lambda _: decode(), name=name)
    return dataclasses.replace(dataset, notes=(*listing.notes, *dataset.notes))


def plain_name(folder: Path) -> str:
    """Return the name of a folder, without what is not allowed or odd in names of other files."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", folder.name)[:40] or "folder"


def split_files(folder: Path, listed: FolderListing, *, refuse: Refuse = raise_error) -> Listing:
    """Return the samples of each part, by a fixed seed where the folder has no parts.

    Args:
        refuse: called if there are no test images.
    """
    parts: tuple[list[Sample], list[Sample], list[Sample]] = ([], [], [])
    for label, (name, files) in enumerate(listed.classes.items()):
        counts = listed.counts[name] if listed.counts else None
        for part, of_part in zip(parts, _split(files, label, counts), strict=True):
            part += [Sample(folder / file, label) for file in of_part]
    if not parts[2]:
        refuse(
            f"each class has only one image, so none remains for the test. Received: {folder}. Add images, or "
            "create the folders train and test"
        )
    training, validation, test = map(tuple, parts)
    return Listing(tuple(listed.classes), training, validation, test, listed.notes, listed.tests_validation)


def _split(files: Sequence[str], label: int, counts: tuple[int, int, int] | None) -> list[list[str]]:
    """Return the files of a class for training, validation and test."""
    if counts:
        first, second = counts[0], counts[0] + counts[1]
        return [[*files[:first]], [*files[first:second]], [*files[second:]]]
    # At least one test image per class, but never its only image.
    test_count = min(max(1, round(TEST_SHARE * len(files))), len(files) - 1)
    order = stable_permutation(len(files), seed=SPLIT_SEED, stream=(label,))
    training, test = ([files[index] for index in sorted(part)] for part in (order[test_count:], order[:test_count]))
    return [training, [], test]


def _key(folder: Path, listing: Listing, image_size: tuple[int, int] | None, gray: bool) -> str:
    """Return a hash of all that determines the content: file names, sizes, modification times, options."""
    files = []
    for sample in listing.samples:
        status = sample.path.stat()
        files.append((str(sample.path.relative_to(folder)), status.st_size, status.st_mtime_ns))
    content = json.dumps([RULES, files, image_size, gray, TEST_SHARE, SPLIT_SEED])
    return hashlib.blake2b(content.encode(errors="surrogateescape"), digest_size=8).hexdigest()


def _decode_listing(folder: Path, listing: Listing, image_size: tuple[int, int] | None, gray: bool) -> Content:
    shape = common_shape(_headers(listing.samples), image_size, gray)
    if not Console.automatic_bars():
        say(f"decoding {len(listing.samples)} images of {folder}")
    read = functools.partial(_read_sample, shape=shape, resize=image_size is not None)
    parts = dict(zip(PARTS, (listing.train, listing.validation, listing.test), strict=True))
    tally = Tally()

    def split(*names: str) -> SplitContent:
        labels = np.array([sample.label for name in names for sample in parts[name]], np.int64)
        chunks = (_decode_part(name, parts[name], read=read, tally=tally, listing=listing) for name in names)
        return SplitContent(shape, itertools.chain.from_iterable(chunks), labels)

    return Content(
        class_names=listing.class_names,
        train=split(*PARTS[:2]),
        test=split(PARTS[2]),
        origin=f"folder {folder}",
        validation_samples=len(listing.validation),
        notes=tally.notes,
    )


def _decode_part(
    part: str,
    samples: Sequence[Sample],
    *,
    read: Callable[[Sample], ReadImage | str],
    tally: Tally,
    listing: Listing,
) -> Iterator[np.ndarray]:
    """Yield CHUNK_IMAGES images each, and count them.

    Raises:
        UserError: some are unreadable.
    """
    chunk: list[np.ndarray] = []
    unreadable: list[str] = []
    bar = not Console.automatic_bars()
    images = tqdm(
        in_order(read, samples), total=len(samples), desc=f"{part} images", unit="image", disable=bar, leave=False
    )
    for sample, image in zip(samples, images, strict=True):
        if isinstance(image, str):
            unreadable.append(f"{sample.path} ({image})")
        elif not unreadable:
            groups = f"class {listing.class_names[sample.label]}", f"the {part} images"
            tally.add(str(sample.path), image, groups=groups, again=part == PARTS[2] and listing.tests_validation)
            chunk.append(image.pixels)
            if len(chunk) == CHUNK_IMAGES:
                yield np.stack(chunk)
                chunk = []
    if unreadable:
        raise _unreadable_images(unreadable, f"{len(samples):,} {part} images")
    if chunk:
        yield np.stack(chunk)


def _headers(samples: Sequence[Sample]) -> list[tuple[str, Header]]:
    """Return path and header of each image.

    Raises:
        UserError: some are unreadable.
    """
    headers, unreadable = [], []
    for sample, header in zip(samples, in_order(_header, samples), strict=True):
        if isinstance(header, str):
            unreadable.append(f"{sample.path} ({header})")
        else:
            headers.append((str(sample.path), header))
    if unreadable:
        raise _unreadable_images(unreadable, f"{len(samples):,} images")
    return headers


def _header(sample: Sample) -> Header | str:
    return read_header(sample.path)


def _read_sample(sample: Sample, *, shape: tuple[int, int, int], resize: bool) -> ReadImage | str:
    return read_image(sample.path, shape=shape, resize=resize)


def _unreadable_images(unreadable: Sequence[str], images: str) -> UserError:
    return UserError(
        f"{len(unreadable):,} of {images} are not readable. Received: {some(unreadable, joint='; ')}. "
        "Convert, replace or remove them"
    )
