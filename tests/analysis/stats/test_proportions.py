"""Intervals of accuracies: values of the paper, by hand, and properties."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from analysis.stats.proportions import accuracy_difference, wilson_interval


def interval(first, second, *, samples):
    found = accuracy_difference(first, second, samples=samples)
    return found.low, found.high


def test_intervals_of_newcombes_paper_and_by_hand():
    assert interval(0.3, 0.9, samples=10) == pytest.approx((0.1705, 0.8090), abs=5e-5)  # its 9/10 - 3/10
    assert interval(2 / 7, 6 / 7, samples=7) == pytest.approx((0.0582, 0.8062), abs=5e-5)  # its 6/7 - 2/7
    # Wilson's interval of 10/10 is 1 / (1 + z² / 10) to 1, of 0/10 the mirror image: 1 - sqrt(2) (1 - 0.7225).
    assert interval(0.0, 1.0, samples=10) == pytest.approx((0.6075, 1.0), abs=5e-5)
    # For many images it is Wald's: 1.96 x sqrt(2 x 0.9 x 0.1 / 10000) = 0.00832.
    assert interval(0.9, 0.9, samples=10_000) == pytest.approx((-0.00832, 0.00832), abs=1e-5)


@given(st.integers(1, 10_000), st.floats(0, 1), st.floats(0, 1))
def test_an_interval_contains_its_difference_and_is_antisymmetric(samples, first, second):
    first, second = round(first * samples) / samples, round(second * samples) / samples
    low, high = interval(first, second, samples=samples)
    assert -1 - 1e-9 <= low <= second - first + 1e-9 and second - first - 1e-9 <= high <= 1 + 1e-9
    assert interval(second, first, samples=samples) == pytest.approx((-high, -low), abs=1e-9)


@given(st.integers(1, 20_000), st.floats(0, 1))
def test_wilsons_interval_is_scipys(samples, share):
    successes = round(share * samples)
    expected = stats.binomtest(successes, samples).proportion_ci(0.95, method="wilson")
    found = wilson_interval(successes, samples)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-12)
