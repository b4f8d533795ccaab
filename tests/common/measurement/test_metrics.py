"""Sums and counts: averages come last."""

import numpy as np
import pytest

from common.measurement.metrics import Sums, images_per_second


def test_by_hand():
    of_ranks = [Sums(loss=3.0, correct=1, samples=2), Sums(loss=1.0, correct=5, samples=6)]
    sums = Sums(*np.sum(of_ranks, axis=0).tolist())
    assert (sums.mean_loss, sums.accuracy) == (0.5, 0.75)  # not 0.83 and 0.67, the means of the means
    assert Sums().mean_loss is None and Sums().accuracy is None


@pytest.mark.parametrize(("images", "seconds", "speed"), [(300, 1.5, 200), (0, 2.0, 0), (300, 0.0, None)])
def test_throughput(images, seconds, speed):
    assert images_per_second(images, seconds) == speed
