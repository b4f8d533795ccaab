"""The sample order, the split for validation, and the parts of a batch; how ranks share them is in test_batches.py."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.data.sharding import epoch_order, share_out, split_validation, stable_permutation
from common.errors import UserError

SEEDS = st.integers(0, 2**32)


@given(parts=st.lists(st.floats(0.001, 1000), min_size=1, max_size=16), more=st.integers(0, 2000))
def test_a_batch_is_shared_out_in_proportion_with_something_for_everyone(parts, more):
    total = len(parts) + more
    counts = share_out(total, parts=parts)
    exact = [total * part / sum(parts) for part in parts]
    assert sum(counts) == total and min(counts) >= 1
    if min(exact) >= 1:
        assert all(abs(count - share) < 1 + 1e-9 for count, share in zip(counts, exact, strict=True))
    for count, part in zip(counts, parts, strict=True):  # who has a larger part has no fewer samples
        assert all(count >= other for other, less in zip(counts, parts, strict=True) if less < part)


@pytest.mark.parametrize(
    ("total", "parts", "expected"),
    [
        (128, [2, 1], (85, 43)),
        (64, [1, 1, 1, 1], (16, 16, 16, 16)),
        (10, [1, 1, 1], (4, 3, 3)),
        (100, [1000, 1], (99, 1)),
        (5, [1000, 1, 1, 1], (2, 1, 1, 1)),
        (268, [128, 128, 12], (128, 128, 12)),
    ],
)
def test_shares_by_largest_remainder(total, parts, expected):
    assert share_out(total, parts=parts) == expected


@given(sample_count=st.integers(2, 3000), share=st.floats(0, 0.95), seed=SEEDS)
def test_validation_and_training_are_disjoint_complete_and_sorted(sample_count, share, seed):
    try:
        training, validation = split_validation(sample_count, share=share, seed=seed)
    except UserError:
        assert share > 0 and round(share * sample_count) in (0, sample_count)
        return
    assert abs(len(validation) - share * sample_count) <= 0.5
    assert (np.diff(training) > 0).all() and (np.diff(validation) > 0).all()
    np.testing.assert_array_equal(np.sort(np.concatenate([training, validation])), np.arange(sample_count))


def test_orders_differ_between_epochs_seeds_and_purposes():
    orders = [epoch_order(1000, seed=seed, epoch=epoch).tolist() for seed in (0, 1) for epoch in (0, 1, 2)]
    orders.append(stable_permutation(1000, seed=0, stream=(0,)).tolist())  # the order of the validation split
    assert len({tuple(order) for order in orders}) == len(orders)


def test_the_order_never_changes():
    """A new NumPy or another machine must give these values, or old runs cannot be repeated."""
    assert epoch_order(12, seed=1234, epoch=7).tolist() == [6, 7, 11, 3, 5, 10, 0, 1, 8, 9, 2, 4]
    assert split_validation(12, share=0.25, seed=1234)[1].tolist() == [1, 6, 9]
