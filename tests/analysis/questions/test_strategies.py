"""`python -m analysis strategies`: the comparison with all-reduce, equal time, bytes, staleness, plots, claims."""

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from analysis_builders import SPREAD, plot_of, rows_of, select, spread_runs
from builders import make_environment, make_status
from question_cases import made

from analysis.questions.strategies.claims import TESTS, read_claims
from analysis.questions.strategies.command import find
from analysis.runs.published import read_published
from common.measurement.memory_limit import OVER_LIMIT
from common.run_folder.records import ModelRecord, NotRecorded, now
from common.run_folder.sharing import MeasuredGroups

CASES = Path(__file__).with_name("strategies.toml")
WAYS = tomllib.loads(CASES.read_text())["runs"]


def runs_of(way, changes=None):
    """Return runs of a way of the cases, so changed."""
    return spread_runs(way, **made("", WAYS[way] | (changes or {})))


def asked(*ways):
    """Return what is found in runs: of a way, of a way and its changes, or made ones."""
    groups = [way if isinstance(way, list) else runs_of(way) if isinstance(way, str) else runs_of(*way) for way in ways]
    return find(select(*groups))


def test_the_exchange_is_compared_with_plain_allreduce_whatever_its_tuning():
    own, slow = (make_environment(variables={"HOROVOD_CYCLE_TIME": time}) for time in ("0.2", "5"))
    auto = runs_of("ring", {"seconds": 105.0, "environment": own, "device": {"gradient_groups": "auto"}})[:3]
    found = asked(
        ("ring", {"seconds": 120.0, "environment": slow, "sharing": {}}),
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
    assert 16e6 in [row["bytes/update"] for row in rows_of(found, "Time, accuracy")]
    assert not [flag for flag in found.flags if "HOROVOD" in flag and "against" in flag], "they are the question"
    assert "each in" not in found.answer, "what each run chose is in the tables"


def test_a_budget_that_many_ways_keep_names_their_strategies():
    limit = {"memory_limit": 250}
    parts = ({"stages": 2, "microbatches": number} for number in (5, 10))
    found = asked(ended("ring"), *(("pipeline", {"parts": one, "device": limit}) for one in parts))
    assert found.answer == "PyTorch: within 250 MB per rank layers trains, allreduce does not."


def ended(way):
    """Return runs as they are when their memory limit has ended them."""
    status = make_status(state="failed", ended_at=now(), message=f"rank 0 {OVER_LIMIT}. Received: --memory-limit 250")
    left = {"status": status, "totals": NotRecorded("failed"), "isolation": NotRecorded("failed")}
    runs = runs_of(way, {"spread": SPREAD[:3], "device": {"memory_limit": 250}})
    return [replace(one, state="failed", record=replace(one.record, **left), figures=one.figures[:0]) for one in runs]


def test_a_model_too_large_for_one_rank_is_drawn_with_its_budget(plots):
    forecast = [200_000_000, 180_000_000]
    model = ModelRecord(name="mlp", outputs=10, parameters=10, multiply_adds_per_image=1, forecast_bytes=forecast)
    limited = ("pipeline", {"model": model, "device": {"memory_limit": 250}})
    found = asked(ended("alone"), ended("ring"), limited)
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
    claims = {row["claim"]: row for row in rows_of(found, "What documents claim")}
    (claim,) = [row for words, row in claims.items() if words.startswith("Model parallelism trains models")]
    assert claim["verdict"] == "holds" and "within 250 MB per rank" in claim["found, or why not"]


def test_every_claim_has_a_source_and_either_a_test_or_a_verdict():
    claims = read_claims()
    assert {claim.source for claim in claims} <= read_published().sources.keys()
    assert {claim.test for claim in claims if claim.test} == {*TESTS, "frameworks_are_alike"}
    for claim in claims:
        assert (claim.test is None) == (claim.verdict is not None) == (claim.found is not None), claim
