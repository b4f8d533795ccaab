"""Inference from repeated runs: intervals of medians, ratios and differences, and tests of equivalence.

Assumptions: runs are independent. All methods use ranks or order statistics, so values may have any distribution.
Beyond that, the interval of a paired effect assumes that differences within pairs are symmetric around their median
(Wilcoxon), that of an unpaired one that both sides have the same shape, shifted (Mann and Whitney). Intervals are exact
up to the sizes in `_EXACT`, and use the normal approximation of the rank sum beyond. A result that needs more runs is
None. After Hoefler and Belli, SC'15 (doi 10.1145/2807591.2807644): medians with intervals, harmonic means of rates;
ratios are never averaged.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special  # not `scipy.stats`, which takes a second to load

CONFIDENCE = 0.95
EQUIVALENCE_CONFIDENCE = 0.90  # of two one-sided tests at 5 % each (Schuirmann 1987)
FEWEST_PAIRS = 6  # with fewer, no interval of pairs reaches 95 %
_EXACT = 2500  # pairs of values up to which distributions are enumerated

Method = Literal["paired by seed", "unpaired"]


@dataclass(frozen=True)
class Interval:
    """From `low` to `high`."""

    low: float
    high: float

    def contains(self, value: float) -> bool:
        """Return whether a value is inside, edges included."""
        return self.low <= value <= self.high


@dataclass(frozen=True, kw_only=True)
class Effect:
    """How two sets of values differ.

    Attributes:
        estimate: ratio or difference (Hodges and Lehmann 1963): the median over pairs of runs.
        interval: of it, with CONFIDENCE; None: too few runs.
        p_value: of the hypothesis that both are the same, two-sided, by the method of the interval: Wilcoxon's signed
            ranks for pairs, else Mann and Whitney's; None: too few runs.
        method: how runs were matched.
        n: number of pairs, or of runs on each side.
    """

    estimate: float
    interval: Interval | None
    p_value: float | None
    method: Method
    n: tuple[int, int]


def median_interval(values: Sequence[float]) -> Interval | None:
    """Return the interval of the median between two order statistics; None where there are too few values.

    Assumes independent values of one distribution, of any shape. At 95 % six values are needed.
    """
    if (edges := _edges_of_median(len(values))) is None:
        return None
    ordered = np.sort(values)
    return Interval(*(float(ordered[edge]) for edge in edges))


@lru_cache
def _edges_of_median(n: int) -> tuple[int, int] | None:
    """Return which of n sorted values are the edges of the median's interval; found once for each n, for speed."""
    if n < 2:
        return None
    at_most = special.bdtr(np.arange(n), n, 0.5)  # [k]: probability that at most k values are below it
    depth = int(np.searchsorted(at_most, (1 - CONFIDENCE) / 2))
    return (depth - 1, n - depth) if depth else None


def median_of(values: Iterable[float]) -> float | None:
    """Return the median; None without values."""
    known = list(values)
    return float(statistics.median(known)) if known else None  # NumPy's takes twenty times as long for a few values


def olympic_mean(values: Sequence[float]) -> float | None:
    """Return the mean without the smallest and the largest value, as MLPerf scores; None with fewer than three."""
    return float(np.mean(np.sort(values)[1:-1])) if len(values) > 2 else None


def harmonic_mean(values: Sequence[float]) -> float | None:
    """Return the harmonic mean, that of rates over equal work; None without values or with one that is not > 0."""
    return len(values) / math.fsum(1 / value for value in values) if values and min(values) > 0 else None


def ratio(values: Mapping[Any, float], base: Mapping[Any, float]) -> Effect | None:
    """Return how many times the base the values are; None without values or with one that is not > 0.

    Args:
        values, base: seed (or another number that makes pairs) -> value. Pairs are used if there are enough of them.
    """
    if not values or not base or min(*values.values(), *base.values(), 1.0) <= 0:
        return None
    logs = [{key: math.log(value) for key, value in side.items()} for side in (values, base)]
    found = difference(*logs)
    if found is None:
        return None
    interval = found.interval and Interval(math.exp(found.interval.low), math.exp(found.interval.high))
    return Effect(
        estimate=math.exp(found.estimate), interval=interval, p_value=found.p_value, method=found.method, n=found.n
    )


def difference(
    values: Mapping[Any, float], base: Mapping[Any, float], *, confidence: float = CONFIDENCE
) -> Effect | None:
    """Return how much larger than the base the values are; None if there are none on a side, or one is not finite."""
    if not values or not base or not all(math.isfinite(value) for value in (*values.values(), *base.values())):
        return None
    pairs = sorted(values.keys() & base.keys(), key=lambda key: (isinstance(key, str), key))  # seeds, then folders
    if len(pairs) >= FEWEST_PAIRS:
        return _paired(np.array([values[key] - base[key] for key in pairs]), confidence=confidence)
    return _unpaired(np.array(list(values.values())), np.array(list(base.values())), confidence=confidence)


Equivalence = Literal["same", "different", "not shown"]


