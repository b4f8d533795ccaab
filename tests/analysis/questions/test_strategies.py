"""`python -m analysis strategies`: the comparison with all-reduce, equal time, bytes, staleness, plots, claims."""

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from analysis_builders import SPREAD, plot_of, rows_of, select, spread_runs
from builders import make_environment, make_status

from analysis.questions.strategies.claims import TESTS, read_claims
from analysis.questions.strategies.command import find
from analysis.runs.published import read_published
from common.measurement.interference import Interference
from common.measurement.memory_limit import OVER_LIMIT
from common.run_folder.records import ModelRecord, NotRecorded, now
from common.run_folder.sharing import MeasuredGroups, PassRecord, SharingRecord, StageRecord, WorkerShare

ONE = SPREAD[:1]
CASES = Path(__file__).with_name("strategies.toml")
WAYS = tomllib.loads(CASES.read_text())["runs"]


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


def runs_of(way, changes=None):
    """Return runs of a way of the cases, so changed."""
    return spread_runs(way, **WAYS[way] | (changes or {}))


def asked(*ways):
    """Return what is found in runs: of a way, of a way and its changes, or made ones."""
    groups = [way if isinstance(way, list) else runs_of(way) if isinstance(way, str) else runs_of(*way) for way in ways]
    return find(select(*groups))


def row_of(found, title, strategy):
    """Return the only row of a strategy in a table."""
    (row,) = [row for row in rows_of(found, title) if row["strategy"] == strategy]
    return row


def claim_of(found, start):
    """Return the verdict on the claim that starts so, and its reason."""
    row = next(row for row in rows_of(found, "What documents claim") if row["claim"].startswith(start))
    return row["verdict"], row["found, or why not"]


def test_the_exchange_is_compared_with_plain_allreduce_whatever_its_tuning():
    own, slow = (make_environment(variables={"HOROVOD_CYCLE_TIME": time}) for time in ("0.2", "5"))
    auto = runs_of("ring", {"seconds": 105.0, "environment": own, "device": {"gradient_groups": "auto"}})[:3]
    found = asked(
        ("ring", {"seconds": 120.0, "environment": slow, "sharing": sharing_of()}),
        ("ring", {"seconds": 110.0, "environment": own, "device": {"gradient_groups": "each"}}),
        ("ring", {"environment": own}),
        [
            replace(run, record=replace(run.record, groups=MeasuredGroups(chosen=chosen)))
            for run, chosen in zip(auto, ["each", "each", "2"], strict=True)
        ],
    )
    rows = rows_of(found, "Against plain allreduce")
    assert [(row["strategy"], row["time / allreduce"]) for row in rows] == [
        ("allreduce, HOROVOD_CYCLE_TIME 5", pytest.approx(1.2)),
        ("allreduce, gradient groups each", pytest.approx(1.1)),
        ("allreduce, gradient groups auto (each in 2 runs, 2 in 1 run)", pytest.approx(1.05)),
    ]
    assert row_of(found, "Time, accuracy", "allreduce, HOROVOD_CYCLE_TIME 5")["bytes/update"] == 16e6
    assert not [flag for flag in found.flags if "HOROVOD" in flag and "against" in flag], "they are the question"
    assert "each in" not in found.answer, "what each run chose is in the tables"


def test_a_budget_that_many_ways_keep_names_their_strategies():
    limit = {"memory_limit": 250}
    found = asked(ended("ring"), *(pipeline(microbatches=parts, device=limit) for parts in (5, 10)))
    assert found.answer == "PyTorch: within 250 MB per rank layers trains, allreduce does not."


def test_figures_of_what_was_exchanged():
    memory = memory_of(200_000_000, 300_000_000)
    hidden = sharing_of(sent=NotRecorded("hidden"), seconds=NotRecorded("they overlap"))
    found = asked(("ring", {"sharing": sharing_of(seconds=10.0), "isolation": memory}), ("often", {"sharing": hidden}))
    ring = row_of(found, "Time, accuracy", "allreduce")
    # 2 workers x 100 updates x (4 + 4) MB / 6400 images; of the formula 2 x 100 x 4 MB.
    assert (ring["bytes/image"], ring["by formula"]) == (250_000.0, 125_000.0)
    assert ring["exchange, %"] == pytest.approx(15.0)  # mean of 10 and 20 s of 100 s
    assert (ring["memory per rank, MB"], ring["staleness: median"], ring["joules"]) == (300.0, None, None)
    often = row_of(found, "Time, accuracy", "averaging, every 8")
    assert (often["bytes/image"], often["by formula"], often["exchange, %"]) == (None, 125_000.0, None)
    empty = "exchange, %, is empty where it was not measured: they overlap"
    assert [note for note in found.notes if note.startswith("exchange, %, is empty")] == [empty]


