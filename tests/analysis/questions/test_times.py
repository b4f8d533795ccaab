"""The figures of the notebook for any runs: times of epochs; mean epoch, test and total."""

import numpy as np
import pytest
from analysis_builders import select, study

from analysis.questions.times import find


def test_lines_of_runs_and_their_median_are_drawn_by_epoch(plots):
    plot = find(select(study(seconds=[6.0, 12.0, 9.0]))).plots[0]
    *runs, median = plot.figure.axes[0].lines
    assert sorted(float(line.get_ydata()[0]) for line in runs) == [2.0, 3.0, 4.0]
    assert np.allclose(median.get_ydata(), 3.0) and median.get_linewidth() > runs[0].get_linewidth()
    assert len(plot.data.rows) == 9
    ax = find(select(study(settings={"training": {"epochs": 1}}))).plots[0].figure.axes[0]
    low, high = ax.get_xlim()
    assert [tick for tick in ax.get_xticks() if low <= tick <= high] == [1.0], "one epoch has one tick"


@pytest.mark.parametrize(("longest", "scale"), [(12.0, "linear"), (600.0, "log")])
def test_far_apart_is_logarithmic(longest, scale, plots):
    epochs, totals = find(select(study(seconds=[6.0, longest]))).plots
    assert epochs.figure.axes[0].get_yscale() == totals.figure.axes[0].get_xscale() == scale
