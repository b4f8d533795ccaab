"""Statistics of repeated runs: against SciPy, by hand, and by how often intervals hold the truth on synthetic data."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from analysis.stats.inference import (
    Interval,
    difference,
    equivalence,
    harmonic_mean,
    median_interval,
    olympic_mean,
    ratio,
)
from analysis.stats.proportions import accuracy_difference, wilson_interval

TRIALS = 1500


def by_key(values, *, first=0):
    return dict(enumerate(np.asarray(values, float).tolist(), start=first))


@pytest.mark.parametrize(("n", "k"), [(0, 0), (1, 0), (5, 0), (6, 1), (8, 1), (9, 2), (12, 3), (20, 6), (50, 18)])
def test_the_interval_of_the_median_is_that_of_published_tables(n, k):
    assert median_interval(range(1, n + 1)) == (Interval(k, n + 1 - k) if k else None)


@pytest.mark.parametrize("n", [*range(2, 60), 400, 5000])
def test_the_interval_of_the_median_and_the_means_are_scipys(n):
    values = np.random.default_rng(n).lognormal(size=n).tolist()
    expected = stats.quantile_test(values, p=0.5).confidence_interval(0.95)
    interval = median_interval(values)
    assert np.isnan(expected).any() if interval is None else (interval.low, interval.high) == tuple(expected)
    assert harmonic_mean(values) == pytest.approx(stats.hmean(values))
    assert n < 3 or olympic_mean(values) == pytest.approx(stats.trim_mean(values, 1.5 / n))


@pytest.mark.parametrize(
    ("n", "m"), [(6, None), (7, None), (20, None), (60, None), (4, 4), (5, 5), (3, 8), (20, 20), (60, 60)]
)
def test_p_values_are_scipys_and_an_interval_leaves_out_what_scipy_refuses(n, m):
    """`m`: runs of the other side; None: it has the same seeds."""
    random = np.random.default_rng(n * (m or 1))
    exact, decided = n < 50, 0
    for _ in range(200):
        if m is None:
            values, base = random.normal(loc=0.8 * random.normal(), size=n), np.zeros(n)
            expected = stats.wilcoxon(values, method="exact" if exact else "approx").pvalue
        else:
            values, base = random.normal(size=n), random.normal(loc=random.normal(), size=m)
            expected = stats.mannwhitneyu(values, base, method="exact" if exact else "asymptotic").pvalue
        effect = difference(by_key(values), by_key(base, first=n if m else 0))
        assert effect and effect.interval and effect.method == ("unpaired" if m else "paired by seed")
        if exact or expected > 0.01:
            assert effect.p_value == pytest.approx(expected, rel=1e-9 if exact else 0.05)
        if exact or abs(expected - 0.05) > 0.003:  # beyond 50 runs both are approximations
            assert effect.interval.contains(0.0) == (expected > 0.05)
            decided += not effect.interval.contains(0.0)
    assert 5 < decided < 195


@pytest.mark.parametrize("n", [5, 8, 20])
def test_the_interval_of_a_ratio_has_its_nominal_coverage(n):
    random = np.random.default_rng(n)
    held = []
    for _ in range(TRIALS):
        machine = random.lognormal(sigma=0.3, size=n)  # slow and fast periods, shared by a pair
        base, values = (machine * factor * random.lognormal(sigma=0.05, size=n) for factor in (10.0, 12.0))
        found = ratio(by_key(values), by_key(base))
        assert found is not None and found.interval is not None
        assert found.method == ("paired by seed" if n >= 6 else "unpaired")
        held.append(found.interval.contains(1.2))
    assert np.mean(held) > 0.95 - 2 * math.sqrt(0.05 * 0.95 / TRIALS)


def test_pairs_show_what_the_noise_of_the_machine_hides():
    random = np.random.default_rng(3)
    machine = random.lognormal(sigma=0.3, size=12)
    base, values = machine * 10, machine * 10.5 * random.lognormal(sigma=0.01, size=12)
    paired, unpaired = ratio(by_key(values), by_key(base)), ratio(by_key(values, first=100), by_key(base))
    assert paired and unpaired and paired.interval and unpaired.interval
    assert paired.interval.low > 1.0 and unpaired.interval.contains(1.0)
    assert paired.estimate == pytest.approx(1.05, rel=0.01) and paired.n == (12, 12)


def test_by_hand():
    found = ratio(by_key([2.0, 4.0, 8.0, 16.0]), by_key([1.0, 1.0, 1.0, 1.0]))
    assert found is not None and found.method == "unpaired"
    assert found.estimate == pytest.approx(math.sqrt(4.0 * 8.0))
    assert found.interval == Interval(pytest.approx(2.0), pytest.approx(16.0))  # U refuses only 4 against 4 apart
    lengths = difference(by_key([1.0, 2.0, 3.0]), by_key([1.0, 1.0, 1.0]))
    assert lengths is not None and (lengths.estimate, lengths.interval, lengths.p_value) == (1.0, None, None)
    assert harmonic_mean([40.0, 60.0]) == pytest.approx(48.0)
    assert olympic_mean([1.0, 2.0, 4.0, 100.0]) == 3.0
    # Runs of one seed have their folders as keys, and pair with themselves only.
    values = {1: 2.0, 2: 3.0, "runs/a": 2.5, "runs/b": 2.4}
    same = ratio(values, values)
    assert same is not None and same.estimate == pytest.approx(1.0)


def test_what_is_unknown_is_none():
    assert ratio({}, {1: 1.0}) is None and ratio({1: 0.0}, {1: 1.0}) is None and ratio({1: 1.0}, {1: -1.0}) is None
    assert difference({1: math.nan}, {1: 1.0}) is None and difference({1: 1.0}, {}) is None
    assert harmonic_mean([]) is None and harmonic_mean([0.0, 1.0]) is None
    assert olympic_mean([1.0, 2.0]) is None


def test_sameness_needs_a_margin_and_runs():
    base = by_key([0.980, 0.981, 0.982, 0.981, 0.980, 0.983, 0.982, 0.981])
    near, far, below = ({key: value + step for key, value in base.items()} for step in (0.001, 0.02, -0.02))
    noisy = by_key([0.95, 0.99, 0.97, 0.99, 0.96, 0.99, 0.98, 0.97])
    assert equivalence(near, base, margin=0.005) == "same"
    assert equivalence(near, base, margin=0.0005) == "different"
    assert equivalence(far, base, margin=0.005) == equivalence(below, base, margin=0.005) == "different"
    assert equivalence(noisy, base, margin=0.005) == "not shown"
    assert equivalence({1: 0.98}, {1: 0.98}, margin=0.005) == "not shown", "one run shows nothing"


def test_sameness_errs_in_one_of_twenty_at_the_margin():
    random = np.random.default_rng(5)
    same = [
        equivalence(by_key(0.01 + random.normal(scale=0.005, size=10)), by_key(np.zeros(10)), margin=0.01) == "same"
        for _ in range(TRIALS)
    ]
    assert np.mean(same) < 0.05 + 2 * math.sqrt(0.05 * 0.95 / TRIALS)


@given(
    n=st.integers(6, 30),
    m=st.integers(4, 30),
    paired=st.booleans(),
    steps=st.sampled_from([2, 5, 1000]),
    seed=st.integers(0, 10_000),
)
def test_an_interval_excludes_0_where_p_is_small_also_with_ties(n, m, paired, steps, seed):
    draw = np.random.default_rng(seed)
    values = by_key(draw.integers(0, steps, n) + draw.integers(0, steps // 2 + 1))
    base = by_key(draw.integers(0, steps, n if paired else m), first=0 if paired else n)
    found = difference(values, base)
    assert found is not None and found.interval is not None and found.p_value is not None
    assert found.interval.contains(0.0) == (found.p_value > 0.05)


# Proportions: accuracies


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
