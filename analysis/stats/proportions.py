"""Intervals of accuracies, which are proportions of a number of images."""

import math

from scipy import stats

from analysis.stats.inference import CONFIDENCE, Interval


def accuracy_difference(first: float, second: float, *, samples: int) -> Interval:
    """Return the 95 % interval of second - first, two accuracies on `samples` images each.

    Newcombe's hybrid score interval (method 10 of "Interval estimation for the difference between independent
    proportions", Statistics in Medicine 17, 1998, 873-890). With Wilson's interval (l, u) of each proportion p, the two
    are taken as independent: d - sqrt((p2 - l2)^2 + (u1 - p1)^2) to d + sqrt((u2 - p2)^2 + (p1 - l1)^2), d = p2 - p1.
    """
    wilson1, wilson2 = (
        stats.binomtest(round(accuracy * samples), samples).proportion_ci(CONFIDENCE, method="wilson")
        for accuracy in (first, second)
    )
    difference = second - first
    return Interval(
        difference - math.hypot(second - wilson2.low, wilson1.high - first),
        difference + math.hypot(wilson2.high - second, first - wilson1.low),
    )