def equivalence(values: Mapping[Any, float], base: Mapping[Any, float], *, margin: float) -> Equivalence:
    """Return whether two sets of values are the same to within a margin.

    same: the 90 % interval of their difference is inside the margin: two one-sided tests at 5 % (Schuirmann 1987).
    different: it is not, and the 95 % interval excludes 0. Otherwise neither is shown, and more runs are needed.
    """
    inner, outer = (
        difference(values, base, confidence=confidence) for confidence in (EQUIVALENCE_CONFIDENCE, CONFIDENCE)
    )
    if inner and inner.interval and -margin < inner.interval.low and inner.interval.high < margin:
        return "same"
    return "different" if outer and outer.interval and not outer.interval.contains(0.0) else "not shown"


def _paired(differences: NDArray[np.float64], *, confidence: float) -> Effect:
    n = len(differences)
    averages, null = np.sort(walsh_averages(differences)), signed_rank_null(n)
    return Effect(
        estimate=_middle(averages),
        interval=_between(averages, null.depth(confidence)),
        p_value=null.p_value(averages),
        method="paired by seed",
        n=(n, n),
    )


def _unpaired(values: NDArray[np.float64], base: NDArray[np.float64], *, confidence: float) -> Effect:
    differences = np.sort((values[:, None] - base[None, :]).ravel())
    null = rank_sum_null(len(values), len(base))
    interval = _between(differences, null.depth(confidence))
    return Effect(
        estimate=_middle(differences),
        interval=interval,
        p_value=None if interval is None else null.p_value(differences),
        method="unpaired",
        n=(len(values), len(base)),
    )


def _middle(ordered: NDArray[np.float64]) -> float:
    """Return the median of sorted values."""
    return float(ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def _between(ordered: NDArray[np.float64], depth: int) -> Interval | None:
    return Interval(float(ordered[depth - 1]), float(ordered[-depth])) if depth > 0 else None


@dataclass(frozen=True, eq=False)
class NullDistribution:
    """How often a rank statistic takes each of its values if nothing differs.

    The statistic counts the differences that are negative, of `largest` in all: Walsh averages for the signed-rank
    test, pairs of values for that of Mann and Whitney. Interval and p-value are both read from it, so that an interval
    excludes 0 exactly where p is at most 1 - confidence. A difference of 0 counts for both signs.

    Attributes:
        counts: [i] ways in which the statistic is i; None: it is taken as normal.
        spread: its standard deviation.
    """

    largest: int
    spread: float
    counts: NDArray[np.float64] | None

    def depth(self, confidence: float) -> int:
        """Return k: the interval is between the k-th smallest and largest difference; 0: there is none."""
        tail = (1 - confidence) / 2
        if self.counts is None:
            return max(0, math.floor(self.largest / 2 - special.ndtri(1 - tail) * self.spread))
        cumulative = np.cumsum(self.counts) / self.counts.sum()
        return int(np.searchsorted(cumulative, tail * (1 + 1e-12), side="right"))

    def p_value(self, differences: NDArray[np.float64]) -> float:
        """Return the two-sided p-value of the differences: twice the smaller tail."""
        statistic = min(int((differences <= 0).sum()), int((differences >= 0).sum()))
        if self.counts is None:
            tail = float(special.ndtr((statistic + 1 - self.largest / 2) / self.spread))
        else:
            tail = float(self.counts[: statistic + 1].sum() / self.counts.sum())
        return min(1.0, 2 * tail)


@lru_cache
def signed_rank_null(n: int) -> NullDistribution:
    """Return the distribution for n pairs (Wilcoxon; the interval is Tukey's)."""
    counts = signed_rank_counts(n) if n * n <= _EXACT else None
    return NullDistribution(n * (n + 1) // 2, math.sqrt(n * (n + 1) * (2 * n + 1) / 24), counts)


@lru_cache
def rank_sum_null(n: int, m: int) -> NullDistribution:
    """Return the distribution for n values against m (Mann and Whitney; the interval is Moses')."""
    counts = rank_sum_counts(n, m) if n * m <= _EXACT else None
    return NullDistribution(n * m, math.sqrt(n * m * (n + m + 1) / 12), counts)


def walsh_averages(differences: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean of every two differences, (..., n) float64, and of each with itself."""
    rows, columns = np.triu_indices(differences.shape[-1])
    return (differences[..., rows] + differences[..., columns]) / 2


@lru_cache
def signed_rank_counts(n: int) -> NDArray[np.float64]:
    """Return in how many ways n signs give each sum of positive ranks: (n (n + 1) / 2 + 1,) float64."""
    counts = np.ones(1)
    for rank in range(1, n + 1):
        counts = np.pad(counts, (0, rank)) + np.pad(counts, (rank, 0))
    return counts


@lru_cache
def rank_sum_counts(n: int, m: int) -> NDArray[np.float64]:
    """Return in how many ways n values among n + m give each of Mann and Whitney's U: (n m + 1,) float64."""
    # ways[k][u]: k of the items so far were chosen, with u the number of items left out below each of them, summed.
    ways = np.zeros((n + 1, n * m + 1))
    ways[0, 0] = 1
    for item in range(n + m):
        for k in range(min(item, n - 1), -1, -1):
            below = item - k
            if below <= m:
                ways[k + 1, below:] += ways[k, : n * m + 1 - below]
    return ways[n]