def test_staleness_with_and_without_a_straggler_are_panels_of_their_own(plots):
    slow = {"balance": WAYS["slow-ring"]["balance"]}
    lags = {"0": 50, "1": 44, "3": 5, "40": 1}
    found = asked(
        "ring",
        ("free", {"sharing": sharing_of(seconds=10.0, staleness=lags), "spread": ONE * 2}),
        ("free", {"sharing": sharing_of(seconds=9.0, staleness={"2": 5}), "spread": ONE, "seconds": 90.0, **slow}),
    )
    free, slow = (row for row in rows_of(found, "Time, accuracy") if row["strategy"].startswith("server"))
    assert (free["staleness: median"], free["95 % of pushes"], free["most"]) == (0, 3, 40)
    assert free["strategy"] == slow["strategy"] == "server, servers 1, staleness none"
    plot = plot_of(found, "strategies-staleness")
    assert [row[1:] for row in plot.data.rows] == [[0, 100], [1, 88], [3, 10], [40, 2], [2, 5]]
    assert len(plot.figure.axes) == 2
    parts = [row[2] for row in plot_of(found, "strategies-parts").data.rows]
    assert parts == pytest.approx([81.25, 18.75, 85.0, 15.0])


def test_plots_have_their_data_and_what_is_missing_is_a_note(plots):
    found = asked(("ring", {"sharing": sharing_of(seconds=10.0)}), "often", "seldom")
    notes = [note for note in found.notes if note.startswith("no plot of")]
    assert [note.partition(":")[0] for note in notes] == [
        "no plot of time against a straggler's factor", "no plot of staleness",
        "no plot of the schedule of a pipeline", "no plot of waiting in pipelines against the formula",
        "no plot of memory against time",
    ]  # fmt: skip
    (ax,) = plot_of(found, "strategies-accuracy-images").figure.axes
    assert [list(line.get_xdata()) for line in ax.get_lines()] == [[3200, 6400, 9600]] * 3
    assert list(ax.get_lines()[0].get_ydata()) == pytest.approx([50.0, 80.0, 90.0])
    parts = {row[1]: row[2] for row in plot_of(found, "strategies-parts").data.rows}
    assert parts == {"computing": pytest.approx(85.0), "waiting for data": 0.0, "waiting and sending": 15.0}


# Models in stages


