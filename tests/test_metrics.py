"""Sums and counts: averages come last."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.metrics import Sums, images_per_second

COUNTS = st.integers(0, 10**6)
SUMS = st.builds(Sums, COUNTS.map(float), COUNTS.map(float), COUNTS.map(float))


def test_by_hand() -> None:
    sums = Sums(loss=3.0, correct=1, samples=2) + Sums(loss=1.0, correct=5, samples=6)
    assert (sums.mean_loss, sums.accuracy) == (0.5, 0.75)  # not 0.83 and 0.67, the means of the means


def test_nothing_has_no_mean() -> None:
    assert Sums().mean_loss is None and Sums().accuracy is None


@given(parts=st.lists(SUMS, min_size=1, max_size=6))
def test_adding_arrays_is_adding_sums(parts: list[Sums]) -> None:
    arrays = [part.as_array() for part in parts]
    assert all(array.dtype == np.float64 and array.shape == (3,) for array in arrays)
    assert Sums.from_array(np.sum(arrays, axis=0)) == sum(parts, Sums())


def test_throughput() -> None:
    assert images_per_second(300, 1.5) == 200
    assert images_per_second(0, 2.0) == 0
    assert images_per_second(300, 0.0) is None
    assert images_per_second(300, 1e-3) == pytest.approx(300_000)
