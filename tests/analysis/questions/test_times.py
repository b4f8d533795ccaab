"""The figures of the notebook for any runs: times of epochs; mean epoch, test and total."""

import math

import numpy as np
import pytest
from analysis_builders import rows_of, select, study
from builders import write_finished_run

from analysis.__main__ import main
from analysis.questions.times import find


def test_mean_epoch_test_and_total_by_hand(plots):
    """Three epochs of 6, 9 and 12 s in all, test 1 s: the median run has epochs of 3 s and takes 10 s."""
    found = find(select(study(seconds=[6.0, 12.0, 9.0])))
    (row,) = rows_of(found, 0)
    assert row["n"] == 3
    assert row["mean epoch, s"] == pytest.approx(3.0)
    assert row["test, s"] == 1.0
    assert row["total, s"] == pytest.approx(10.0), "without validation"
    assert (row["min"], row["max"]) == (pytest.approx(7.0), pytest.approx(13.0))
    assert row["range of epochs, s"] == 0.0, "the epochs of a made run are alike"
    assert row["95 % interval"] is None, "three runs have none"
    plot = found.plots[0]
    *runs, median = plot.figure.axes[0].lines
    assert sorted(float(line.get_ydata()[0]) for line in runs) == [2.0, 3.0, 4.0]
    assert np.allclose(median.get_ydata(), 3.0) and median.get_linewidth() > runs[0].get_linewidth()
    assert len(plot.data.rows) == 9


def on(device, seconds, **changes):
    """Return a run for each time, on this device."""
    size = changes.get("np", 1)
    gpus = {} if device == "cpu" else {"gpus": ["Tesla T4"] * size}
    return study(device, seconds=seconds, world={"devices": [device] * size, **gpus}, **changes)


def test_cpu_against_gpu():
    """Five times in epochs; (30 + 1) / (6 + 1) = 4.43 in all; the tests take the same."""
    found = find(select(on("cuda:0", [6.0] * 2), on("cpu", [30.0] * 2)))
    assert found.answer == "PyTorch, cnn, mnist takes 4.43 times as long on the CPU as on the GPU (n = 2 and 2)."
    assert [(row["mean epoch, s"], row["test, s"]) for row in rows_of(found, 0)] == [(10.0, 1.0), (2.0, 1.0)]
    other = find(select(on("cuda:0", [6.0], np=2), on("cpu", [30.0])))
    assert "as on the GPU" not in other.answer, "of different experiments there is no ratio"


@pytest.mark.parametrize("seconds", [0.0, math.nan])
def test_runs_without_times(seconds, plots):
    found = find(select(study(seconds=[seconds] * 2)))
    assert found.answer == "None of these runs has times." and not found.tables


def test_one_epoch_without_test_has_one_tick(plots):
    one = {"settings": {"training": {"epochs": 1}}, "totals": {"test_seconds": math.nan}}
    found = find(select(study(seconds=[6.0], **one)))
    assert rows_of(found, 0)[0]["total, s"] == 6.0
    ax = found.plots[0].figure.axes[0]
    low, high = ax.get_xlim()
    assert [tick for tick in ax.get_xticks() if low <= tick <= high] == [1.0]


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
