"""`python -m analysis scaling`: speedups and efficiencies by hand, equal accuracy, bases, models, projections."""

import json
import math

import numpy as np
import pytest
from analysis_builders import IMAGES, PARAMETERS, made_record, made_run, made_runs, rows_of, select
from builders import make_epoch

from analysis.__main__ import main
from analysis.projection.measured import step_settings
from analysis.projection.ratio import speed_ratio
from analysis.questions.scaling.command import find
from analysis.questions.scaling.curves import studies_of, work_of
from analysis.questions.scaling.models import (
    AMDAHL,
    EXCHANGE,
    LARGEST_ERROR,
    Work,
    adapted,
    farthest,
    fit,
    held_out,
    projection,
)
from analysis.runs.cells import cells_of
from analysis.runs.table import runs_in
from common.config import config_from_dict
from common.run_folder.records import RunWriter
from common.sites.table import read_sites

SPREAD = (1.0, 1.01, 0.99, 1.005, 0.995, 1.002, 0.998)  # of seven runs, its median is 1


def runs_of(seconds, name, **settings):
    return made_runs(name, seconds=[seconds * one for one in SPREAD], **settings)


def asked(*groups, **options):
    """Return what is found in groups of runs."""
    return find(select(*groups), **options)


# Speedup and efficiency


def test_a_base_with_as_many_ranks_as_the_others_has_no_curve(plots):
    found = asked(runs_of(90.0, "one"), runs_of(45.0, "two", threads=2), base="one")
    assert len(rows_of(found, "Speedup over the base")) == 2 and found.plots == []


def test_speedup_and_efficiency_by_hand_with_the_base_in_words():
    found = asked(
        runs_of(90.0, "one", validation=8.0, test=2.0), runs_of(45.0, "two", validation=8.0, test=2.0, ranks=2)
    )
    base, two = rows_of(found, "Speedup over the base")
    # Pairs of a seed: (90 x + 10) / (45 x + 10) at x = 1; all of the seven are near 100 / 55.
    assert (base["scaling"], base["total, s"], base["training, s"]) == ("base", 100.0, 90.0)
    assert two["speedup"] == pytest.approx(100 / 55, rel=1e-3) and two["efficiency"] == pytest.approx(50 / 55, rel=1e-3)
    assert two["speedup in training"] == pytest.approx(2.0) and two["efficiency in training"] == pytest.approx(1.0)
    assert base["n"] == 7
    assert found.answer.startswith("PyTorch, mlp, made: at equal accuracy 2 ranks are 1.8")
    assert found.answer.endswith(" times as fast as 1 rank.")
    means = rows_of(found, "The same of means")
    assert means[1]["speedup"] == pytest.approx(100 / 55) and means[1]["efficiency"] == pytest.approx(100 / 110)


def test_strong_and_weak_are_named_and_both_may_share_one_base(plots):
    found = asked(
        runs_of(100.0, "one", global_batch=64),
        runs_of(60.0, "strong", ranks=2, global_batch=64),
        runs_of(52.0, "weak", ranks=2, global_batch=128),
        runs_of(80.0, "other", ranks=2, global_batch=32),
    )
    rows = rows_of(found, "Speedup over the base")
    assert [row["scaling"] for row in rows] == ["base", "strong", "weak", "other batch"]
    labels = [text.get_text() for text in found.plots[0].figure.legends[0].get_texts()]
    assert {"PyTorch, strong, batch 64", "PyTorch, weak, 64 per rank", "ideal, by devices"} <= set(labels)


def test_a_picture_of_many_curves_shows_the_first_of_each_framework_side_by_side(plots):
    """Forty curves do not fit: the picture says which are drawn, and their points stay between the ranks' ticks."""
    groups = [
        runs_of(100.0 / ranks, f"{framework}-{place}-{ranks}", ranks=ranks, framework=framework, site=f"site-{place}")
        for framework in ("keras", "torch")
        for place in range(20)
        for ranks in (1, 2)
    ]
    found = asked(*groups)
    assert len(rows_of(found, "Speedup over the base")) == 80
    plot = found.plots[0]
    assert "; the first 12 of 40 curves" in plot.figure.get_suptitle()
    series = {row[0] for row in plot.data.rows}
    assert len(series) == 12 and {"Keras, strong, batch 64, site-5", "PyTorch, strong, batch 64, site-0"} <= series
    left = plot.figure.axes[0]
    points = np.concatenate([line.get_xdata() for line in left.lines if line.get_marker() in "os"])
    near = np.abs(np.log2(points[np.isfinite(points)][:, None] / [1, 2]))
    assert near.min(axis=1).max() < 0.5  # of a power of two
    assert left.get_xlim()[0] < points.min() and points.max() < left.get_xlim()[1]


