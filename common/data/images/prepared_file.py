"""Files of prepared images, which the trainers map into memory: `--dataset prepared:FILE`.

A safetensors file:

    train_labels    (training + validation samples,) int64       training samples first
    test_labels     (test samples,) int64
    train_images    (training + validation samples, height, width, channels) uint8 or float16
    test_images     (test samples, height, width, channels) of the same type

A uint8 is a pixel, a float16 is pixel / 255. The header's metadata contain a `Description` and its checksum.
`common.data.images.prepare` writes the file.
"""

import itertools
import json
import zlib
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from pydantic import TypeAdapter, ValidationError

from common.data.cache import FULL_CHECK_BYTES, crc32_of_file
from common.data.dataset import Content, Dataset, PixelStatistics, Split
from common.errors import UserError, expanded
from common.model.safetensors_file import ArrayKind, header_bytes, header_of, read_header
from common.utils.whole_files import parse_json

VERSION = 1
PixelType = Literal["uint8", "float16"]
COMMAND = "python -m common images prepare"

_PAGE_BYTES = 4096  # the arrays start at a page of memory
_SPARE_BYTES = 1024  # room in the header for statistics and checksums, which are known last
_HALVES = (np.arange(256) / 255).astype(np.float16)  # pixel / 255, as in the thesis


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

    def kinds(self) -> dict[str, ArrayKind]:
        """Return shape and type of each array, in the order of the file."""
        train, test = self.training_samples + self.validation_samples, self.test_samples
        labels, images = np.dtype(np.int64), np.dtype(self.pixels)
        return {
            "train_labels": ((train,), labels),
            "test_labels": ((test,), labels),
            "train_images": ((train, *self.image_shape), images),
            "test_images": ((test, *self.image_shape), images),
        }

    def header(self) -> dict[str, Any]:
        """Return the header of the file."""
        text = json.dumps(asdict(self))
        return header_of(
            self.kinds(), metadata={"description": text, "description_crc32": str(zlib.crc32(text.encode()))}
        )


def write_prepared(file: IO[bytes], description: Description, content: Content) -> Description:
    """Write images from the start of a file; return the description with statistics and checksums."""
    labels = np.concatenate(content.labels()).astype("<i8").tobytes()
    header = header_bytes(description.header())
    header = header_bytes(description.header(), length=-(-(len(header) + _SPARE_BYTES) // _PAGE_BYTES) * _PAGE_BYTES)
    file.seek(0)
    file.truncate()
    file.write(header + labels)
    statistics, checksum = PixelStatistics(description.image_shape[2]), 0
    for chunk in itertools.chain(content.train_chunks(statistics), content.test_chunks()):
        # A uint8 is never out of range; any mode but "raise" skips NumPy's check.
        stored = np.take(_HALVES, chunk, mode="wrap") if description.pixels == "float16" else chunk
        data = stored.reshape(-1).view(np.uint8).data
        file.write(data)
        checksum = zlib.crc32(data, checksum)
    description = replace(
        description,
        mean=statistics.mean,
        standard_deviation=statistics.standard_deviation,
        labels_crc32=zlib.crc32(labels),
        images_crc32=checksum,
    )
    whole_header = header_bytes(description.header(), length=len(header))
    assert len(whole_header) == len(header), (len(whole_header), len(header))
    file.seek(0)
    file.write(whole_header)
    return description


def load_prepared(path: Path, *, name: str) -> Dataset:
    """Return the data set in a prepared file, mapped into memory and checked.

    The length of the file and the labels are always checked, the images in files up to 2 GB.

    Raises:
        UserError: the file is missing, damaged or of another kind.
    """
    path = expanded(path)
    try:
        description, start = read_description(path)
        places = {array: start + place["data_offsets"][0] for array, place in header_of(description.kinds()).items()}
        _check_bytes(path, description, start, places["train_images"])
        arrays = {
            array: np.memmap(path, dtype, "r", offset=places[array], shape=shape)
            for array, (shape, dtype) in description.kinds().items()
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
        validation_samples=description.validation_samples,
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
    try:
        header, start = read_header(path)
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
    if header != description.header():
        raise _damaged(path, "the header does not match the description")
    return description, start


def _check_bytes(path: Path, description: Description, start: int, first_image: int) -> None:
    expected = start + max(place["data_offsets"][1] for place in header_of(description.kinds()).values())
    size = path.stat().st_size
    if size != expected:
        raise _damaged(path, f"it has {size:,} bytes instead of {expected:,}")
    with path.open("rb") as file:
        file.seek(start)
        if zlib.crc32(file.read(first_image - start)) != description.labels_crc32:
            raise _damaged(path, "the labels have another checksum")
    if size <= FULL_CHECK_BYTES and crc32_of_file(path, start=first_image) != description.images_crc32:
        raise _damaged(path, "the images have another checksum")


def _damaged(path: Path, what: str) -> UserError:
    return UserError(f"the prepared images are damaged: {what}. Received: {path}. Prepare them again")
