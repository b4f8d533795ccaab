"""`python -m analysis strategies`: the comparison with all-reduce, equal time, bytes, staleness, plots, claims."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from analysis_builders import made_record, plot_of, rows_of, select
from builders import make_environment, make_status

from analysis.questions.strategies.claims import TESTS, read_claims
from analysis.questions.strategies.command import find
from analysis.questions.strategies.ways import efficiency as efficiency_of
from analysis.questions.strategies.ways import ranks_alone, staleness_at, staleness_of
from analysis.runs.cells import cells_of
from analysis.runs.published import read_published
from analysis.runs.table import FIGURES, LoadedRun
from common.measurement.interference import Interference
from common.measurement.memory_limit import OVER_LIMIT
from common.run_folder.records import ModelRecord, NotRecorded, World, now
from common.run_folder.sharing import MeasuredGroups, PassRecord, SharingRecord, StageRecord, WorkerShare

SPREAD = (1.0, 1.01, 0.99, 1.005, 0.995, 1.002, 0.998)  # of seven runs
EVERY8 = {"strategy": "averaging", "average_every": 8}
EVERY128 = {"strategy": "averaging", "average_every": 128}
STEPS = 50  # of an epoch


def sharing_of(*, sent=4e6, seconds=1.0, staleness=None):
    """Return what two workers exchanged in 100 updates of 64 images together."""
    workers = [
        WorkerShare(batch_size=32, images=3200, updates=100, sent_bytes=sent, received_bytes=sent,
                    exchange_seconds=seconds if isinstance(seconds, NotRecorded) else seconds * (worker + 1))
        for worker in range(2)
    ]  # fmt: skip
    return SharingRecord(workers=workers, formula="ring: 2 (N-1)/N S", formula_bytes=4e6, staleness=staleness)


def memory_of(*ranks):
    """Return what was seen on a quiet host, with the most bytes of each rank."""
    return Interference(
        load_average_before=[0.1],
        other_processes_before=[],
        throttled_cores=None,
        peak_memory_bytes=list(ranks),
        peak_device_memory_bytes=[None] * len(ranks),
        memory_before_bytes=[rank // 4 for rank in ranks],
    )


def runs_of(
    name,
    seconds,
    *,
    accuracy=0.9,
    curve=(0.5, 0.8, 0.9),
    framework="torch",
    ranks=2,
    steps=STEPS,
    spread=SPREAD,
    **changes,
):
    """Return runs of seeds 1, 2, ... with validations after equal parts of their training."""
    runs = []
    for seed, factor in enumerate(spread, start=1):
        record = made_record(
            seconds=seconds * factor, ranks=ranks, accuracy=accuracy + 0.0001 * seed, seed=seed, epochs=len(curve),
            framework=framework, steps=steps * len(curve), **changes,
        )  # fmt: skip
        figures = np.full((len(curve), len(FIGURES)), np.nan)
        figures[:, FIGURES.index("validation_accuracy")] = curve
        figures[:, FIGURES.index("training_seconds")] = seconds * factor / len(curve)
        figures[:, FIGURES.index("steps")] = STEPS
        runs.append(LoadedRun(Path(f"{framework}-{name}-r{seed}"), record, "finished", figures))
    return runs


def asked(*groups):
    """Return what is found in groups of runs."""
    return find(select(*groups))


def row_of(found, title, strategy):
    """Return the only row of a strategy in a table."""
    (row,) = [row for row in rows_of(found, title) if row["strategy"] == strategy]
    return row


def claim_of(found, start):
    """Return the first row of the claim that starts so."""
    return next(row for row in rows_of(found, "What documents claim") if row["claim"].startswith(start))


def test_strategies_are_compared_with_allreduce_by_seed():
    found = asked(
        runs_of("ring", 100.0, sharing=sharing_of()),
        runs_of("often", 80.0, strategy=EVERY8),
        runs_of("seldom", 50.0, strategy=EVERY128, accuracy=0.8),
    )
    often = row_of(found, "Against plain allreduce", "averaging, every 8")
    assert often["time / allreduce"] == pytest.approx(0.8) and often["verdict"] == "faster"
    assert often["p"] == pytest.approx(2 / 2**7) and often["within 0.5 points"] == "same"
    seldom = row_of(found, "Against plain allreduce", "averaging, every 128")
    assert seldom["accuracy - allreduce's, points"] == pytest.approx(-10.0)
    assert (seldom["within 0.5 points"], seldom["n"]) == ("different", 7)
    assert found.answer == ("PyTorch: take averaging, every 8, 1.25 times as fast as allreduce at the same accuracy.")
    assert not [flag for flag in found.flags if "strategy" in flag]


def test_advice_is_one_sentence_per_framework():
    found = asked(
        runs_of("ring", 100.0),
        runs_of("seldom", 50.0, strategy=EVERY128, accuracy=0.8),
        runs_of("ring", 100.0, framework="keras"),
        runs_of("often", 120.0, strategy=EVERY8, framework="keras"),
    )
    nothing = "take allreduce: nothing is shown to be faster at the same accuracy, to within 0.5 points"
    assert found.answer == f"PyTorch: {nothing}; averaging is faster, its accuracy another. Keras: {nothing}."
    assert row_of(found, "Against plain allreduce", "averaging, every 8")["verdict"] == "slower"


def test_the_exchange_is_compared_with_plain_allreduce_whatever_its_tuning():
    own, slow = (make_environment(variables={"HOROVOD_CYCLE_TIME": time}) for time in ("0.2", "5"))
    found = asked(
        runs_of("slow", 120.0, environment=slow, sharing=sharing_of()),
        runs_of("each", 110.0, environment=own, device={"gradient_groups": "each"}),
        runs_of("default", 100.0, environment=own),
    )
    rows = rows_of(found, "Against plain allreduce")
    assert [(row["strategy"], row["time / allreduce"]) for row in rows] == [
        ("allreduce, HOROVOD_CYCLE_TIME 5", pytest.approx(1.2)),
        ("allreduce, gradient groups each", pytest.approx(1.1)),
    ]
    assert row_of(found, "Time, accuracy", "allreduce, HOROVOD_CYCLE_TIME 5")["bytes/update"] == 16e6
    assert not [flag for flag in found.flags if "HOROVOD" in flag and "against" in flag], "they are the question"


def test_what_runs_have_measured_of_groups_is_named():
    auto = runs_of("auto", 90.0, device={"gradient_groups": "auto"})
    choices = ["each", "each", "2"]
    auto = [
        replace(run, record=replace(run.record, groups=MeasuredGroups(chosen=chosen)))
        for run, chosen in zip(auto, choices, strict=False)
    ]
    found = asked(auto, runs_of("default", 100.0)[: len(choices)])
    (row,) = rows_of(found, "Against plain allreduce")
    assert row["strategy"] == "allreduce, gradient groups auto (each in 2 runs, 2 in 1 run)"


def test_many_comparisons_are_reported_to_find_some_by_chance():
    ring, often = runs_of("ring", 100.0), runs_of("often", 80.0, strategy=EVERY8)
    assert not any("by chance" in note for note in asked(ring, often).notes)
    found = asked(ring, often, runs_of("seldom", 50.0, strategy=EVERY128))
    (note,) = [note for note in found.notes if "by chance" in note]
    assert note.startswith("2 comparisons, each at 95 %")


def test_what_has_not_learned_is_not_advised():
    found = asked(runs_of("ring", 100.0, accuracy=0.1), runs_of("often", 80.0, strategy=EVERY8, accuracy=0.1))
    assert found.answer == (
        "PyTorch: averaging, every 8 is 1.25 times as fast as allreduce, but neither has learned: both guess."
    )


def test_too_few_runs_decide_nothing():
    few = SPREAD[:2]
    found = asked(runs_of("ring", 100.0, spread=few), runs_of("often", 50.0, strategy=EVERY8, spread=few))
    assert row_of(found, "Against plain allreduce", "averaging, every 8")["verdict"] == "too few runs"
    assert found.answer.startswith("PyTorch: take allreduce")


def test_runs_of_allreduce_alone_say_nothing(plots):
    found = asked(runs_of("ring", 100.0), runs_of("one", 150.0, ranks=1))
    assert not found.tables and not found.plots
    assert found.answer.startswith("No run shares its work in another way")


def test_figures_of_what_was_exchanged():
    memory = memory_of(200_000_000, 300_000_000)
    found = asked(
        runs_of("ring", 100.0, sharing=sharing_of(seconds=10.0), isolation=memory),
        runs_of("often", 80.0, strategy=EVERY8, sharing=sharing_of(sent=NotRecorded("hidden"))),
    )
    ring = row_of(found, "Time, accuracy", "allreduce")
    # 2 workers x 100 updates x (4 + 4) MB / 6400 images; of the formula 2 x 100 x 4 MB.
    assert (ring["bytes/image"], ring["by formula"]) == (250_000.0, 125_000.0)
    assert ring["exchange, %"] == pytest.approx(15.0)  # mean of 10 and 20 s of 100 s
    assert (ring["memory per rank, MB"], ring["staleness: median"], ring["joules"]) == (300.0, None, None)
    often = row_of(found, "Time, accuracy", "averaging, every 8")
    assert (often["bytes/image"], often["by formula"]) == (None, 125_000.0)


def test_why_an_exchange_was_not_measured_is_a_note():
    def notes(seconds):
        often = runs_of("often", 80.0, strategy=EVERY8, sharing=sharing_of(seconds=seconds))
        found = asked(runs_of("ring", 100.0, sharing=sharing_of()), often)
        return [note for note in found.notes if note.startswith("exchange, %, is empty")]

    assert notes(NotRecorded("they overlap")) == ["exchange, %, is empty where it was not measured: they overlap"]
    assert notes(1.0) == []


def test_staleness_is_that_of_all_pushes(plots):
    lags = {"0": 50, "1": 44, "3": 5, "40": 1}
    runs = runs_of("free", 80.0, sharing=sharing_of(staleness=lags), spread=SPREAD[:2], strategy=EVERY8)
    (cell,) = cells_of(select(runs).runs)
    counts = staleness_of(cell)
    assert counts == {0: 100, 1: 88, 3: 10, 40: 2}
    assert [staleness_at(counts, share) for share in (0.5, 0.95, 1.0)] == [0, 3, 40]
    found = asked(runs_of("ring", 100.0), runs)
    row = row_of(found, "Time, accuracy", "averaging, every 8")
    assert (row["staleness: median"], row["95 % of pushes"], row["most"]) == (0, 3, 40)
    assert [row[2] for row in plot_of(found, "strategies-staleness").data.rows] == [100, 88, 10, 2]


def test_staleness_with_and_without_a_straggler_are_panels_of_their_own(plots):
    server = {"strategy": "server", "servers": 1, "staleness": "none"}
    few = SPREAD[:1]
    found = asked(
        runs_of("free", 80.0, strategy=server, sharing=sharing_of(seconds=10.0, staleness={"1": 9}), spread=few),
        runs_of(
            "free-2",
            90.0,
            strategy=server,
            sharing=sharing_of(seconds=9.0, staleness={"2": 5}),
            spread=few,
            balance=slow(2),
        ),
    )
    assert len(plot_of(found, "strategies-staleness").figure.axes) == 2
    parts = [row[1:] for row in plot_of(found, "strategies-parts").data.rows]
    assert parts == [
        ["computing, or waiting for work", pytest.approx(81.25)], ["waiting and sending", pytest.approx(18.75)],
        ["computing, or waiting for work", pytest.approx(85.0)], ["waiting and sending", pytest.approx(15.0)],
    ]  # fmt: skip
    assert {row["strategy"] for row in rows_of(found, "Time, accuracy")} == {"server, servers 1, staleness none"}


def test_equal_time_is_cut_from_the_same_runs():
    found = asked(
        runs_of("ring", 120.0, curve=(0.4, 0.8, 0.9), spread=SPREAD[:1] * 2),
        runs_of("often", 60.0, curve=(0.5, 0.6, 0.7), strategy=EVERY8, spread=SPREAD[:1] * 2),
        runs_of("slow", 300.0, strategy=EVERY128, spread=SPREAD[:1] * 2),
    )
    # After 60 s: all-reduce is halfway between its validations at 40 and 80 s, averaging at its end.
    ring = row_of(found, "At equal time", "allreduce")
    assert ring["at, s"] == 60.0 and ring["validation accuracy, %"] == pytest.approx(60.0)
    (note,) = [note for note in found.notes if "had not validated" in note]
    assert note.endswith("averaging, every 128 had not validated after 60.00 s")
    often = row_of(found, "At equal time", "averaging, every 8")
    assert often["validation accuracy, %"] == pytest.approx(70.0)
    assert often["minus allreduce's, points"] == pytest.approx(10.0)


def test_plots_have_their_data_and_what_is_missing_is_a_note(plots):
    found = asked(
        runs_of("ring", 100.0, sharing=sharing_of(seconds=10.0)),
        runs_of("often", 80.0, strategy=EVERY8),
        runs_of("seldom", 50.0, strategy=EVERY128, accuracy=0.8),
    )
    assert [plot.name for plot in found.plots] == [
        "strategies-accuracy-time", "strategies-accuracy-images", "strategies-interval", "strategies-parts",
    ]  # fmt: skip
    notes = [note for note in found.notes if note.startswith("no plot of")]
    assert [note.partition(":")[0] for note in notes] == [
        "no plot of time against a straggler's factor", "no plot of staleness",
        "no plot of the schedule of a pipeline", "no plot of waiting in pipelines against the formula",
        "no plot of memory against time",
    ]  # fmt: skip
    (ax,) = plot_of(found, "strategies-accuracy-images").figure.axes
    assert [list(line.get_xdata()) for line in ax.get_lines()] == [[3200, 6400, 9600]] * 3
    assert list(ax.get_lines()[0].get_ydata()) == pytest.approx([50.0, 80.0, 90.0])
    (ax,) = plot_of(found, "strategies-accuracy-time").figure.axes
    assert list(ax.get_lines()[1].get_xdata()) == pytest.approx([80 / 3, 160 / 3, 80.0])
    accuracy, seconds = plot_of(found, "strategies-interval").figure.axes
    assert list(accuracy.get_lines()[0].get_xdata()) == [8.0, 128.0]
    assert list(seconds.get_lines()[0].get_ydata()) == pytest.approx([80.0, 50.0])
    parts = {row[1]: row[2] for row in plot_of(found, "strategies-parts").data.rows}
    assert parts == {"computing": pytest.approx(85.0), "waiting for data": 0.0, "waiting and sending": 15.0}


@pytest.mark.parametrize(
    ("alone", "efficiency"),
    [
        ({}, 0.75),  # 150 s / (2 x 100 s)
        ({"global_batch": 32, "steps": 2 * STEPS}, None),  # as many images in other batches
        ({"device": {"mixed_precision": "bfloat16"}}, None),  # other settings
        ({"framework": "keras"}, None),
        ({"curve": (0.5, 0.8)}, None),  # another number of images
        ({"balance": {"slow": "0:2", "slow_is_subject": True}}, None),
    ],
)
def test_the_efficiency_is_that_against_one_rank_on_the_same_work(alone, efficiency):
    selection = select(runs_of("alone", 150.0, ranks=1, **alone), runs_of("ring", 100.0))
    cells = cells_of(selection.runs)
    assert efficiency_of(cells[1], ranks_alone(cells)) == (efficiency and pytest.approx(efficiency))


def test_the_efficiency_is_in_the_table_where_one_rank_did_the_work_alone():
    ways = [runs_of("ring", 100.0), runs_of("often", 80.0, strategy=EVERY8)]
    found = asked(runs_of("alone", 150.0, ranks=1), *ways)
    assert row_of(found, "Time, accuracy", "allreduce")["efficiency, %"] == pytest.approx(75.0)
    assert row_of(found, "Time, accuracy", "averaging, every 8")["efficiency, %"] == pytest.approx(100 * 150 / 160)
    assert row_of(asked(*ways), "Time, accuracy", "allreduce")["efficiency, %"] is None


def pipeline(*, bytes_sent, memory):
    """Return the settings and the record of a pipeline of two stages, each of which computed one microbatch."""
    passes = [PassRecord(is_forward=kind, microbatch=0, start=0.001 * kind, end=0.002) for kind in (True, False)]
    stages = [
        StageRecord(first_layer=first, last_layer=last, parameters=10, multiply_adds=10, held_microbatches=1,
                    waiting_seconds=1.0, passes=passes)
        for first, last in (("flatten", "fc1"), ("sigmoid1", "fc2"))
    ]  # fmt: skip
    return {
        "strategy": {"strategy": "layers"},
        "parts": {"stages": 2, "microbatches": 5},
        "sharing": replace(sharing_of(sent=bytes_sent), pipeline=stages),
        "isolation": memory_of(memory, memory // 2),
    }


def test_a_model_in_stages_has_its_bubble_its_schedule_and_its_memory(plots):
    ring = runs_of("ring", 100.0, sharing=sharing_of(), isolation=memory_of(400_000_000, 400_000_000))
    found = asked(ring, runs_of("layers", 150.0, **pipeline(bytes_sent=100.0, memory=300_000_000)))
    row = row_of(found, "Time, accuracy", "layers, stages 2, microbatches 5")
    assert row["bubble, %"] == pytest.approx(100 / 6)
    assert row["waiting, %"] == pytest.approx(100 / 150)
    assert row["memory per rank, MB"] == pytest.approx(300.0)
    assert row_of(found, "Time, accuracy", "allreduce")["bubble, %"] is None
    passes = plot_of(found, "strategies-schedule").data.rows
    assert [one[1:4] for one in passes] == [
        [0, 0, "forward"], [0, 0, "backward"], [1, 0, "forward"], [1, 0, "backward"]
    ]  # fmt: skip
    assert [one[2:4] for one in plot_of(found, "strategies-memory").data.rows] == [
        [100.0, 300.0], [150.0, 225.0]
    ]  # fmt: skip
    assert [one[2:] for one in plot_of(found, "strategies-bubble").data.rows] == [
        [2, pytest.approx(100 / 6), pytest.approx(100 / 150)]
    ]  # fmt: skip
    for heading, value in (("memory per rank, MB", 400.0), ("grown since the model was built", 300.0)):
        assert row_of(found, "Time, accuracy", "allreduce")[heading] == value
    assert claim_of(found, "Data parallelism is used more")["verdict"] == "holds"
    assert claim_of(found, "Model parallelism trains models")["verdict"] == "holds"


def test_schedules_show_both_frameworks_and_every_number_of_stages(plots):
    runs = [
        runs_of(f"{stages}-{microbatches}", 150.0, framework=framework, ranks=stages, spread=SPREAD[:1],
                **of_stages(stages, microbatches))
        for framework in ("torch", "keras")
        for stages in (2, 3, 4)
        for microbatches in ((1, 2, 3, 5) if stages == 2 else (5,))
    ]  # fmt: skip
    found = asked(*runs)
    panels = dict.fromkeys(row[0] for row in plot_of(found, "strategies-schedule").data.rows)
    assert {(panel.split(",")[0], panel.split("stages ")[1][0]) for panel in panels} == {
        (framework, stages) for framework in ("PyTorch", "Keras") for stages in "234"
    }
    bubbles = plot_of(found, "strategies-bubble")
    formula = {(row[1], row[2]): row[3] for row in bubbles.data.rows}
    assert formula["layers, stages 3, microbatches 5", 3] == pytest.approx(100 * 2 / 7)
    assert len(bubbles.data.rows) == 12
    (ax,) = bubbles.figure.axes
    (diagonal,) = [line for line in ax.get_lines() if line.get_label().startswith("formula")]
    assert list(diagonal.get_xdata()) == list(diagonal.get_ydata())


def of_stages(stages, microbatches):
    made = pipeline(bytes_sent=100.0, memory=300_000_000)
    workers, of_two = made["sharing"].workers, made["sharing"].pipeline
    sharing = replace(made["sharing"], workers=(workers * 2)[:stages], pipeline=(of_two * 2)[:stages])
    return made | {"parts": {"stages": stages, "microbatches": microbatches}, "sharing": sharing}


def ended(runs):
    """Return runs as they are when their memory limit has ended them."""
    status = make_status(state="failed", ended_at=now(), message=f"rank 0 {OVER_LIMIT}. Received: --memory-limit 250")
    left = {"status": status, "totals": NotRecorded("failed"), "isolation": NotRecorded("failed")}
    return [replace(one, state="failed", record=replace(one.record, **left), figures=one.figures[:0]) for one in runs]


def test_a_model_too_large_for_one_rank_is_drawn_with_its_budget(plots):
    budget = {"device": {"memory_limit": 250}}
    model = ModelRecord(
        name="mlp", outputs=10, parameters=10, multiply_adds_per_image=1, forecast_bytes=[200_000_000, 180_000_000]
    )
    found = asked(
        ended(runs_of("alone", 100.0, ranks=1, spread=SPREAD[:3], **budget)),
        ended(runs_of("ring", 100.0, spread=SPREAD[:3], **budget)),
        runs_of("layers", 150.0, model=model, **budget, **pipeline(bytes_sent=100.0, memory=300_000_000)),
    )
    assert found.answer == (
        "PyTorch: within 250 MB per rank layers, stages 2, microbatches 5 trains, allreduce does not."
    )
    rows = {(row["model, data set, workers, site"].split(", ")[2], row["strategy"]): row["ended by the limit"]
            for row in rows_of(found, "Time, accuracy")}  # fmt: skip
    assert rows == {("1 workers", "allreduce"): 3, ("2 workers", "allreduce"): 3,
                    ("2 workers", "layers, stages 2, microbatches 5"): None}  # fmt: skip
    plot = plot_of(found, "strategies-memory")
    assert [row[1:] for row in plot.data.rows] == [
        ["one rank alone", None, None, None, 250, 3],
        ["allreduce", None, None, None, 250, 3],
        ["layers, stages 2, microbatches 5", 150.0, 225.0, 200.0, 250, None],
    ]
    (ax,) = plot.figure.axes
    lines = {str(line.get_label()): line for line in ax.get_lines() if not str(line.get_label()).startswith("_")}
    crosses = [line for label, line in lines.items() if label.endswith("ended by the limit")]
    assert [line.get_marker() for line in crosses] == ["x", "x"]
    assert [list(line.get_ydata()) for line in crosses] == [[250], [250]]
    assert list(lines["what a rank may take (--memory-limit)"].get_ydata()) == [250, 250]
    assert not [flag for flag in found.flags if "failed" in flag], "that they failed is the answer"
    claim = claim_of(found, "Model parallelism trains models")
    assert (claim["verdict"], "within 250 MB per rank" in claim["found, or why not"]) == ("holds", True)


def slow(factor):
    return {"slow": f"1:{factor}", "slow_is_subject": True}


def with_stragglers(*, averaging, shares, alone=150.0):
    """Return what is found of runs without a straggler and with one that takes twice as long."""
    return asked(
        runs_of("alone", alone, ranks=1),
        runs_of("ring", 100.0),
        runs_of("often", 80.0, strategy=EVERY8),
        runs_of("ring-2", 190.0, balance=slow(2)),
        runs_of("often-2", averaging, strategy=EVERY8, balance=slow(2)),
        runs_of("shared-2", shares, balance={**slow(2), "shares": "auto"}),
    )


def test_a_straggler_is_part_of_the_work(plots):
    found = with_stragglers(averaging=160.0, shares=140.0)
    rows = {(row["model, data set, workers, site"][-8:], row["strategy"]): row["time / allreduce"] for row in
            rows_of(found, "Against plain allreduce")}  # fmt: skip
    assert rows == {
        ("s, local", "averaging, every 8"): pytest.approx(0.8),
        ("slow 1:2", "averaging, every 8"): pytest.approx(160 / 190),
        ("slow 1:2", "allreduce, shares auto"): pytest.approx(140 / 190),
    }
    (ax,) = plot_of(found, "strategies-stragglers").figure.axes
    lines = {line.get_label(): list(line.get_ydata()) for line in ax.get_lines() if len(line.get_xdata()) == 2}
    assert lines == {
        "allreduce": pytest.approx([100.0, 190.0]),
        "averaging, every 8": pytest.approx([80.0, 160.0]),
        "ideal: the sum of the speeds": pytest.approx([100.0, 200 / 1.5]),
    }


def test_longer_runs_of_another_experiment_are_no_runs_without_a_straggler(plots):
    longer = {"curve": (0.5, 0.6, 0.7, 0.8, 0.85, 0.9)}
    found = asked(
        runs_of("longer", 500.0, **longer),
        runs_of("longer-often", 450.0, strategy=EVERY8, **longer),
        runs_of("ring", 100.0),
        runs_of("ring-2", 190.0, balance=slow(2)),
        runs_of("often", 80.0, strategy=EVERY8),
        runs_of("often-2", 160.0, strategy=EVERY8, balance=slow(2)),
    )
    (ax,) = plot_of(found, "strategies-stragglers").figure.axes
    lines = {line.get_label(): list(line.get_ydata()) for line in ax.get_lines() if len(line.get_xdata()) == 2}
    assert lines["allreduce"] == pytest.approx([100.0, 190.0])
    assert "2.00 times the time" in claim_of(found, "Parameter averaging advances")["found, or why not"]


@pytest.mark.parametrize(("averaging", "verdict"), [(150.0, "holds"), (100.0, "does not hold here")])
def test_averaging_advances_at_the_speed_of_the_slowest(averaging, verdict):
    found = with_stragglers(averaging=averaging, shares=140.0)
    assert claim_of(found, "Parameter averaging advances")["verdict"] == verdict
    assert claim_of(found, "A slow device with as many samples")["verdict"] == "holds"


@pytest.mark.parametrize(("shares", "verdict"), [(140.0, "does not hold here"), (160.0, "holds")])
def test_a_slow_worker_with_its_share_pays_or_does_not(shares, verdict):
    found = with_stragglers(averaging=160.0, shares=shares)
    assert claim_of(found, "However few samples")["verdict"] == verdict
    # Weighted by images, it costs no accuracy.
    assert claim_of(found, "With batches in proportion")["verdict"] == "does not hold here"


@pytest.mark.parametrize(("alone", "verdict"), [(195.0, "holds"), (150.0, "does not hold here")])
def test_two_workers_are_almost_twice_as_fast_or_not(alone, verdict):
    found = with_stragglers(averaging=160.0, shares=140.0, alone=alone)
    assert claim_of(found, "Training on two devices")["verdict"] == verdict


def test_work_of_other_numbers_of_workers_is_compared_apart():
    found = asked(
        runs_of("ring", 100.0),
        runs_of("often", 80.0, strategy=EVERY8),
        runs_of("ring4", 60.0, ranks=4),
        runs_of("often4", 30.0, strategy=EVERY8, ranks=4),
    )
    ratios = [row["time / allreduce"] for row in rows_of(found, "Against plain allreduce")]
    assert ratios == pytest.approx([0.8, 0.5])


# Claims


def test_every_claim_has_a_source_and_either_a_test_or_a_verdict():
    claims = read_claims()
    assert {claim.source for claim in claims} <= read_published().sources.keys()
    assert {claim.test for claim in claims if claim.test} == {*TESTS, "frameworks_are_alike"}
    for claim in claims:
        assert (claim.test is None) == (claim.verdict is not None) == (claim.found is not None), claim


def test_claims_without_their_runs_cannot_be_tested():
    found = asked(runs_of("ring", 100.0), runs_of("often", 80.0, strategy=EVERY8))
    assert {
        row["verdict"] for row in rows_of(found, "What documents claim") if "no runs of" in row["found, or why not"]
    } == {"cannot be tested here"}
    assert claim_of(found, "An asynchronous worker")["found, or why not"] == (
        "there are no runs of free servers and of allreduce with the same straggler"
    )


@pytest.mark.parametrize(
    ("seldom_accuracy", "seldom_seconds", "spread", "verdict"),
    [
        (0.8, 50.0, SPREAD, "holds"),
        (0.9, 50.0, SPREAD, "does not hold here"),
        (0.8, 80.0, SPREAD, "does not hold here"),
        (0.8, 50.0, SPREAD[:2], "cannot be tested here"),
    ],
)
def test_the_interval_trades_time_for_accuracy_or_does_not(seldom_accuracy, seldom_seconds, spread, verdict):
    found = asked(
        runs_of("ring", 100.0, spread=spread),
        runs_of("often", 80.0, strategy=EVERY8, spread=spread),
        runs_of("seldom", seldom_seconds, strategy=EVERY128, accuracy=seldom_accuracy, spread=spread),
    )
    assert claim_of(found, "Workers train one or several")["verdict"] == verdict


@pytest.mark.parametrize(("accuracy", "verdict"), [(0.9, "holds"), (0.7, "does not hold here")])
def test_frameworks_are_alike_strategy_by_strategy(accuracy, verdict):
    found = asked(
        runs_of("ring", 100.0),
        runs_of("often", 80.0, strategy=EVERY8),
        runs_of("ring", 100.0, framework="keras"),
        runs_of("often", 80.0, strategy=EVERY8, framework="keras", accuracy=accuracy),
    )
    assert claim_of(found, "The accuracies of both frameworks")["verdict"] == verdict


def at_once(number, runs):
    """Return runs as they are when so many are made side by side."""
    worlds = [replace(one.record.world, at_once=number) for one in runs if isinstance(one.record.world, World)]
    return [replace(one, record=replace(one.record, world=world)) for one, world in zip(runs, worlds, strict=True)]


@pytest.mark.parametrize(
    ("number", "alone", "verdict", "words"),
    [
        (2, 100.0, "holds", "14 runs of 2 settings, up to 2 at once; with 2 at once one takes 1.50 times the time"),
        (2, 70.0, "does not hold here", "14 runs of 2 settings, up to 2 at once; with 2 at once one takes 2.14 times"),
        (2, None, "holds", "14 runs of 2 settings, up to 2 at once; none was made alone, too"),
        (1, None, "cannot be tested here", "there are no runs of several settings side by side"),
    ],
)
def test_models_train_at_once_or_do_not(number, alone, verdict, words):
    seldom = {"strategy": EVERY128}
    beside = [at_once(number, runs) for runs in (runs_of("ring", 150.0), runs_of("seldom", 150.0, **seldom))]
    found = asked(*([runs_of("alone", alone, **seldom)] if alone else []), *beside)
    claim = claim_of(found, "Hyper-parameter parallelism")
    assert claim["verdict"] == verdict and claim["found, or why not"].startswith(words)


def test_old_runs_without_the_record_are_compared_too(plots):
    old = [replace(run, record=replace(run.record, sharing=None)) for run in runs_of("ring", 100.0)]
    found = asked(old, runs_of("often", 80.0, strategy=EVERY8))
    assert row_of(found, "Time, accuracy", "allreduce")["bytes/image"] is None
