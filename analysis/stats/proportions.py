"""Intervals of accuracies, which are proportions of a number of images."""

import math

from scipy.special import ndtri

from analysis.stats.inference import CONFIDENCE, Interval


def accuracy_difference(first: float, second: float, *, samples: int) -> Interval:
    """Return the 95 % interval of second - first, two accuracies on `samples` images each.

    Newcombe's hybrid score interval (method 10 of "Interval estimation for the difference between independent
    proportions", Statistics in Medicine 17, 1998, 873-890). With Wilson's interval (l, u) of each proportion p, the two
    are taken as independent: d - sqrt((p2 - l2)^2 + (u1 - p1)^2) to d + sqrt((u2 - p2)^2 + (p1 - l1)^2), d = p2 - p1.
    """
    wilson1, wilson2 = (wilson_interval(round(accuracy * samples), samples) for accuracy in (first, second))
    difference = second - first
    return Interval(
        difference - math.hypot(second - wilson2.low, wilson1.high - first),
        difference + math.hypot(wilson2.high - second, first - wilson1.low),
    )


def wilson_interval(successes: int, samples: int) -> Interval:
    """Return Wilson's 95 % score interval of a proportion (J. of the American Statistical Association 22, 1927)."""
    z, share = float(ndtri((1 + CONFIDENCE) / 2)), successes / samples
    middle = share + z**2 / (2 * samples)
    half = z * math.sqrt(share * (1 - share) / samples + (z / (2 * samples)) ** 2)
    scale = 1 + z**2 / samples
    return Interval(max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale))
