"""A data set: loaded (`common.data.loading` loads one), and as it is made, before it is in the cache or in a file."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from common.errors import UserError


@dataclass(frozen=True, eq=False)
class Split:
    """The training or the test samples.

    Attributes:
        images: (samples, height, width, channels), C-contiguous, read-only; uint8, or float16 from 0 to 1; a
            memory map, so that the ranks of a host share one copy (small synthetic data sets are plain arrays).
        labels: (samples,) int64, read-only; class numbers from 0.
    """

    images: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set for image classification.

    Attributes:
        train: the training samples, validation included.
        mean: per channel, of pixel / 255 over all training images, its own validation samples not included.
        standard_deviation: of the same pixels.
        validation_samples: number of rows at the end of `train` that are the validation split; 0 if the settings cut
            one.
        notes: what a user should know of how it was read, a line each.
    """

    name: str
    train: Split
    test: Split
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    standard_deviation: tuple[float, ...]
    validation_samples: int = 0
    notes: tuple[str, ...] = ()

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(height, width, channels)."""
        height, width, channels = self.train.images.shape[1:]
        return height, width, channels

    @property
    def class_count(self) -> int:
        return len(self.class_names)


class PixelStatistics:
    """Exact mean and standard deviation of the pixels, from the counts of the 256 values."""

    def __init__(self, channels: int) -> None:
        self.counts = np.zeros((channels, 256), np.int64)

    def add(self, images: np.ndarray) -> None:
        """Count the pixels of images (samples, height, width, channels) uint8."""
        for channel, counts in enumerate(self.counts):
            counts += np.bincount(images[..., channel].ravel(), minlength=256)

    @property
    def mean(self) -> tuple[float, ...]:
        """Per channel, of pixel / 255."""
        return tuple(float(counts @ np.arange(256) / counts.sum() / 255) for counts in self.counts)

    @property
    def standard_deviation(self) -> tuple[float, ...]:
        """Per channel, of pixel / 255; of the whole population: divided by n."""
        values = np.arange(256) / 255
        pairs = zip(self.counts, self.mean, strict=True)
        return tuple(float(np.sqrt(counts @ (values - mean) ** 2 / counts.sum())) for counts, mean in pairs)


@dataclass(frozen=True)
class SplitContent:
    """One split as it is made."""

    image_chunks: Iterable[np.ndarray]  # parts of (samples, height, width, channels) uint8, in order; iterated once
    labels: np.ndarray  # (samples,) class numbers


@dataclass(frozen=True, kw_only=True)
class Content:
    """A data set as it is made.

    Attributes:
        image_shape: (height, width, channels).
        origin: describes its source.
        validation_samples: rows at the end of `train` that are its own validation split.
        notes: returns the notes of the data set, once the images were read.
    """

    class_names: tuple[str, ...]
    image_shape: tuple[int, int, int]
    train: SplitContent
    test: SplitContent
    origin: str
    validation_samples: int = 0
    notes: Callable[[], list[str]] = list

    def labels(self) -> tuple[np.ndarray, np.ndarray]:
        """Return those of training and test, (samples,) int64, checked."""
        for split_name, split in (("train", self.train), ("test", self.test)):
            where = f"the {split_name} samples of {self.origin}"
            check_labels(split.labels, class_count=len(self.class_names), where=where)
        return np.ascontiguousarray(self.train.labels, np.int64), np.ascontiguousarray(self.test.labels, np.int64)

    def train_chunks(self, statistics: PixelStatistics) -> Iterator[np.ndarray]:
        """Yield the training and validation images, C-contiguous; the pixels of the former are counted."""
        uncounted = len(self.train.labels) - self.validation_samples
        for chunk in self._chunks(self.train):
            statistics.add(chunk[: max(0, uncounted)])
            uncounted -= len(chunk)
            yield chunk

    def test_chunks(self) -> Iterator[np.ndarray]:
        """Yield the test images, C-contiguous."""
        return self._chunks(self.test)

    def _chunks(self, split: SplitContent) -> Iterator[np.ndarray]:
        count = 0
        for chunk in split.image_chunks:
            assert chunk.shape[1:] == self.image_shape and chunk.dtype == np.uint8, (chunk.shape, chunk.dtype)
            count += len(chunk)
            yield np.ascontiguousarray(chunk)
        assert count == len(split.labels), (count, len(split.labels))


def check_labels(labels: np.ndarray, *, class_count: int, where: str) -> None:
    """Raise UserError unless all labels are class numbers 0 <= label < class_count."""
    wrong = np.flatnonzero((labels < 0) | (labels >= class_count))
    if len(wrong):
        raise UserError(
            f"labels out of range in {where}: {len(wrong)} of {len(labels)} are not in 0..{class_count - 1}. "
            f"Received: {labels[wrong[0]]} for sample {wrong[0]}. "
            "Correct the source, remove this folder from the cache and fetch the data set again"
        )
