"""Batches: the right samples, exact normalization, and a prefetch that loses no item and ends its thread."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import wait_until

from common.data.batches import (
    Stacks,
    evaluation_batches,
    normalization_table,
    normalize,
    prefetch,
    training_stacks,
)
from common.data.dataset import Split
from common.data.sharding import epoch_order


def numbered_split(samples, channels=1):
    """A split in which the label of a sample is its number, and so is every pixel (modulo 256)."""
    numbers = np.arange(samples)
    images = np.broadcast_to((numbers % 256).astype(np.uint8)[:, None, None, None], (samples, 3, 2, channels)).copy()
    return Split(images=images, labels=numbers)


IDENTITY_TABLE = np.arange(256, dtype=np.float32)[:, None]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("channels", [1, 3, 5, 257])  # with 5 or 257, places in the table need more than 16 bits
@pytest.mark.parametrize(("pixels", "largest", "other"), [(np.uint8, 255, np.float16), (np.float16, 1, np.uint8)])
def test_normalize_has_the_bits_of_the_formula(pixels, largest, other, channels, dtype):
    random = np.random.default_rng(0)
    mean, deviation = tuple(random.uniform(0.2, 0.8, channels)), tuple(random.uniform(0.1, 0.4, channels))
    images = (random.integers(0, 256, (7, 9, 5, channels)) / 255 * largest).astype(pixels)
    images[0, 0, :2] = [[0] * channels, [largest] * channels]
    exact = images.astype(np.float64) / largest
    expected = {"standard": (exact - np.array(mean)) / np.array(deviation), "unit": exact}
    for normalization, numbers in expected.items():
        table = normalization_table(
            mean=mean, standard_deviation=deviation, pixels=pixels, normalization=normalization, dtype=dtype
        )
        normal = normalize(images, table)
        assert normal.dtype == dtype and normal.flags.c_contiguous and normal.flags.writeable
        np.testing.assert_array_equal(normal, numbers.astype(dtype))
        with pytest.raises(AssertionError):  # a table is for one type of pixels
            normalize(images.astype(other), table)


def test_a_constant_channel_becomes_0():
    table = normalization_table(
        mean=(0.4,), standard_deviation=(0.0,), pixels=np.uint8, normalization="standard", dtype=np.float64
    )
    assert np.isfinite(table).all() and table[102, 0] == pytest.approx(0)  # 102 / 255 = 0.4


def labels_of(stacks, *, batch_size):
    """Return the labels of each batch of some stacks, whose images must be theirs."""
    labels = []
    for images, numbers in stacks:
        assert images.shape == (len(numbers), batch_size, 3, 2, 1) and images.dtype == np.float32
        assert numbers.dtype == np.int64 and (images == (numbers % 256)[..., None, None, None]).all()
        labels += numbers.tolist()
    return labels


@settings(deadline=None, max_examples=40)
@given(
    steps=st.integers(0, 9),
    batch_sizes=st.lists(st.integers(1, 9), min_size=1, max_size=16),
    seed=st.integers(0, 2**32),
    updates=st.integers(1, 10),
)
def test_the_ranks_together_train_on_the_order(steps, batch_sizes, seed, updates):
    ranks, samples = len(batch_sizes), steps * sum(batch_sizes) + 1
    split = numbered_split(samples)
    order = epoch_order(samples, seed=seed, epoch=1)
    labels = []
    for rank, size in enumerate(batch_sizes):
        items = range(rank, steps * ranks, ranks)
        stacks = [items[start : start + updates] for start in range(0, steps, updates)]
        made = training_stacks(split, order, batch_sizes=batch_sizes, table=IDENTITY_TABLE, stacks=stacks)
        labels.append(labels_of(made, batch_size=size))
    # Step by step and rank by rank they use the order from its start, without gap or repetition.
    used = [label for step in range(steps) for of_rank in labels for label in of_rank[step]]
    assert used == order[: steps * sum(batch_sizes)].tolist()


@pytest.mark.parametrize("counts", [[7], [1, 1, 5], [3, 4], [2, 0, 5], [6]])
def test_stacks_are_cut_where_the_updates_end_that_are_asked_for(counts):
    stacks = [(np.arange(first, last), -np.arange(first, last)) for first, last in ((0, 3), (3, 6), (6, 7))]
    reader, number = Stacks(iter(stacks)), 0
    for count in counts:
        pieces = list(reader.take(count))
        assert np.concatenate([[], *(images for images, _ in pieces)]).tolist() == [*range(number, number + count)]
        assert all((images == -labels).all() and len(labels) for images, labels in pieces)
        number += count


@given(samples=st.integers(0, 300), batch_sizes=st.lists(st.integers(1, 9), min_size=1, max_size=64))
def test_evaluation_uses_every_sample_once_and_in_proportion_to_the_batch_sizes(samples, batch_sizes):
    split, indices = numbered_split(2 * samples), np.arange(1, 2 * samples, 2)
    labels = []
    for rank, size in enumerate(batch_sizes):
        batches = evaluation_batches(
            split, indices, batch_size=4, rank=rank, batch_sizes=batch_sizes, table=IDENTITY_TABLE
        )
        of_rank = [batch_labels.tolist() for _, batch_labels in batches]
        assert all(len(batch) == 4 for batch in of_rank[:-1])
        assert abs(sum(map(len, of_rank)) - samples * size / sum(batch_sizes)) < 1
        labels += [label for batch in of_rank for label in batch]
    assert labels == indices.tolist()


def prefetch_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]


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


@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 50])
def test_prefetch_yields_all_in_order_makes_depth_items_ahead_and_ends_its_thread(count, depth):
    made = []

    def items():
        while len(made) < count:
            made.append(len(made))
            yield made[-1]

    batches = prefetch(items(), depth=depth)
    for taken in range(1, count + 1):
        assert next(batches) == taken - 1
        ahead = min(taken + depth, count)
        wait_until(lambda ahead=ahead: len(made) >= ahead)
        assert len(made) == ahead
    assert list(batches) == []
    assert not prefetch_threads()