def pipeline(*, stages=2, microbatches=5, memory=300_000_000, **changes):
    """Return runs of a pipeline, each stage of which computed one microbatch."""
    passes = [PassRecord(is_forward=kind, microbatch=0, start=0.001 * kind, end=0.002) for kind in (True, False)]
    layers = (("flatten", "fc1"), ("sigmoid1", "fc2"))
    records = [
        StageRecord(first_layer=first, last_layer=last, parameters=10, multiply_adds=10, held_microbatches=1,
                    waiting_seconds=1.0, passes=passes)
        for first, last in (layers * 2)[:stages]
    ]  # fmt: skip
    sharing = sharing_of(sent=100.0)
    settings = {
        "ranks": stages,
        "seconds": 150.0,
        "strategy": {"strategy": "layers"},
        "parts": {"stages": stages, "microbatches": microbatches},
        "sharing": replace(sharing, workers=(sharing.workers * 2)[:stages], pipeline=records),
        "isolation": memory_of(memory, memory // 2),
    }
    return runs_of("ring", settings | changes)


def test_a_model_in_stages_has_its_bubble_its_schedule_and_its_memory(plots):
    ring = {"sharing": sharing_of(), "isolation": memory_of(400_000_000, 400_000_000)}
    found = asked(("ring", ring), pipeline())
    row = row_of(found, "Time, accuracy", "layers, stages 2, microbatches 5")
    assert row["bubble, %"] == pytest.approx(100 / 6)
    assert row["waiting, %"] == pytest.approx(100 / 150)
    assert row["memory per rank, MB"] == pytest.approx(300.0)
    whole = row_of(found, "Time, accuracy", "allreduce")
    headings = ("bubble, %", "memory per rank, MB", "grown since the model was built")
    assert [whole[heading] for heading in headings] == [None, 400.0, 300.0]
    passes = plot_of(found, "strategies-schedule").data.rows
    assert [one[1:4] for one in passes] == [
        [0, 0, "forward"], [0, 0, "backward"], [1, 0, "forward"], [1, 0, "backward"]
    ]  # fmt: skip
    memory = plot_of(found, "strategies-memory").data.rows
    assert [one[2:4] for one in memory] == [[100.0, 300.0], [150.0, 225.0]]
    bubbles = plot_of(found, "strategies-bubble").data.rows
    assert [one[2:] for one in bubbles] == [[2, pytest.approx(100 / 6), pytest.approx(100 / 150)]]


def test_schedules_show_both_frameworks_and_every_number_of_stages(plots):
    found = asked(
        *(
            pipeline(stages=stages, microbatches=microbatches, framework=framework, spread=ONE)
            for framework in ("torch", "keras")
            for stages in (2, 3, 4)
            for microbatches in ((1, 2, 3, 5) if stages == 2 else (5,))
        )
    )
    panels = {row[0] for row in plot_of(found, "strategies-schedule").data.rows}
    assert {(panel.split(",")[0], panel.split("stages ")[1][0]) for panel in panels} == {
        (framework, stages) for framework in ("PyTorch", "Keras") for stages in "234"
    }
    formula = {(row[1], row[2]): row[3] for row in plot_of(found, "strategies-bubble").data.rows}
    assert formula["layers, stages 3, microbatches 5", 3] == pytest.approx(100 * 2 / 7) and len(formula) == 6


def ended(way):
    """Return runs as they are when their memory limit has ended them."""
    status = make_status(state="failed", ended_at=now(), message=f"rank 0 {OVER_LIMIT}. Received: --memory-limit 250")
    left = {"status": status, "totals": NotRecorded("failed"), "isolation": NotRecorded("failed")}
    runs = runs_of(way, {"spread": SPREAD[:3], "device": {"memory_limit": 250}})
    return [replace(one, state="failed", record=replace(one.record, **left), figures=one.figures[:0]) for one in runs]


def test_a_model_too_large_for_one_rank_is_drawn_with_its_budget(plots):
    forecast = [200_000_000, 180_000_000]
    model = ModelRecord(name="mlp", outputs=10, parameters=10, multiply_adds_per_image=1, forecast_bytes=forecast)
    found = asked(ended("alone"), ended("ring"), pipeline(model=model, device={"memory_limit": 250}))
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
    assert not [flag for flag in found.flags if "failed" in flag], "that they failed is the answer"
    verdict, words = claim_of(found, "Model parallelism trains models")
    assert verdict == "holds" and "within 250 MB per rank" in words


def test_a_straggler_is_part_of_the_work(plots):
    """Longer runs of another experiment are no runs without a straggler."""
    longer = {"curve": (0.5, 0.6, 0.7, 0.8, 0.85, 0.9)}
    others = [("ring", {**longer, "seconds": 500.0}), ("often", {**longer, "seconds": 450.0})]
    found = asked(*others, "alone", "ring", "often", "slow-ring", "slow-often", "slow-shared")
    rows = {(row["model, data set, workers, site"][-8:], row["strategy"], round(row["time / allreduce"], 4))
            for row in rows_of(found, "Against plain allreduce")}  # fmt: skip
    assert rows == {
        ("s, local", "averaging, every 8", 0.8),
        ("s, local", "averaging, every 8", 0.9),  # the longer ones
        ("slow 1:2", "averaging, every 8", round(160 / 190, 4)),
        ("slow 1:2", "allreduce, shares auto", round(140 / 190, 4)),
    }
    (ax,) = plot_of(found, "strategies-stragglers").figure.axes
    lines = {line.get_label(): list(line.get_ydata()) for line in ax.get_lines() if len(line.get_xdata()) == 2}
    assert lines == {
        "allreduce": pytest.approx([100.0, 190.0]),
        "averaging, every 8": pytest.approx([80.0, 160.0]),
        "ideal: the sum of the speeds": pytest.approx([100.0, 200 / 1.5]),
    }
    assert "2.00 times the time" in claim_of(found, "Parameter averaging advances")[1]


def test_every_claim_has_a_source_and_either_a_test_or_a_verdict():
    claims = read_claims()
    assert {claim.source for claim in claims} <= read_published().sources.keys()
    assert {claim.test for claim in claims if claim.test} == {*TESTS, "frameworks_are_alike"}
    for claim in claims:
        assert (claim.test is None) == (claim.verdict is not None) == (claim.found is not None), claim