def test_each_batch_has_its_base():
    selection = select(
        runs_of(100.0, "small", global_batch=64),
        runs_of(80.0, "large", global_batch=256),
        runs_of(50.0, "small2", ranks=2, global_batch=64),
        runs_of(38.0, "large2", ranks=2, global_batch=256),
    )
    cells = cells_of(selection.runs)
    studies, alone = studies_of(cells, margin=0.005)
    assert not alone
    assert [(study.base.first.global_batch, [point.kind for point in study.points]) for study in studies] == [
        (64, ["strong"]),
        (256, ["strong"]),
    ]
    assert [study.points[0].speedup for study in studies] == pytest.approx([2.0, 80 / 38])


def test_cores_shared_out_among_ranks_are_no_more_devices():
    cores = [{"devices": "cpu", "threads": 2}, {"devices": "cpu", "threads": 1, "ranks": 2, "global_batch": 128}]
    found = asked(runs_of(10.0, "one", **cores[0]), runs_of(8.0, "two", **cores[1]))
    assert rows_of(found, "Speedup over the base")[1]["efficiency"] == pytest.approx(1.25)
    assert any("as many cores" in note for note in found.notes)


def test_runs_of_fewer_images_are_flagged():
    found = asked(runs_of(10.0, "one"), runs_of(9.0, "two", ranks=2))
    assert not any("not of the same work" in flag for flag in found.flags)
    half = runs_of(9.0, "two", ranks=2, steps=100)
    found = asked(runs_of(10.0, "one"), half)
    assert any("trained 12,800 and 6,400 images" in flag for flag in found.flags)


# Equal accuracy


def test_the_headline_is_the_fastest_of_the_same_accuracy_and_the_raw_one_is_next_to_it():
    found = asked(
        runs_of(100.0, "one", global_batch=128, accuracies=[0.79, 0.795, 0.8, 0.792, 0.797, 0.793, 0.796]),
        runs_of(55.0, "large", ranks=2, global_batch=256, accuracies=[0.7, 0.73, 0.71, 0.72, 0.715, 0.725, 0.705]),
        runs_of(62.5, "same", ranks=2, global_batch=128, accuracies=[0.791, 0.794, 0.799, 0.793, 0.797, 0.792, 0.797]),
    )
    (row,) = rows_of(found, "Speedup at equal accuracy")
    assert row["speedup at equal accuracy"] == pytest.approx(1.6) and row["by"] == "a batch of 128 (64 per rank)"
    assert row["raw speedup"] == pytest.approx(100 / 55) and row["its accuracy, %"] == pytest.approx(71.5)
    assert found.answer == (
        "PyTorch, mlp, made: at equal accuracy 2 ranks are 1.600 times as fast as 1 rank. Raw it is 1.818 times, "
        "accuracy 71.5 % against 79.5 %."
    )
    assert any("global batch 256: accuracy 71.5 %" in flag for flag in found.flags)


def test_where_equal_accuracy_is_not_shown_the_smallest_sufficient_margin_is_reported():
    wide = [0.77, 0.83, 0.79, 0.81, 0.8, 0.78, 0.82]
    selection = select(runs_of(100.0, "one", accuracies=wide), runs_of(60.0, "two", ranks=2, accuracies=wide[::-1]))
    found = find(selection)
    (row,) = rows_of(found, "Speedup at equal accuracy")
    assert row["speedup at equal accuracy"] == "not shown" and row["raw speedup"] == pytest.approx(100 / 60)
    margin = rows_of(found, "Accuracy against the base")[1]["same within, points"]
    assert "Equal accuracy is not shown within 0.5 points." in found.answer
    # What it says holds: just above it the accuracies are the same, just below they are not.
    for above, shown in ((1e-6, "same"), (-1e-6, "not shown")):
        again = find(selection, margin=margin / 100 + above)
        assert (
            rows_of(again, "Accuracy against the base")[1][f"within {100 * (margin / 100 + above):g} points"] == shown
        )


