"""`python -m analysis scaling`: speedups and efficiencies by hand, equal accuracy, bases, models, projections."""

import numpy as np
import pytest
from analysis_builders import (
    IMAGES,
    PARAMETERS,
    SPREAD,
    made_run,
    made_runs,
    plot_of,
    rows_of,
    said,
    select,
    spread_runs,
)

from analysis.projection.measured import step_settings
from analysis.projection.ratio import speed_ratio
from analysis.questions.scaling.command import find
from analysis.questions.scaling.models import AMDAHL, EXCHANGE
from analysis.runs.table import runs_in
from common.config import config_from_dict
from common.errors import UserError
from common.run_folder.records import NotRecorded
from common.sites.table import read_sites


def asked(*groups, **options):
    """Return what is found in groups of runs."""
    return find(select(*groups), **options)


def rows_about(found, title, model):
    """Return the rows of a model of training time."""
    return [row for row in rows_of(found, title) if row["model"] == model.name]


# Speedup and efficiency


def test_where_equal_accuracy_is_not_shown_the_smallest_sufficient_margin_is_reported():
    wide = [0.77, 0.83, 0.79, 0.81, 0.8, 0.78, 0.82]
    groups = spread_runs("one", 100.0, accuracies=wide), spread_runs("two", 60.0, ranks=2, accuracies=wide[::-1])
    found = asked(*groups)
    (row,) = rows_of(found, "Speedup at equal accuracy")
    assert row["speedup at equal accuracy"] == "not shown" and row["raw speedup"] == pytest.approx(100 / 60)
    margin = rows_of(found, "Accuracy against the base")[1]["same within, points"] / 100
    assert "Equal accuracy is not shown within 0.5 points." in found.answer
    # What it says holds: just above it the accuracies are the same, just below they are not.
    for other, shown in ((margin + 1e-6, "same"), (margin - 1e-6, "not shown")):
        row = rows_of(asked(*groups, margin=other), "Accuracy against the base")[1]
        assert row[f"within {100 * other:g} points"] == shown


# Models and projections

COMPUTE, LATENCY, BANDWIDTH = 2e-3, 5e-4, 1e9


def seconds_of(ranks, *, weak=False, sent=4.0 * PARAMETERS, compute=COMPUTE, latency=LATENCY, bandwidth=BANDWIDTH):
    """Return the time by the formula, written out a second time."""
    updates = 2 * IMAGES / (64 * ranks if weak else 64)
    exchange = 2 * (ranks - 1) * latency + 2 * (ranks - 1) / ranks * sent / bandwidth
    return 2 * IMAGES * compute / ranks + updates * exchange


def by_formula(*sizes, weak=False, sent=4.0 * PARAMETERS, spread=SPREAD, **settings):
    """Return runs that take the time of the formula."""
    return [
        run
        for ranks in sizes
        for run in spread_runs(
            f"np{ranks}", seconds_of(ranks, weak=weak, sent=sent), ranks=ranks, spread=spread,
            global_batch=64 * ranks if weak else 64, **settings,
        )
    ]  # fmt: skip


def single(**seconds):
    """Return one run for each number of ranks, without noise: np1=100.0 is 100 s on one rank."""
    return [made_run(name, seconds=value, ranks=int(name[2:])) for name, value in seconds.items()]


@pytest.mark.parametrize(
    ("settings", "weak", "bytes_of_a_number"),
    [
        ({}, False, 4),
        ({}, True, 4),
        ({"device": {"compression": "fp16"}}, False, 2),
        ({"model": {"dtype": "float64"}}, False, 8),
        ({"model": {"dtype": "float64"}, "device": {"compression": "fp16"}}, False, 2),
        ({"device": {"mixed_precision": "bfloat16"}}, False, 4),  # weights and their gradients are float32
    ],
)
def test_compute_latency_and_bandwidth_are_found_again(settings, weak, bytes_of_a_number):
    config = config_from_dict({"model": {"model": "mlp"}, **settings})
    sent = float(bytes_of_a_number * PARAMETERS)
    found = asked(by_formula(1, 2, 4, 8, weak=weak, sent=sent, spread=SPREAD[:1], config=config))
    (row,) = rows_about(found, "Models", EXCHANGE)
    assert row["fitted to the training time"] == "2 ms per image, latency 500 µs, 1 GB/s"
    (row,) = rows_about(found, "Projection", EXCHANGE)
    assert (row["np"], row["projected training, s"]) == (16, pytest.approx(seconds_of(16, weak=weak, sent=sent)))


def test_a_serial_share_is_found_again_through_noise_and_none_is_negative():
    random = np.random.default_rng(3)
    runs = [
        made_run(f"np{p}-{seed}", seconds=100 * (0.1 + 0.9 / p) * random.lognormal(sigma=0.01), ranks=p, seed=seed)
        for p in (1, 2, 4, 8)
        for seed in range(20)
    ]
    (row,) = rows_about(asked(runs), "Models", AMDAHL)
    share = float(row["fitted to the training time"].split()[2])
    assert share == pytest.approx(10, abs=0.5)  # %
    (row,) = rows_about(asked(single(np1=100.0, np2=49.0, np4=24.0)), "Models", AMDAHL)  # more than the ideal
    assert row["fitted to the training time"] == "serial share 0.0 %"


