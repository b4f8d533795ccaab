"""The formats in which data sets are published, to arrays. What is decoded here has been checked by its MD5 before."""

import io
import json
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

Files = dict[str, bytes]  # file name -> its bytes
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # images and labels for training, then for test

IDX_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
CIFAR_FILES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
CIFAR_LABELS = ("train_lables.json", "test_lables.json")  # sic, beside sheets of images
CIFAR_IMAGE_BYTES = 3 * 32 * 32


def arrays_from_idx(files: Files) -> Arrays:
    """Return images (samples, height, width, 1) uint8 and labels (samples,) int64 of the four idx files."""
    train_images, train_labels, test_images, test_labels = (_idx_array(files[name]) for name in IDX_FILES)
    return train_images[..., None], train_labels.astype(np.int64), test_images[..., None], test_labels.astype(np.int64)


def _idx_array(data: bytes) -> np.ndarray:
    """Return the array of an idx file: 2 zero bytes, type 8 (uint8), rank, big-endian sizes, then the values."""
    shape = np.frombuffer(data, ">u4", data[3], offset=4)
    return np.frombuffer(data, np.uint8, offset=4 + shape.nbytes).reshape(shape)


def idx_from_arrays(arrays: Arrays) -> Files:
    """Return the four idx files of images (samples, height, width, 1) and labels (samples,)."""
    files = {}
    for name, array in zip(IDX_FILES, arrays, strict=True):
        values = (array[..., 0] if array.ndim == 4 else array).astype(np.uint8)
        files[name] = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes() + values.tobytes()
    return files


def arrays_from_cifar(files: Files) -> Arrays:
    """Return images (samples, 32, 32, 3) uint8 and labels (samples,) int64 of the six binary batches.

    A batch has for each sample a label byte, then 1024 red, 1024 green and 1024 blue bytes.
    """
    records = [np.frombuffer(files[name], np.uint8).reshape(-1, 1 + CIFAR_IMAGE_BYTES) for name in CIFAR_FILES]
    return _arrays_from_planes([batch[:, 1:] for batch in records], [batch[:, 0] for batch in records])


def arrays_from_cifar_pickles(files: Files) -> Arrays:
    """Return the same from the six pickles of the Python version: `data` (samples, 3072) and `labels`."""
    batches = [pickle.loads(files[Path(name).stem], encoding="bytes") for name in CIFAR_FILES]
    return _arrays_from_planes([batch[b"data"] for batch in batches], [batch[b"labels"] for batch in batches])


def arrays_from_cifar_sheets(files: Files) -> Arrays:
    """Return the same from PNG sheets with one image per row, of 1024 RGB pixels, and lists of labels."""
    sheets = [np.asarray(Image.open(io.BytesIO(files[f"{Path(name).stem}.png"]))) for name in CIFAR_FILES]
    images = [sheet[..., :3].reshape(-1, 32, 32, 3) for sheet in sheets]
    train_labels, test_labels = (np.array(json.loads(files[name]), np.int64) for name in CIFAR_LABELS)
    return np.concatenate(images[:5]), train_labels, images[5], test_labels


def _arrays_from_planes(planes: list[np.ndarray], labels: list[np.ndarray]) -> Arrays:
    """Return the arrays of six batches of color planes (samples, 3072), of which the last is the test."""
    images = [batch.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1) for batch in planes]
    return np.concatenate(images[:5]), np.concatenate(labels[:5]).astype(np.int64), images[5], np.array(labels[5])


def cifar_from_arrays(arrays: Arrays) -> Files:
    """Return the six binary batches of CIFAR-10; the training samples in five equal parts."""
    train_images, train_labels, test_images, test_labels = arrays
    parts = [*zip(np.split(train_images, 5), np.split(train_labels, 5), strict=True), (test_images, test_labels)]
    files = {}
    for name, (images, labels) in zip(CIFAR_FILES, parts, strict=True):
        planes = images.transpose(0, 3, 1, 2).reshape(len(images), CIFAR_IMAGE_BYTES)
        files[name] = np.concatenate([labels.astype(np.uint8)[:, None], planes], axis=1).tobytes()
    return files


DECODERS: dict[str, Callable[[Files], Arrays]] = {
    "idx": arrays_from_idx,
    "cifar": arrays_from_cifar,
    "cifar_pickles": arrays_from_cifar_pickles,
    "cifar_sheets": arrays_from_cifar_sheets,
}
ENCODERS: dict[str, Callable[[Arrays], Files]] = {"idx": idx_from_arrays, "cifar": cifar_from_arrays}