def test_an_accuracy_that_is_no_number_is_not_the_same_and_few_runs_are_reported_as_few(plots):
    found = asked(
        runs_of(10.0, "one"),
        [made_run("two", seconds=5.0, ranks=2, accuracy=math.nan, seed=9)],
        [made_run("four", seconds=3.0, ranks=4, accuracy=0.9, seed=9)],
    )
    assert "4 ranks are 3.333 times as fast (too few runs for an interval) as 1 rank." in found.answer
    assert "Equal accuracy is not shown: too few runs, or without an accuracy." in found.answer


# Bases


def machines():
    return select(
        runs_of(1200.0, "slow", devices="cpu"),
        runs_of(100.0, "fast"),
        runs_of(60.0, "fast2", ranks=2, global_batch=128),
    )


def test_another_machine_can_be_the_base_and_then_it_is_no_scaling(plots):
    found = find(machines(), base="cpu/1")
    rows = rows_of(found, "Speedup over the base")
    assert [row["scaling"] for row in rows] == ["base", *["speedup over that machine"] * 2]
    assert [row["speedup"] for row in rows] == pytest.approx([1.0, 12.0, 20.0])
    assert [row["efficiency"] for row in rows[1:]] == [None, None]
    assert "2 ranks are 20.000 times as fast as 1 rank of local, cpu." in found.answer
    assert any("device: cpu and gpu" in flag for flag in found.flags)
    assert [plot.name for plot in found.plots] == ["scaling-machines", "scaling-training-machines"]


def test_the_machine_of_the_base_scales_next_to_the_others(plots):
    found = find(machines(), base="fast-r/1")
    assert [row["scaling"] for row in rows_of(found, "Speedup over the base")] == [
        "base", "weak", "base", "speedup over that machine",
    ]  # fmt: skip
    assert {"scaling", "scaling-machines"} <= {plot.name for plot in found.plots}


def test_names_pick_some_runs_of_a_cell_as_the_base():
    runs = [*runs_of(1000.0, "slow", devices="cpu"), made_run("again-r1", seconds=3000.0, devices="cpu", seed=8)]
    found = asked(runs, runs_of(100.0, "fast"), base="again/1")
    base, fast = rows_of(found, "Speedup over the base")
    assert (base["n"], base["total, s"], fast["speedup"]) == (1, 3000.0, pytest.approx(30.0))


def test_one_np_alone_makes_no_speedup(plots):
    for runs in (runs_of(10.0, "one"), [made_run("one", seconds=0.0)], [made_run("one", seconds=math.nan)]):
        found = asked(runs)
        assert "no speedup can be computed" in found.answer and not found.tables and not found.plots


def test_runs_without_time_are_left_out(plots):
    runs = [*runs_of(10.0, "one"), *runs_of(5.0, "two", ranks=2), made_run("zero", seconds=0.0, ranks=2, seed=77)]
    found = asked(runs)
    assert rows_of(found, "Speedup over the base")[1]["n"] == 7
    assert any("took no time" in flag for flag in found.flags)


def test_a_single_run_each_gives_a_speedup_without_interval():
    found = asked([made_run("one", seconds=10.0)], [made_run("two", seconds=8.0, ranks=2)])
    row = rows_of(found, "Speedup over the base")[1]
    assert (row["speedup"], row["95 % interval"]) == (pytest.approx(1.25), None)
    assert "too few runs for an interval" in found.answer


# Models

TRUE = {"compute": 2e-3, "latency": 5e-4, "bandwidth": 1e9}


def work(*, weak=False):
    return Work(images=2.0 * IMAGES, batch=64, weak=weak, gradient_bytes=4.0 * PARAMETERS)


def true_seconds(ranks, *, weak=False, sent=4.0 * PARAMETERS):
    """Return the time by the formula, written out a second time."""
    updates = 2 * IMAGES / (64 * ranks if weak else 64)
    exchange = 2 * (ranks - 1) * TRUE["latency"] + 2 * (ranks - 1) / ranks * sent / TRUE["bandwidth"]
    return 2 * IMAGES * TRUE["compute"] / ranks + updates * exchange


