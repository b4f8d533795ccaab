"""Batches: the right samples, exact normalization, and a prefetch that loses no item and ends its thread."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import wait_until

from common.data.batches import evaluation_batches, normalization_table, normalize, prefetch, training_batches
from common.data.dataset import Dataset, Split
from common.data.loading import load_dataset
from common.data.sharding import epoch_order


def numbered_split(samples, channels=1):
    """A split in which the label of a sample is its number, and so is every pixel (modulo 256)."""
    numbers = np.arange(samples)
    images = np.broadcast_to((numbers % 256).astype(np.uint8)[:, None, None, None], (samples, 3, 2, channels)).copy()
    return Split(images=images, labels=numbers)


IDENTITY_TABLE = np.arange(256, dtype=np.float32)[:, None]


def dataset_with(mean, standard_deviation):
    split = numbered_split(8, channels=len(mean))
    return Dataset("made", split, split, ("a", "b"), mean, standard_deviation)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("channels", [1, 3, 257])  # with 257, table rows need more than 16 bits
def test_normalize_has_the_bits_of_the_formula(channels, dtype):
    random = np.random.default_rng(0)
    mean, deviation = tuple(random.uniform(0.2, 0.8, channels)), tuple(random.uniform(0.1, 0.4, channels))
    table = normalization_table(dataset_with(mean, deviation), normalization="standard", dtype=dtype)
    assert table.shape == (256, channels) and table.dtype == dtype
    images = random.integers(0, 256, (7, 9, 5, channels), dtype=np.uint8)
    normal = normalize(images, table)
    expected = ((images.astype(np.float64) / 255 - np.array(mean)) / np.array(deviation)).astype(dtype)
    assert normal.dtype == dtype and normal.flags.c_contiguous and normal.flags.writeable
    np.testing.assert_array_equal(normal, expected)
    unit = normalization_table(dataset_with(mean, deviation), normalization="unit", dtype=dtype)
    np.testing.assert_array_equal(normalize(images, unit), (images / 255.0).astype(dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("channels", [1, 3, 5])  # with 5, table rows need more than 16 bits
def test_float16_pixels_are_normalized_by_the_formula(channels, dtype):
    random = np.random.default_rng(0)
    mean, deviation = tuple(random.uniform(0.2, 0.8, channels)), tuple(random.uniform(0.1, 0.4, channels))
    dataset = dataset_with(mean, deviation)
    images = random.uniform(0, 1, (7, 9, 5, channels)).astype(np.float16)
    images[0, 0, :2] = [[0] * channels, [1] * channels]
    table = normalization_table(dataset, pixels=np.float16, normalization="standard", dtype=dtype)
    normal = normalize(images, table)
    expected = ((images.astype(np.float64) - np.array(mean)) / np.array(deviation)).astype(dtype)
    assert normal.dtype == dtype and normal.flags.c_contiguous and normal.flags.writeable
    np.testing.assert_array_equal(normal, expected)
    unit = normalization_table(dataset, pixels=np.float16, normalization="unit", dtype=dtype)
    np.testing.assert_array_equal(normalize(images, unit), images.astype(dtype))


def test_a_table_is_for_one_type_of_pixels():
    table = normalization_table(dataset_with((0.5,), (0.1,)), pixels=np.float16)
    with pytest.raises(AssertionError):
        normalize(np.zeros((1, 2, 2, 1), np.uint8), table)


def test_standard_normalization_gives_mean_0_and_deviation_1():
    dataset = load_dataset("synthetic:500x12x10x3x4")
    table = normalization_table(dataset, normalization="standard", dtype=np.float64)
    pixels = normalize(dataset.train.images, table)
    np.testing.assert_allclose(pixels.mean(axis=(0, 1, 2)), 0, atol=1e-12)
    np.testing.assert_allclose(pixels.std(axis=(0, 1, 2)), 1, rtol=1e-12)


def test_a_constant_channel_becomes_0():
    table = normalization_table(dataset_with((0.4,), (0.0,)), normalization="standard", dtype=np.float64)
    assert np.isfinite(table).all() and table[102, 0] == pytest.approx(0)  # 102 / 255 = 0.4


@settings(deadline=None, max_examples=40)
@given(samples=st.integers(1, 300), batch_size=st.integers(1, 9), size=st.integers(1, 16), epoch=st.integers(0, 5))
def test_the_ranks_together_train_on_the_epoch_order(samples, batch_size, size, epoch):
    split = numbered_split(3 * samples)
    indices = np.arange(0, 3 * samples, 3)  # the others are for validation
    ranks = [
        list(
            training_batches(
                split,
                indices,
                seed=9,
                epoch=epoch,
                rank=rank,
                batch_sizes=[batch_size] * size,
                table=IDENTITY_TABLE,
            )
        )
        for rank in range(size)
    ]
    steps = samples // (batch_size * size)
    assert all(len(batches) == steps for batches in ranks)
    labels = [batches[step][1] for step in range(steps) for batches in ranks]
    order = indices[epoch_order(samples, seed=9, epoch=epoch)]
    np.testing.assert_array_equal(np.concatenate([*labels, order[:0]]), order[: steps * batch_size * size])
    for images, labels_of_batch in (batch for batches in ranks for batch in batches):
        assert (
            images.shape == (batch_size, 3, 2, 1) and images.dtype == np.float32 and labels_of_batch.dtype == np.int64
        )
        assert (images == (labels_of_batch % 256)[:, None, None, None]).all()


def test_an_epoch_can_be_shortened():
    def labels(steps=None):
        batches = training_batches(
            numbered_split(100),
            np.arange(100),
            seed=1,
            epoch=2,
            rank=1,
            batch_sizes=[8, 8],
            table=IDENTITY_TABLE,
            steps=steps,
        )
        return [batch_labels.tolist() for _, batch_labels in batches]

    whole = labels()
    assert len(whole) == 6
    assert labels(steps=4) == whole[:4]
    assert labels(steps=3) == whole[:3]
    assert labels(steps=99) == whole


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_evaluation_uses_every_sample_once_and_in_order(size):
    split, indices = numbered_split(60), np.arange(1, 60, 2)
    labels = []
    for rank in range(size):
        batches = list(
            evaluation_batches(split, indices, batch_size=4, rank=rank, batch_sizes=[5] * size, table=IDENTITY_TABLE)
        )
        assert all(len(batch_labels) == 4 for _, batch_labels in batches[:-1])
        labels += [label for _, batch_labels in batches for label in batch_labels.tolist()]
    assert labels == indices.tolist()


def prefetch_threads():
    return [thread for thread in threading.enumerate() if thread.name == "prefetch"]


@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 100])
def test_prefetch_yields_all_in_order(count, depth):
    assert list(prefetch(iter(range(count)), depth=depth)) == list(range(count))
    assert not prefetch_threads()


def test_prefetch_raises_the_error_in_its_place_and_ends_the_thread():
    def broken():
        yield 1
        yield 2
        raise OSError("gone")

    seen = []
    with pytest.raises(OSError, match="gone"):
        for item in prefetch(broken()):
            seen.append(item)
    assert seen == [1, 2]
    assert not prefetch_threads()


def test_prefetch_produces_depth_items_ahead_and_ends_its_thread():
    made = []

    def endless():
        while True:
            made.append(len(made))
            yield made[-1]

    batches = prefetch(endless(), depth=3)
    ahead = set()
    for taken in range(1, 51):
        assert next(batches) == taken - 1
        wait_until(lambda taken=taken: len(made) >= taken + 3)
        ahead.add(len(made) - taken)
    assert ahead == {3}
    batches.close()
    assert not prefetch_threads()


def test_prefetch_needs_room_for_an_item():
    with pytest.raises(ValueError, match="depth"):
        next(prefetch(iter([1]), depth=0))
