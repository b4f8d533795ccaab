"""The figures of the notebook for any runs: times of epochs; mean epoch, test and total."""

from pathlib import Path

import numpy as np
import pytest
from analysis_builders import select, study
from builders import write_finished_run
from question_cases import cases_in, check_case

from analysis.__main__ import main
from analysis.questions.times import find


@pytest.mark.parametrize("case", cases_in(Path(__file__).with_name("times.toml")))
def test_what_is_found(case, plots):
    check_case(case, find)


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


def test_of_many_cells_the_first_are_drawn(tmp_path, capsys, plots):
    for np_ in range(1, 15):
        write_finished_run(tmp_path / "runs" / f"np{np_}", np=np_)
    assert main(["times", str(tmp_path / "runs"), "--plots", str(tmp_path / "plots")]) == 0
    printed = capsys.readouterr().out
    assert "epoch times are drawn for the first 12 of 14 cells" in printed
    assert {file.name for file in (tmp_path / "plots").glob("*.png")} == {"times-epochs.png", "times-totals.png"}
