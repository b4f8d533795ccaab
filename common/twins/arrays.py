"""Arrays of two frameworks: how far apart they are, and in which layouts one may appear in the other."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

EQUAL = 1e-10  # of one layer, in float64, given the same input
_PRINTS_EQUAL = 1e-9  # of fingerprints
CONSTANTS = 3e-7  # of one layer with a Python constant, which TensorFlow keeps in float32
_ENTRIES_AT_ONCE = 1 << 19  # so that what is compared stays in the cache


class Fit(NamedTuple):
    """A PyTorch array in Keras' layout.

    Attributes:
        difference: relative, to PyTorch's largest entry; infinite if the shapes do not fit.
        array: None if there is no such layout.
        flattened: whether the entries of each sample are turned from channels first to channels last.
    """

    difference: float
    array: np.ndarray | None
    flattened: bool = False


def relative(value: np.ndarray, reference: np.ndarray) -> float:
    """Return the largest difference over the largest entry of the reference; infinite where either is no number."""
    if value.shape != reference.shape:
        return float("inf")
    axis = int(np.argmax(np.atleast_1d(reference.strides or 1)))  # along which its parts are together in memory
    value, reference = (np.moveaxis(np.atleast_1d(array), axis, 0) for array in (value, reference))
    rows = max(1, _ENTRIES_AT_ONCE * len(reference) // max(reference.size, 1))
    top = difference = np.float64(0)
    for start in range(0, len(reference), rows):
        part = slice(start, start + rows)
        top = np.maximum(top, np.max(np.abs(reference[part]), initial=0.0))  # unlike max(), it keeps NaN
        difference = np.maximum(difference, np.max(np.abs(value[part] - reference[part]), initial=0.0))
    if not np.isfinite(difference + top):
        return float("inf")
    return float(difference / top) if top else float("inf" if difference else 0)


def fingerprint(array: np.ndarray) -> list[float]:
    """Return numbers that no change of layout changes: size, sum, sums of |x| and x^2, largest and smallest entry."""
    flat = np.asarray(array, np.float64).ravel()
    magnitudes = [float(np.abs(flat).sum()), float(flat @ flat)]
    return [flat.size, float(flat.sum()), *magnitudes, float(flat.max(initial=0)), float(flat.min(initial=0))]


def alike(
    prints: Sequence[Sequence[float]] | np.ndarray, wanted: Sequence[float], *, padded: bool = False
) -> np.ndarray:
    """Return which of the fingerprints (n, 6) are those of the same numbers; `padded`: zeros may be added to them."""
    size, _, magnitude, squares, largest, smallest = wanted
    top = max(abs(largest), abs(smallest))
    scale = np.array([1, magnitude, magnitude, squares, top, top]) + 1e-300
    rows = np.asarray(prints).reshape(-1, 6)
    within = np.abs(rows - wanted) <= _PRINTS_EQUAL * scale
    if padded:
        within[:, 0] = rows[:, 0] <= size
    return np.asarray(within.all(axis=1))


def channels_last_order(shape: Sequence[int]) -> np.ndarray:
    """Return the order that turns a flattened image from (channels, height, width) to (height, width, channels)."""
    return np.moveaxis(np.arange(int(np.prod(shape))).reshape(shape), 0, -1).ravel()


def layouts(
    array: np.ndarray, shape: tuple[int, ...], *, flat: Sequence[int] | None = None, pad: bool = False
) -> Iterator[tuple[np.ndarray, bool]]:
    """Yield a PyTorch array in the layouts in which Keras may have it, and whether its samples are turned.

    Args:
        flat: shape of a sample before it was flattened.
        pad: whether a Keras layer may have padded it, with zeros.
    """
    if array.size != int(np.prod(shape)):
        if pad and array.ndim == len(shape) > 2:
            yield from ((padded, False) for padded in _padded(np.moveaxis(array, 1, -1), shape))
        return
    same, last = tuple(range(array.ndim)), (0, *range(2, array.ndim), 1)
    orders = {2: [same], 3: [same, last, (1, 0, 2)]}.get(array.ndim, [last, same] if array.ndim > 3 else [same])
    for order in orders:
        turned = array.transpose(order)
        if turned.shape == shape or turned.ndim != len(shape):
            yield turned.reshape(shape), False
    if array.ndim == 2 and len(shape) > 2 and len(array) == shape[0] * shape[1]:  # tokens in one row, position first
        yield array.reshape(shape[1], shape[0], -1).swapaxes(0, 1).reshape(shape), False
    if flat and array.ndim == 2 and array.shape[1] == int(np.prod(flat)):
        yield array[:, channels_last_order(flat)].reshape(shape), True


def _padded(array: np.ndarray, shape: tuple[int, ...]) -> Iterator[np.ndarray]:
    more = np.subtract(shape[1:-1], array.shape[1:-1])
    if array.shape[0] != shape[0] or array.shape[-1] != shape[-1] or more.min() < 0:
        return
    for before in (more // 2, 0 * more, more - more // 2, more):
        yield np.pad(array, [(0, 0), *zip(before, more - before, strict=True), (0, 0)])


def nearest(array: np.ndarray, value: np.ndarray, *, flat: Sequence[int] | None = None, pad: bool = False) -> Fit:
    """Return a PyTorch array in the layout in which it is nearest to Keras' value."""
    best = Fit(np.inf, None)
    for turned, flattened in layouts(array, value.shape, flat=flat, pad=pad):
        difference = relative(value, turned)
        if best.array is None or difference <= EQUAL or (difference < best.difference and array.ndim < 4):
            best = Fit(difference, turned, flattened)  # images that differ stay channels last
        if difference <= EQUAL:
            break
    return best


def unlike(value: np.ndarray, other: np.ndarray) -> float:
    """Return from 0 to 2 how unlike two arrays of one shape are: below 1 where many entries are equal."""
    entries = other != 0
    close = np.isclose(value, other, rtol=1e-9, atol=1e-12 * np.abs(other).max(initial=0.0)) & entries
    share = float(close.sum() / max(entries.sum(), 1))
    variance = max(float(np.mean((other - other.mean()) ** 2)), 1e-300)
    return 1 - share if share > 0.1 else 1 + min(float(np.sqrt(np.mean((value - other) ** 2) / variance)), 1.0)


def pads_of(images: np.ndarray) -> list[tuple[int, int]]:
    """Return how many rows and columns of zeros are before and after images (batch, height, width, channels)."""
    pads = []
    for axis in range(1, images.ndim - 1):
        used = np.flatnonzero(np.any(np.moveaxis(images, axis, 0).reshape(images.shape[axis], -1) != 0, axis=1))
        pads.append((int(used[0]), int(images.shape[axis] - 1 - used[-1])) if used.size else (0, 0))
    return pads