def test_the_held_out_point_is_the_most_ranks_and_the_interval_is_as_wide_as_the_error_there():
    """20 + 80 / p, fitted to the first two, says 40 s where 44 were measured; where 60 were, nothing is projected."""
    found = asked(single(np1=100.0, np2=60.0, np4=44.0), project=8)
    (row,) = rows_about(found, "Models", AMDAHL)
    assert (row["fitted up to np"], row["held out, np"]) == (2, 4)
    assert row["error there, %"] == pytest.approx(100 * (40 / 44 - 1))
    (row,) = rows_about(found, "Projection", AMDAHL)
    low, high = (float(edge) for edge in row["95 % interval"].split(" to "))
    wider = 1 + 4 / 44
    assert low == pytest.approx(row["projected training, s"] / wider, abs=0.05)
    assert high == pytest.approx(row["projected training, s"] * wider, abs=0.05)
    missed = asked(single(np1=100.0, np2=60.0, np4=60.0))
    assert not [table for table in missed.tables if table.title.startswith("Projection")]
    assert "Amdahl: not projected because it misses the time on 4 ranks by -33 %" in said(missed)


@pytest.mark.parametrize(("sizes", "most"), [([1, 2, 4], 8), ([1, 2, 3], 4), ([2, 4, 16], 64), ([1, 7, 8], 9)])
def test_how_far_a_projection_may_go(sizes, most):
    runs = single(**{f"np{ranks}": 20 + 80 / ranks for ranks in sizes})
    found = asked(runs, project=most + 1)
    assert not [table for table in found.tables if table.title.startswith("Projection")]
    assert f"no projection to {most + 1} ranks: " in said(found) and f"it may go to {most}" in said(found)
    assert rows_about(asked(runs, project=most), "Projection", AMDAHL)


def test_runs_are_projected_and_marked_as_such_in_table_and_plot(plots):
    found = asked(by_formula(1, 2, 4, 8))
    (row,) = rows_about(found, "Projection: not measured", EXCHANGE)
    assert (row["np"], row["projected training, s"]) == (16, pytest.approx(seconds_of(16), rel=0.01))
    for column, true in (("95 % interval", seconds_of(16)), ("95 % interval of it", seconds_of(1) / seconds_of(16))):
        low, high = (float(edge) for edge in row[column].split(" to "))
        assert low < true < high
    assert "Projected, not measured: PyTorch, mlp, made, strong: 16 ranks at local would train in" in found.answer
    training = plot_of(found, "scaling-training").figure
    labels = [text.get_text() for text in training.legends[0].get_texts()]
    assert "projection, not measured, with 95 % interval" in labels


def test_a_projection_to_another_site_uses_its_figures():
    runs = by_formula(1, 2, 4, 8, site="thesis-machine")
    # By the projection of a step of the perceptron, whose overhead is the same on both GPUs: not by FP32 alone.
    step = step_settings(next(runs_in(select(runs).runs)))
    assert step
    faster = speed_ratio(**step, first=read_sites().gpus["v100"], second=read_sites().gpus["k20m"])
    assert 1 < faster.ratio < 0.9 * 15.7 / 3.5
    found = asked(runs, site="cte-power", project=4)
    assert f"{faster.ratio:.2f} times as fast" in said(found) and "assumption" in said(found)
    (row,) = rows_of(found, "Projection: not measured")
    assert (row["site"], row["model"]) == ("cte-power", EXCHANGE.name)
    expected = seconds_of(4, compute=COMPUTE / faster.ratio)
    assert row["projected training, s"] == pytest.approx(expected, rel=0.02)
    (row,) = rows_of(asked(runs, site="cte-power", project=8), "Projection")
    # Beyond the 4 GPUs of a node: 100 Gb/s.
    expected = seconds_of(8, compute=COMPUTE / faster.ratio, bandwidth=12.5e9)
    assert row["projected training, s"] == pytest.approx(expected, rel=0.1)
    there = asked(by_formula(1, 2, 4, 8), site="cte-power")  # from "local", whose GPUs nobody knows
    assert "the GPU is not known of what ran at local" in said(there)
    (note,) = [note for note in asked(runs, site="marenostrum5").notes if "no projection to marenostrum5" in note]
    assert "memory bandwidth" in note  # of a GPU that was made for it alone


LOST = NotRecorded("lost")


def test_a_base_without_a_time_is_refused():
    """Where its name picks one run of a cell."""
    runs = [*made_runs("alone", seconds=[10.0, 10.1]), made_run("untimed-r3", seconds=10.0, seed=3, totals=LOST)]
    runs += made_runs("pair", seconds=[6.0, 6.1], ranks=2)
    assert find(select(runs), base="alone-r1").tables
    with pytest.raises(UserError, match=r"the base has no time\. Received: --base untimed, untimed-r3\. Name a timed"):
        find(select(runs), base="untimed")