@pytest.mark.parametrize("weak", [False, True])
def test_compute_latency_and_bandwidth_are_found_again(weak):
    ranks = [1, 2, 4, 8]
    found = fit(EXCHANGE, ranks, [true_seconds(p, weak=weak) for p in ranks], work(weak=weak))
    compute, latency, per_byte = found.values
    assert (compute, latency, 1 / per_byte) == (
        pytest.approx(TRUE["compute"]), pytest.approx(TRUE["latency"]), pytest.approx(TRUE["bandwidth"]),
    )  # fmt: skip
    assert found.seconds([16])[0] == pytest.approx(true_seconds(16, weak=weak))
    assert "2 ms per image, latency 500 µs, 1 GB/s" in found.words()


@pytest.mark.parametrize(
    ("settings", "bytes_of_a_number"),
    [
        ({}, 4),
        ({"device": {"compression": "fp16"}}, 2),
        ({"model": {"dtype": "float64"}}, 8),
        ({"model": {"dtype": "float64"}, "device": {"compression": "fp16"}}, 2),
        ({"device": {"mixed_precision": "bfloat16"}}, 4),  # weights and their gradients are float32
    ],
)
def test_the_bandwidth_found_is_that_of_what_is_sent(settings, bytes_of_a_number):
    ranks, sent = [1, 2, 4, 8], bytes_of_a_number * PARAMETERS
    config = config_from_dict({"model": {"model": "mlp"}, **settings})
    runs = select(
        made_runs("one", seconds=[2.0], config=config), made_runs("two", seconds=[1.0], ranks=2, config=config)
    )
    (study,), _ = studies_of(cells_of(runs.runs), margin=0.005)
    of_runs = work_of(study, "strong")
    assert of_runs is not None and of_runs.gradient_bytes == sent
    found = fit(EXCHANGE, ranks, [true_seconds(p, sent=sent) for p in ranks], of_runs)
    assert found is not None and 1 / found.values[2] == pytest.approx(TRUE["bandwidth"])


def test_a_serial_share_is_found_again_through_noise_and_none_is_negative():
    random = np.random.default_rng(3)
    ranks = [p for p in (1, 2, 4, 8) for _ in range(20)]
    seconds = [100 * (0.1 + 0.9 / p) * random.lognormal(sigma=0.01) for p in ranks]
    found = fit(AMDAHL, ranks, seconds, work())
    assert found is not None and found.values[0] / found.values.sum() == pytest.approx(0.1, abs=0.005)
    faster = fit(AMDAHL, [1, 2, 4], [100.0, 49.0, 24.0], work())  # more than the ideal
    assert faster is not None and faster.values[0] == 0.0


def test_a_model_with_more_unknowns_than_points_is_not_fitted():
    assert fit(EXCHANGE, [1, 2, 2], [10.0, 6.0, 6.1], work()) is None
    assert fit(AMDAHL, [2, 2], [6.0, 6.1], work()) is None
    assert held_out(EXCHANGE, [1, 2, 4], [10.0, 6.0, 4.0], work()) is None
    assert held_out(AMDAHL, [1, 1], [10.0, 11.0], work()) is None


def test_the_held_out_point_is_the_most_ranks_and_no_part_of_the_fit():
    judged = held_out(AMDAHL, [1, 2, 4], [100.0, 60.0, 50.0], work())  # 20 + 80 / p says 40 where 50 was measured
    assert (judged.fitted_to, judged.ranks, judged.error) == (2, 4, pytest.approx(-0.2))


@pytest.mark.parametrize(
    ("ranks", "most"), [([1, 2, 4], 8), ([1, 2, 3], 4), ([2, 4, 16], 64), ([1, 2], 2), ([1], 1), ([1, 7, 8], 9)]
)
def test_how_far_a_projection_may_go(ranks, most):
    assert farthest(ranks) == most


