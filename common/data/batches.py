"""From samples to batches: gather, normalize, prefetch. In NumPy, so both frameworks read the same floats.

Pixels stay uint8 or float16 until a batch is created. Both types have few values (256; 15,361 from 0 to 1), so
normalization is a lookup in a table of floats per channel, computed once in float64: exact, the same for both
frameworks, and faster than the arithmetic (148 x 197 pixels of float16: 22 us by lookup, 54 us in float32; medians of
9).
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from common.data.dataset import Split
from common.data.sharding import evaluation_range, rank_slice
from common.watchdog.board import doing

Item = TypeVar("Item")
Batch = tuple[np.ndarray, np.ndarray]
Draw = Callable[[int, int], Iterator[int]]  # of a segment of work, given as its first item and its end
Normalization = Literal["standard", "unit"]

# Read as integers, the bits of the float16 values from 0 to 1 count up from 0.
_HALF_CODES = int(np.float16(1).view(np.uint16)) + 1


def normalization_table(
    *,
    mean: Sequence[float],
    standard_deviation: Sequence[float],
    pixels: DTypeLike,
    normalization: Normalization,
    dtype: DTypeLike,
) -> np.ndarray:
    """Return the float for each pixel value and channel.

    `standard`: (x - mean) / standard deviation, per channel, of the training images.
    `unit`: x. Both are computed in float64 and then rounded to `dtype`.

    Args:
        mean, standard_deviation: per channel, of pixel / 255.
        pixels: type of the images; x is pixel / 255 of uint8, and the pixel itself of float16, which is from 0 to 1.

    Returns:
        (256, channels) of `dtype` for uint8, (15361, channels) for float16: one row per value, ascending.
    """
    if np.dtype(pixels) == np.float16:
        values = np.arange(_HALF_CODES, dtype=np.uint16).view(np.float16).astype(np.float64)
    else:
        values = np.arange(256, dtype=np.float64) / 255
    table = np.repeat(values[:, None], len(mean), axis=1)
    if normalization == "standard":
        # A channel that is constant over all training images has deviation 0: it becomes 0.
        deviation = np.array(standard_deviation, np.float64)
        table = (table - np.array(mean, np.float64)) / np.where(deviation > 0, deviation, 1)
    return table.astype(dtype)


def normalize(images: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Replace each pixel by its float.

    Args:
        images: (batch, height, width, channels) uint8 or float16, C-contiguous.
        table: (values, channels) from `normalization_table` for that type.

    Returns:
        (batch, height, width, channels) of the table's dtype, C-contiguous, newly allocated.
    """
    channels = images.shape[3]
    codes = images.view(np.uint16) if images.dtype == np.float16 else images
    assert len(table) == (256 if codes.dtype == np.uint8 else _HALF_CODES), (images.dtype, table.shape)
    if channels == 1:
        # No pixel is out of range; any mode but "raise" skips NumPy's check.
        return np.take(np.ascontiguousarray(table[:, 0]), codes, mode="wrap")
    # All channels in one lookup: channel c reads row c of the transposed table. The offsets are repeated for a whole
    # image, because NumPy adds long rows several times faster than rows of 3.
    rows = codes.reshape(len(codes), -1)
    offsets = np.arange(channels) * len(table)
    smallest = np.min_scalar_type(channels * len(table) - 1)  # the fastest; uint16 for images with a few channels
    offsets = np.tile(offsets.astype(smallest), rows.shape[1] // channels)
    return np.take(np.ascontiguousarray(table.T).ravel(), rows + offsets, mode="clip").reshape(images.shape)


def gather(split: Split, samples: np.ndarray, table: np.ndarray) -> Batch:
    """Return the given samples: images (batch, height, width, channels) of the table's dtype, labels (batch,) int64."""
    # asarray: plain views of the memory maps, without the subclass's cost for each slice.
    # Small images are gathered faster than by indexing (28 x 28, batch 64: 3.7 us instead of 14.7), large ones as fast.
    pixels, labels = (np.take(np.asarray(array), samples, axis=0) for array in (split.images, split.labels))
    return normalize(pixels, table), labels


def training_stacks(
    split: Split,
    order: np.ndarray,
    *,
    batch_sizes: Sequence[int],
    table: np.ndarray,
    stacks: Iterable[Sequence[int]],
) -> Iterator[Batch]:
    """Yield one rank's batches of one epoch, several at a time, in the order of `common.data.sharding`.

    Args:
        order: (samples,) the rows of the split in the order of the epoch.
        batch_sizes: samples of each rank in a step.
        stacks: the items of each stack, which are of one size; item i is what rank i % ranks takes in step i // ranks.

    Yields:
        Images (items, batch, height, width, channels) of the table's dtype, C-contiguous; labels (items, batch) int64.
    """
    ranks = len(batch_sizes)
    for items in stacks:
        parts = [rank_slice(item // ranks, rank=item % ranks, batch_sizes=batch_sizes) for item in items]
        with doing("loading data"):
            images, labels = gather(split, np.concatenate([order[part] for part in parts]), table)
        yield images.reshape(len(items), -1, *images.shape[1:]), labels.reshape(len(items), -1)


class Stacks:
    """Stacks of batches, cut where the updates end that are asked for."""

    def __init__(self, stacks: Iterator[Batch]) -> None:
        self._stacks = stacks
        self._rest: Batch | None = None

    def take(self, updates: int) -> Iterator[Batch]:
        """Yield the next stacks, which have so many batches together."""
        while updates:
            images, labels = self._rest or next(self._stacks)
            count = min(updates, len(labels))
            self._rest = (images[count:], labels[count:]) if count < len(labels) else None
            updates -= count
            yield images[:count], labels[:count]


def evaluation_batches(
    split: Split,
    sample_indices: np.ndarray,
    *,
    batch_size: int,
    rank: int,
    batch_sizes: Sequence[int],
    table: np.ndarray,
) -> Iterator[Batch]:
    """Yield one rank's part of the given samples, in their order; each sample is on exactly one rank.

    Args:
        batch_size: samples per step of the evaluation.
        batch_sizes: samples of each rank in a step of the training, in proportion to which the ranks share.

    Yields:
        Images (batch, height, width, channels) of the table's dtype, labels (batch,) int64. All batches but
        the last have `batch_size` samples; a rank may have no batch at all.
    """
    mine = evaluation_range(len(sample_indices), rank=rank, batch_sizes=batch_sizes)
    for start in range(mine.start, mine.stop, batch_size):
        yield gather(split, sample_indices[start : min(start + batch_size, mine.stop)], table)


def prefetch(iterator: Iterator[Item], *, depth: int = 2) -> Iterator[Item]:
    """Yield the iterator's items, produced by a thread up to `depth` items ahead.

    The thread gathers and normalizes (NumPy releases the interpreter lock) while the framework computes.
    An exception in the iterator is raised here in its place. Closing or dropping this generator ends the thread.
    """
    end: Any = object()
    thread = ThreadPoolExecutor(1, "prefetch")
    try:
        ahead = deque(thread.submit(next, iterator, end) for _ in range(depth))
        while (item := ahead.popleft().result()) is not end:
            ahead.append(thread.submit(next, iterator, end))
            yield item
    finally:
        thread.shutdown(cancel_futures=True)
