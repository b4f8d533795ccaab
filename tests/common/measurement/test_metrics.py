"""Sums and counts: averages come last."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.measurement.metrics import Sums, images_per_second

COUNTS = st.integers(0, 10**6)
SUMS = st.builds(Sums, COUNTS.map(float), COUNTS.map(float), COUNTS.map(float))


def test_by_hand():
    of_ranks = [Sums(loss=3.0, correct=1, samples=2), Sums(loss=1.0, correct=5, samples=6)]
    sums = Sums.from_array(np.sum([sums.as_array() for sums in of_ranks], axis=0))
    assert (sums.mean_loss, sums.accuracy) == (0.5, 0.75)  # not 0.83 and 0.67, the means of the means


def test_without_samples_there_is_no_mean():
    assert Sums().mean_loss is None and Sums().accuracy is None


@given(sums=SUMS)
def test_an_array_is_the_same_sums(sums):
    array = sums.as_array()
    assert array.dtype == np.float64 and array.shape == (3,)
    assert Sums.from_array(array) == sums


def test_throughput():
    assert images_per_second(300, 1.5) == 200
    assert images_per_second(0, 2.0) == 0
    assert images_per_second(300, 0.0) is None
    assert images_per_second(300, 1e-3) == pytest.approx(300_000)
