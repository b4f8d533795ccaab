"""A folder of images as a data set: one subfolder of PNG or JPEG files for each class.

    PATH/cat/*.png  PATH/dog/*.png                  split by a fixed seed: 15 % of each class are test images
    PATH/train/cat/*.png ... PATH/test/cat/*.png    split as in the folders

The images are decoded once, into the cache of data sets. The key of the entry contains all file names, sizes and
modification times and the options, so a changed folder is decoded again. A rotation in EXIF data is not applied.
"""

import errno
import functools
import hashlib
import json
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image
from tqdm import tqdm

from common.data import cache as dataset_cache
from common.data.cache import Content, SplitContent
from common.data.dataset import Dataset
from common.data.formats import check_pixels
from common.data.sharding import stable_permutation
from common.data.sources import say
from common.distributed.console import Console
from common.errors import UserError, expanded
from common.utils.whole_files import MOST_BYTES
from common.utils.workers import in_order

SUFFIXES = (".png", ".jpg", ".jpeg")
TEST_SHARE = 0.15
SPLIT_SEED = 0
FORMATS = ("PNG", "JPEG")
CHUNK_IMAGES = 256
SHOWN = 3  # examples in an error message

# Pillow's name of a pixel format with 8 bits per channel -> number of channels here. Transparency is dropped.
CHANNELS = {"1": 1, "L": 1, "LA": 1, "P": 3, "RGB": 3, "RGBA": 3, "CMYK": 3, "YCbCr": 3}


@dataclass(frozen=True)
class Sample:
    """One image file and its class number."""

    path: Path
    label: int


@dataclass(frozen=True)
class Listing:
    """The content of a folder: class names in alphabetical order and the samples of both splits."""

    class_names: tuple[str, ...]
    train: tuple[Sample, ...]
    test: tuple[Sample, ...]


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
        listing = list_images(folder)
        key = _key(folder, listing, image_size, gray)
    except OSError as error:
        raise UserError(
            f"the folder of images cannot be read: {error.strerror}. Received: {error.filename}. "
            "Correct the path or its permissions"
        ) from error
    entry = f"images-{re.sub(r'[^A-Za-z0-9_-]+', '-', folder.name)[:40] or 'folder'}-{key}"
    decode = functools.partial(_decode_listing, folder, listing, image_size, gray)
    return dataset_cache.load_or_build(entry, lambda _: decode(), name=name)


def list_images(folder: Path) -> Listing:
    """Return the content of a folder, in an order that does not depend on the file system.

    Raises:
        UserError: it is not a folder of class folders.
        OSError: it cannot be read.
    """
    if not folder.is_dir():
        raise UserError(f"the folder of images does not exist. Received: images:{folder}. Name an existing one")
    if (folder / "train").is_dir() and (folder / "test").is_dir():
        train, test = class_folders(folder / "train"), class_folders(folder / "test")
        if train.keys() != test.keys():
            raise UserError(
                f"train and test have different classes. Received: {folder}, where "
                f"{some(sorted(train.keys() ^ test.keys()))} is in only one of them. Add or remove class folders"
            )
        return Listing(tuple(train), _samples(folder / "train", train), _samples(folder / "test", test))
    classes = class_folders(folder)
    train, test = {}, {}
    for label, (name, files) in enumerate(classes.items()):
        # At least one test image per class, but never its only image.
        test_count = min(max(1, round(TEST_SHARE * len(files))), len(files) - 1)
        order = stable_permutation(len(files), seed=SPLIT_SEED, stream=(label,))
        test[name] = [files[index] for index in sorted(order[:test_count])]
        train[name] = [files[index] for index in sorted(order[test_count:])]
    if not any(test.values()):
        raise UserError(
            f"each class has only one image, so none remains for the test. Received: {folder}. Add images, or create "
            "the folders train and test"
        )
    return Listing(tuple(classes), _samples(folder, train), _samples(folder, test))


def class_folders(folder: Path) -> dict[str, list[str]]:
    """Return the names of the image files of each class folder, sorted; hidden files and other suffixes are skipped.

    Names, because a million paths would take several times the memory.

    Raises:
        UserError: there are fewer than two class folders, or one is empty.
        OSError: it cannot be read.
    """
    classes = {
        class_folder.name: sorted(
            path.name
            for path in class_folder.iterdir()
            if path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and not path.is_dir()
        )
        for class_folder in sorted(folder.iterdir())
        if class_folder.is_dir() and not class_folder.name.startswith(".")
    }
    if len(classes) < 2:
        found = f"the one subfolder {next(iter(classes))}" if classes else "no subfolder"
        raise UserError(
            f"a folder of images needs a subfolder for each of at least two classes. Received: {folder} with {found}. "
            "Sort the images into class folders"
        )
    empty = [name for name, paths in classes.items() if not paths]
    if empty:
        raise UserError(
            f"class folders without PNG or JPEG files. Received: {some(empty)} in {folder}. "
            "Add images, or remove these folders"
        )
    return classes


def _samples(folder: Path, classes: dict[str, list[str]]) -> tuple[Sample, ...]:
    return tuple(
        Sample(folder / name / file, label) for label, (name, files) in enumerate(classes.items()) for file in files
    )


def _key(folder: Path, listing: Listing, image_size: tuple[int, int] | None, gray: bool) -> str:
    """Return a hash of all that determines the content: file names, sizes, modification times, options."""
    files = []
    for sample in (*listing.train, *listing.test):
        status = sample.path.stat()
        files.append((str(sample.path.relative_to(folder)), status.st_size, status.st_mtime_ns))
    content = json.dumps([files, image_size, gray, TEST_SHARE, SPLIT_SEED])
    return hashlib.blake2b(content.encode(errors="surrogateescape"), digest_size=8).hexdigest()