def test_a_projection_contains_the_truth_and_is_limited():
    random = np.random.default_rng(5)
    ranks = [p for p in (1, 2, 4, 8) for _ in range(5)]
    seconds = [true_seconds(p) * random.lognormal(sigma=0.01) for p in ranks]
    found = projection(EXCHANGE, ranks, seconds, work(), to=16)
    assert found.seconds_interval.contains(true_seconds(16)) and found.seconds_interval.contains(found.seconds)
    assert found.speedup_interval.contains(true_seconds(1) / true_seconds(16))
    assert found == projection(EXCHANGE, ranks, seconds, work(), to=16)  # the same again
    assert projection(EXCHANGE, ranks, seconds, work(), to=17) is None


def test_a_model_that_misses_the_held_out_point_projects_nothing():
    ranks, seconds = [1, 2, 4], [100.0, 60.0, 60.0]
    judged = held_out(AMDAHL, ranks, seconds, work())
    assert judged is not None and abs(judged.error) > LARGEST_ERROR
    assert projection(AMDAHL, ranks, seconds, work(), to=8) is None


def test_an_interval_is_as_wide_as_the_error_that_was_held_out():
    ranks, seconds = [1, 2, 4], [100.0, 60.0, 44.0]  # without noise; 40 is predicted for 4
    found = projection(AMDAHL, ranks, seconds, work(), to=8)
    wider = 1 + 4 / 44
    assert found.seconds_interval.low == pytest.approx(found.seconds / wider)
    assert found.seconds_interval.high == pytest.approx(found.seconds * wider)


def test_another_machine_computes_and_exchanges_by_its_figures():
    ranks = [1, 2, 4, 8]
    here = fit(EXCHANGE, ranks, [true_seconds(p) for p in ranks], work())
    there = adapted(here, compute=4.0, bandwidth=None)
    exchange = true_seconds(4) - 2 * IMAGES * TRUE["compute"] / 4
    assert there.seconds([4])[0] == pytest.approx(2 * IMAGES * TRUE["compute"] / 16 + exchange)
    assert adapted(here, compute=4.0, bandwidth=1e8).seconds([4])[0] > there.seconds([4])[0]


# Projections of runs


def scaled(*sizes, **settings):
    return [run for p in sizes for run in runs_of(true_seconds(p), f"np{p}", ranks=p, **settings)]


def test_runs_are_projected_and_marked_as_such_in_table_and_plot(plots):
    found = asked(scaled(1, 2, 4, 8))
    row = next(row for row in rows_of(found, "Projection: not measured") if row["model"] == EXCHANGE.name)
    assert (row["np"], row["projected training, s"]) == (16, pytest.approx(true_seconds(16), rel=0.01))
    assert row["95 % interval"] and row["95 % interval of it"]
    assert "Projected, not measured: PyTorch, mlp, made, strong: 16 ranks at local would train in" in found.answer
    judged = next(row for row in rows_of(found, "Models") if row["model"] == EXCHANGE.name)
    assert (judged["held out, np"], judged["fitted up to np"]) == (8, 4) and abs(judged["error there, %"]) < 3
    training = next(plot for plot in found.plots if plot.name == "scaling-training")
    labels = [text.get_text() for text in training.figure.legends[0].get_texts()]
    assert "projection, not measured, with 95 % interval" in labels
    assert training.figure.axes[0].get_xscale() == "log"
    assert not any("projection" in text.get_text() for text in found.plots[0].figure.legends[0].get_texts())


def test_a_projection_from_single_runs_notes_that_its_interval_lacks_their_noise():
    alone = [made_run(f"np{p}", seconds=true_seconds(p), ranks=p) for p in (1, 2, 4, 8)]
    assert any("only one run on 1, 2, 4, 8 ranks" in note for note in asked(alone).notes)
    assert not any("only one run" in note for note in asked(scaled(1, 2, 4, 8)).notes)


def test_other_strategies_have_curves_of_their_own_and_no_models():
    averaging = {"strategy": "averaging", "average_every": 8, "average_state": False}
    plain, other = scaled(1, 2, 4), scaled(1, 2, 4, strategy=averaging)
    found = asked(plain, other)
    name = "PyTorch, mlp, made, averaging, every 8, no average state"
    bases = [row for row in rows_of(found, "Speedup over the base") if row["scaling"] == "base"]
    assert len(bases) == 2
    assert {row["framework, model, data set"] for row in rows_of(found, "Models")} == {"PyTorch, mlp, made"}
    reason = "the models describe ranks that average gradients at every update"
    assert f"{name}, strong scaling: no projection is supported: {reason}" in found.notes


