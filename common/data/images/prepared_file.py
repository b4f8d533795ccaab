"""Files of prepared images, which the trainers map into memory: `--dataset prepared:FILE`.

A safetensors file: 8 bytes with the length of the JSON header, the header, the arrays:

    train_labels    (training + validation samples,) int64       training samples first
    test_labels     (test samples,) int64
    train_images    (training + validation samples, height, width, channels) uint8 or float16
    test_images     (test samples, height, width, channels) of the same type

A uint8 is a pixel, a float16 is pixel / 255. The header's metadata contain a `Description` and its checksum.
`common.data.images.prepare` writes the file.
"""

import json
import math
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import TypeAdapter, ValidationError

from common.data.cache import FULL_CHECK_BYTES, crc32_of_file
from common.data.dataset import Dataset, Split
from common.errors import UserError, expanded
from common.model.weights import safetensors_type
from common.utils.whole_files import parse_json, require_file

VERSION = 1
PixelType = Literal["uint8", "float16"]
COMMAND = "python -m common images prepare"

_PAGE_BYTES = 4096  # the arrays start at a page of memory
_LENGTH_BYTES = 8
_SPARE_BYTES = 1024  # room in the header for statistics and checksums, which are known last
_MOST_HEADER_BYTES = 100_000_000  # safetensors' own limit


@dataclass(frozen=True, kw_only=True)
class Description:
    """Description of a prepared file.

    Attributes:
        image_shape: (height, width, channels).
        split: percent of the parts, such as 85/2/13, or `folders` of which each is a part.
        mean, standard_deviation: per channel, of pixel / 255 over the training images, without validation.
        labels_crc32, images_crc32: of the bytes of both arrays of labels and of images.
    """

    version: int
    class_names: tuple[str, ...]
    image_shape: tuple[int, int, int]
    pixels: PixelType
    training_samples: int
    validation_samples: int
    test_samples: int
    split: str
    seed: int
    source: str
    skipped_files: int
    mean: tuple[float, ...] = ()
    standard_deviation: tuple[float, ...] = ()
    labels_crc32: int = 0
    images_crc32: int = 0

    @property
    def samples(self) -> int:
        """Number of images of all parts."""
        return self.training_samples + self.validation_samples + self.test_samples

    def arrays(self) -> Iterator[tuple[str, np.dtype, tuple[int, ...], int]]:
        """Yield name, type, shape and first byte, counted from the end of the header, of each array in the file."""
        samples = {"train": self.training_samples + self.validation_samples, "test": self.test_samples}
        kinds: list[tuple[str, str, tuple[int, ...]]] = [
            ("labels", "int64", ()),
            ("images", self.pixels, self.image_shape),
        ]
        first = 0
        for kind, type_name, item_shape in kinds:
            for split, count in samples.items():
                dtype, shape = np.dtype(type_name), (count, *item_shape)
                yield f"{split}_{kind}", dtype, shape, first
                first += math.prod(shape) * dtype.itemsize


def header_bytes(description: Description, *, length: int | None = None) -> bytes:
    """Return the file up to its first array.

    Args:
        length: of the result; None: leave room for statistics and checksums that are not known yet.
    """
    text = json.dumps(_header(description)).encode()
    if length is None:
        length = -(-(_LENGTH_BYTES + len(text) + _SPARE_BYTES) // _PAGE_BYTES) * _PAGE_BYTES
    padded = text.ljust(length - _LENGTH_BYTES)
    assert len(padded) == length - _LENGTH_BYTES, (len(padded), length)
    return len(padded).to_bytes(_LENGTH_BYTES, "little") + padded


def _header(description: Description) -> dict[str, Any]:
    text = json.dumps(asdict(description))
    header: dict[str, Any] = {
        "__metadata__": {"description": text, "description_crc32": str(zlib.crc32(text.encode()))}
    }
    for name, dtype, shape, first in description.arrays():
        last = first + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": safetensors_type(dtype), "shape": list(shape), "data_offsets": [first, last]}
    return header


def load_prepared(path: Path, *, name: str) -> Dataset:
    """Return the data set in a prepared file, mapped into memory and checked.

    The length of the file and the labels are always checked, the images in files up to 2 GB.

    Raises:
        UserError: the file is missing, damaged or of another kind.
    """
    path = expanded(path)
    try:
        description, start = read_description(path)
        _check_bytes(path, description, start)
        arrays = {
            array: np.memmap(path, dtype, "r", offset=start + first, shape=shape)
            for array, dtype, shape, first in description.arrays()
        }
    except OSError as error:
        raise UserError(
            f"the prepared images cannot be read: {error.strerror}. Received: {path}. Correct the path, or create the "
            f"file with `{COMMAND}`"
        ) from None
    return Dataset(
        name=name,
        train=Split(images=arrays["train_images"], labels=arrays["train_labels"]),
        test=Split(images=arrays["test_images"], labels=arrays["test_labels"]),
        class_names=description.class_names,
        mean=description.mean,
        standard_deviation=description.standard_deviation,
        validation_samples=description.validation_samples or None,
    )


def whole_pixels(images: np.ndarray) -> np.ndarray:
    """Return the pixels of images in a prepared file as uint8."""
    return images if images.dtype == np.uint8 else np.rint(images.astype(np.float32) * 255).astype(np.uint8)


def read_description(path: Path) -> tuple[Description, int]:
    """Return the description of a prepared file, and the offset of its first array.

    Raises:
        UserError: the header is damaged or of another kind.
        OSError: the file cannot be read.
    """
    require_file(path)
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        text = file.read(length) if length <= _MOST_HEADER_BYTES else b""
    try:
        header = parse_json(text)
        stored, checksum = header["__metadata__"]["description"], header["__metadata__"]["description_crc32"]
    except (ValueError, KeyError, TypeError):
        raise UserError(
            f"not a file of prepared images, or its header is damaged. Received: {path}. Create one with `{COMMAND}`"
        ) from None
    if str(zlib.crc32(stored.encode())) != checksum:
        raise _damaged(path, "the description has another checksum")
    version = parse_json(stored).get("version")
    if version != VERSION:
        raise UserError(
            f"the prepared images are of another version of this program ({version}, not {VERSION}). Received: {path}. "
            "Prepare them again"
        )
    try:
        description = TypeAdapter(Description).validate_json(stored)
    except ValidationError:
        raise _damaged(path, "the description is incomplete") from None
    if header != _header(description):
        raise _damaged(path, "the header does not match the description")
    return description, _LENGTH_BYTES + length


def _check_bytes(path: Path, description: Description, start: int) -> None:
    arrays = list(description.arrays())
    first_image = next(first for name, _, _, first in arrays if name == "train_images")
    _, dtype, shape, first = arrays[-1]
    expected, size = start + first + math.prod(shape) * dtype.itemsize, path.stat().st_size
    if size != expected:
        raise _damaged(path, f"it has {size:,} bytes instead of {expected:,}")
    with path.open("rb") as file:
        file.seek(start)
        if zlib.crc32(file.read(first_image)) != description.labels_crc32:
            raise _damaged(path, "the labels have another checksum")
    if size <= FULL_CHECK_BYTES and crc32_of_file(path, start=start + first_image) != description.images_crc32:
        raise _damaged(path, "the images have another checksum")


def _damaged(path: Path, what: str) -> UserError:
    return UserError(f"the prepared images are damaged: {what}. Received: {path}. Prepare them again")
