"""Learnable synthetic images of any size, generated from a fixed seed without files.

Each class has a smooth random pattern. A sample is the pattern of its class, shifted at random with wrap-around, at a
random contrast, plus noise. All in integers, from NumPy's raw random bits: the same values on every machine.
"""

import functools
import math
import re
from collections.abc import Iterator

import numpy as np

from common.data import cache as dataset_cache
from common.data.dataset import Content, Dataset, PixelStatistics, Split, SplitContent
from common.errors import UserError

PATTERN = "synthetic:SAMPLESxHEIGHTxWIDTHxCHANNELSxCLASSES"
DEFAULT_SHAPE = (6000, 28, 28, 1, 10)
EXAMPLE = f"synthetic:{'x'.join(map(str, DEFAULT_SHAPE))}"
IN_MEMORY_BYTES = 64 * 1024**2  # larger ones are cached, so that the ranks of a host share one copy
MOST_BYTES, MOST_CLASSES = 10**12, 10**5
TEMPLATE_GRID = 5  # random values per side of a pattern, with linear interpolation between them
NOISE_AMPLITUDE = 160
SEED = 1901
CHUNK_BYTES = 8 * 1024**2


def load_synthetic(name: str) -> Dataset:
    """Return the synthetic data set of a name like `synthetic` or `synthetic:6000x28x28x1x10`.

    SAMPLES is the number of training samples; there are a sixth as many test samples, at least one.

    Raises:
        UserError: the name is not of this form, or a number is out of range.
    """
    samples, height, width, channels, class_count = parse_name(name)
    content = functools.partial(_content, samples, (height, width, channels), class_count)
    if samples * height * width * channels > IN_MEMORY_BYTES:
        entry = f"synthetic-{samples}x{height}x{width}x{channels}x{class_count}"
        return dataset_cache.load_or_build(entry, lambda _: content(), name=name)
    made, statistics = content(), PixelStatistics(channels)
    images = [np.concatenate(list(chunks)) for chunks in (made.train_chunks(statistics), made.test_chunks())]
    splits = [Split(*arrays) for arrays in zip(images, made.labels(), strict=True)]
    for split in splits:
        split.images.setflags(write=False)
        split.labels.setflags(write=False)
    return Dataset(
        name=name,
        train=splits[0],
        test=splits[1],
        class_names=made.class_names,
        mean=statistics.mean,
        standard_deviation=statistics.standard_deviation,
    )


def parse_name(name: str) -> tuple[int, int, int, int, int]:
    """Return (samples, height, width, channels, classes) of a name.

    Raises:
        UserError: see `load_synthetic`.
    """
    if name == "synthetic":
        return DEFAULT_SHAPE
    match = re.fullmatch(r"synthetic:(\d+)x(\d+)x(\d+)x(\d+)x(\d+)", name)
    if not match:
        raise UserError(f"a synthetic data set is named {PATTERN}. Received: {name!r}. Use e.g. {EXAMPLE}")
    samples, height, width, channels, class_count = (int(number) for number in match.groups())
    if min(samples, height, width, channels) < 1 or class_count < 2:
        raise UserError(
            f"a synthetic data set needs at least 1 sample, 1 x 1 pixels, 1 channel and 2 classes. Received: {name!r}. "
            f"Use for example {EXAMPLE}"
        )
    if samples * height * width * channels > MOST_BYTES or class_count > MOST_CLASSES:
        raise UserError(
            f"a synthetic data set has at most {MOST_BYTES:,} bytes (samples x height x width x channels) and "
            f"{MOST_CLASSES:,} classes. Received: {name!r}. Use for example {EXAMPLE}"
        )
    return samples, height, width, channels, class_count


def _content(samples: int, image_shape: tuple[int, int, int], class_count: int) -> Content:
    def split(sample_count: int, stream: int) -> SplitContent:
        random = _Random(stream)
        # Balanced classes in random order.
        labels = np.argsort(random.words(sample_count), kind="stable").astype(np.int64) % class_count
        return SplitContent(_image_chunks(image_shape, labels, random), labels)

    return Content(
        class_names=tuple(f"class {number}" for number in range(class_count)),
        image_shape=image_shape,
        train=split(samples, 1),
        test=split(max(1, samples // 6), 2),
        origin=f"generated from seed {SEED}",
    )


class _Random:
    """Random integers from the raw output of the bit generator, which NumPy guarantees not to change."""

    def __init__(self, stream: int) -> None:
        self.generator = np.random.PCG64(np.random.SeedSequence(entropy=SEED, spawn_key=(stream,)))

    def words(self, count: int) -> np.ndarray:
        """(count,) uint64, uniform."""
        return np.asarray(self.generator.random_raw(count), "<u8")

    def bytes(self, count: int) -> np.ndarray:
        """(count,) uint8, uniform."""
        return self.words(-(-count // 8)).view(np.uint8)[:count]


def _templates(classes: np.ndarray, image_shape: tuple[int, int, int]) -> np.ndarray:
    """Return the smooth pattern of each class: (classes, height, width, channels) int32 in -128..127, periodic."""
    height, width, channels = image_shape
    shape = (TEMPLATE_GRID, TEMPLATE_GRID, channels)
    grid = np.stack([_grid(label, math.prod(shape)).reshape(shape) for label in classes.tolist()])
    for axis, side in ((1, height), (2, width)):
        # Linear interpolation in 256ths between grid points, periodic.
        position = np.arange(side) * TEMPLATE_GRID * 256 // side
        low, part = position // 256, (position % 256).astype(np.int32)
        part = np.expand_dims(part, axis=tuple({0, 1, 2, 3} - {axis}))
        high = (low + 1) % TEMPLATE_GRID
        grid = (np.take(grid, low, axis) * (256 - part) + np.take(grid, high, axis) * part) // 256
    return grid


def _grid(label: int, size: int) -> np.ndarray:
    """Return the random values of a class: (size,) int32 in -128..127. Those of other classes are not drawn."""
    random, first = _Random(0), label * size
    random.generator.advance(first // 8)
    return random.bytes(first % 8 + size)[first % 8 :].astype(np.int32) - 128


def _image_chunks(image_shape: tuple[int, int, int], labels: np.ndarray, random: _Random) -> Iterator[np.ndarray]:
    """Yield parts of the images, (samples, height, width, channels) uint8, for labels (samples,).

    Only the patterns of a part's own classes are in memory: those of 1,000 classes may be larger than all images.
    """
    height, width, channels = image_shape
    chunk_size = max(1, CHUNK_BYTES // (height * width * channels))
    for start in range(0, len(labels), chunk_size):
        label = labels[start : start + chunk_size]
        count = len(label)
        # Shifts of up to half a side, periodic.
        shift_y, shift_x = ((random.words(count) % np.uint64(size // 2 + 1)).astype(int) for size in (height, width))
        rows = (np.arange(height) + shift_y[:, None]) % height
        columns = (np.arange(width) + shift_x[:, None]) % width
        classes, place = np.unique(label, return_inverse=True)
        pattern = _templates(classes, image_shape)[place[:, None, None], rows[:, :, None], columns[:, None, :]]
        contrast = (random.bytes(count) // 2 + np.int16(64)).astype(np.int16)[:, None, None, None]  # 64..191 of 256
        noise = random.bytes(pattern.size).reshape(pattern.shape).astype(np.int32) - 128
        value = 128 + (pattern * contrast + noise * NOISE_AMPLITUDE) // 256
        yield np.clip(value, 0, 255).astype(np.uint8)