def test_a_projection_too_far_or_from_too_little_is_refused_in_a_sentence():
    found = asked(scaled(1, 2, 4, 8), project=64)
    assert not any(table.title.startswith("Projection") for table in found.tables)
    assert any("no projection to 64 ranks" in note and "it may go to 16" in note for note in found.notes)
    found = asked(scaled(1, 2), project=4)
    assert any("no projection is supported: there are 2 numbers of ranks (1, 2)" in note for note in found.notes)
    assert not any(table.title.startswith(("Projection", "Models")) for table in found.tables)
    found = asked(scaled(1, 2, 4))
    assert any(f"{EXCHANGE.name}: not tested on a point held out" in note for note in found.notes)


def test_a_projection_to_another_site_uses_its_figures():
    selection = select(scaled(1, 2, 4, 8, site="thesis-machine"))
    found = find(selection, site="cte-power", project=4)
    (row,) = rows_of(found, "Projection: not measured")
    compute = 2 * IMAGES * TRUE["compute"] / 4
    # By the projection of a step of the perceptron, whose overhead is the same on both GPUs: not by FP32 alone.
    step = step_settings(next(runs_in(selection.runs)))
    assert step
    faster = speed_ratio(**step, first=read_sites().gpus["v100"], second=read_sites().gpus["k20m"])
    assert 1 < faster.ratio < 0.9 * 15.7 / 3.5
    assert any(f"{faster.ratio:.2f} times as fast" in note and "assumption" in note for note in found.notes)
    assert (row["site"], row["model"]) == ("cte-power", EXCHANGE.name)
    assert row["projected training, s"] == pytest.approx(compute / faster.ratio + true_seconds(4) - compute, rel=0.02)
    low, high = (float(edge) for edge in row["95 % interval"].split(" to "))
    assert low < compute / faster.high + true_seconds(4) - compute and high > row["projected training, s"]
    (row,) = rows_of(asked(scaled(1, 2, 4, 8, site="thesis-machine"), site="cte-power", project=8), "Projection")
    passes = 2 * 7 / 8 * 4 * PARAMETERS * 2 * IMAGES / 64
    # Beyond the 4 GPUs of a node: 100 Gb/s.
    expected = 2 * IMAGES * TRUE["compute"] / 8 / faster.ratio + 14 * TRUE["latency"] * 200 + passes / 12.5e9
    assert row["projected training, s"] == pytest.approx(expected, rel=0.1)
    found = asked(scaled(1, 2, 4, 8), site="cte-power")  # at "local", whose GPUs nobody knows
    assert any("the GPU is not known of what ran at local" in note for note in found.notes)
    found = asked(scaled(1, 2, 4, 8, site="thesis-machine"), site="marenostrum5")  # made for it alone
    assert any("no projection to marenostrum5: " in note and "memory bandwidth" in note for note in found.notes)


# The command


def write(folder, **settings):
    writer = RunWriter.create(folder, made_record(**settings))
    for epoch in (1, 2):
        writer.add_epoch(make_epoch(epoch))
    writer._ended.set()


def test_the_command_shows_plots_and_refuses_with_strict(tmp_path, capsys, plots):
    runs = tmp_path / "runs"
    for seed in range(1, 8):
        write(runs / f"one-r{seed}", seconds=10.0 + 0.01 * seed, seed=seed)
        write(runs / f"two-r{seed}", seconds=5.0 + 0.01 * seed, seed=seed, ranks=2, accuracy=0.5 + 0.001 * seed)
    arguments = ["scaling", str(runs), "--plots", str(tmp_path / "plots"), "--format", "json"]
    assert main(arguments) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["name"] == "scaling" and shown["tables"][0]["rows"][1]["scaling"] == "strong"
    assert {file.name for file in (tmp_path / "plots").iterdir()} == {
        f"scaling{of}.{kind}" for of in ("", "-training") for kind in ("csv", "png", "svg")
    }  # fmt: skip
    assert main([*arguments, "--strict"]) == 2
    assert "not one at equal accuracy" in capsys.readouterr().err