def _decode_listing(folder: Path, listing: Listing, image_size: tuple[int, int] | None, gray: bool) -> Content:
    samples = (*listing.train, *listing.test)
    height, width, channels = _common_shape(samples, image_size, gray)
    bar = Console.automatic_bars()
    if not bar:
        say(f"decoding {len(samples)} images of {folder}")
    read = functools.partial(_read_sample, shape=(height, width, channels))

    def split(part: tuple[Sample, ...], title: str) -> SplitContent:
        labels = np.array([sample.label for sample in part], np.int64)
        images = tqdm(in_order(read, part), total=len(part), desc=title, unit="image", disable=not bar, leave=False)
        return SplitContent((height, width, channels), _chunks(images), labels)

    return Content(
        class_names=listing.class_names,
        train=split(listing.train, "training images"),
        test=split(listing.test, "test images"),
        origin=f"folder {folder}",
    )


def _common_shape(samples: Sequence[Sample], image_size: tuple[int, int] | None, gray: bool) -> tuple[int, int, int]:
    """Return the common (height, width, channels) of the images after conversion, from the files' headers.

    Raises:
        UserError: some are unreadable, or they differ.
    """
    unreadable = []
    sizes: dict[tuple[int, int], list[Path]] = defaultdict(list)
    channel_counts: dict[int, list[Path]] = defaultdict(list)
    for sample, shape in zip(samples, in_order(_header, samples), strict=True):
        if isinstance(shape, str):
            unreadable.append(f"{sample.path} ({shape})")
        else:
            sizes[shape[:2]].append(sample.path)
            channel_counts[shape[2]].append(sample.path)
    if unreadable:
        raise _unreadable_images(unreadable)
    if image_size is None and len(sizes) > 1:
        found = [f"{height} x {width}: {len(paths)}, e.g. {paths[0]}" for (height, width), paths in sizes.items()]
        raise UserError(
            f"images of different sizes (height x width). Received: {some(found, joint='; ')}. "
            "Give --image-size HEIGHT WIDTH to resize them"
        )
    if not gray and len(channel_counts) > 1:
        found = [f"{channels} channel(s): {len(paths)}, e.g. {paths[0]}" for channels, paths in channel_counts.items()]
        raise UserError(
            f"some images are gray and some in color. Received: {some(found, joint='; ')}. "
            "Give --gray to convert all of them"
        )
    height, width = image_size or next(iter(sizes))
    return height, width, 1 if gray else next(iter(channel_counts))


def _header(sample: Sample) -> tuple[int, int, int] | str:
    """Return (height, width, channels), or the reason why the file is unreadable."""
    try:
        with open_image(sample.path) as image:
            return image.height, image.width, CHANNELS[image.mode]
    except Exception as error:
        return _reason(sample.path, error)


def _read_sample(sample: Sample, *, shape: tuple[int, int, int]) -> np.ndarray | str:
    """Return (1, height, width, channels) uint8, or path and reason if the file is unreadable."""
    pixels = read_image(sample.path, shape=shape)
    return f"{sample.path} ({pixels})" if isinstance(pixels, str) else pixels[None]


def read_image(path: Path, *, shape: tuple[int, int, int]) -> np.ndarray | str:
    """Return an image file, resized and converted to 1 or 3 channels, or the reason why it is unreadable.

    Returns:
        (height, width, channels) uint8.
    """
    height, width, channels = shape
    try:
        with open_image(path) as image:
            pixels = image.convert("L" if channels == 1 else "RGB")
        if pixels.size != (width, height):
            pixels = pixels.resize((width, height), Image.Resampling.BILINEAR)
    except Exception as error:  # a damaged image can raise almost any error
        return _reason(path, error)
    return np.asarray(pixels).reshape(height, width, channels)


def open_image(path: Path) -> Image.Image:
    """Open an image file and read its header; a damaged one can raise almost any error."""
    if path.stat().st_size > MOST_BYTES:  # in a JPEG Pillow looks for its parts byte by byte
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    image = Image.open(path, formats=FORMATS)
    try:
        check_pixels(image)
        if image.mode not in CHANNELS:
            raise ValueError(f"pixel format {image.mode}, not 8 bits per channel")
    except ValueError:
        image.close()
        raise
    return image


def _reason(path: Path, error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if path.stat().st_size == 0:
        return "empty file"
    return "not a PNG or JPEG image" if isinstance(error, Image.UnidentifiedImageError) else str(error) or "unreadable"


def _chunks(images: Iterable[np.ndarray | str]) -> Iterator[np.ndarray]:
    """Concatenate CHUNK_IMAGES images each; raise UserError once the first few unreadable ones are known."""
    chunk: list[np.ndarray] = []
    unreadable: list[str] = []
    for image in images:
        if isinstance(image, str):
            unreadable.append(image)
            if len(unreadable) > SHOWN:
                break
        elif not unreadable:
            chunk.append(image)
            if len(chunk) == CHUNK_IMAGES:
                yield np.concatenate(chunk)
                chunk = []
    if unreadable:
        raise _unreadable_images(unreadable)
    if chunk:
        yield np.concatenate(chunk)


def _unreadable_images(unreadable: Sequence[str]) -> UserError:
    return UserError(f"unreadable images. Received: {some(unreadable, joint='; ')}. Replace or remove them")


def some(items: Sequence[str], *, joint: str = ", ") -> str:
    """Return the first few items and the number of the others, for an error message."""
    more = [f"and {len(items) - SHOWN} more"] if len(items) > SHOWN else []
    return joint.join([*items[:SHOWN], *more])
