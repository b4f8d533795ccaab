"""`python -m analysis faults`: changes of the ranks, their cost, and the difference from a run whose ranks stayed."""

import numpy as np
import pytest
from analysis_builders import rows_of
from builders import write_finished_run

from analysis.questions.faults import find
from analysis.runs.reading import load_runs
from common.model.weights import save_weights
from common.run_folder.records import WEIGHTS_FILE
from common.run_folder.world_changes import ElasticRecord, WorldChange


def change(seconds, *, cause="a rank ended", lost=0):
    return WorldChange(
        at="2026-11-23T18:00:00.000+00:00", cause=cause, step=4, ranks_before=2, ranks_after=1,
        ended=["node1, process 5"], joined=[], lost_steps=lost, detect_seconds=seconds / 2, agree_seconds=seconds / 4,
        resume_seconds=seconds / 4,
    )  # fmt: skip


def write(folder, name, *changes, weight=1.0, commits=0, **more):
    elastic = ElasticRecord(changes=list(changes), commits=commits, commit_seconds=0.02) if changes or commits else None
    run = write_finished_run(folder / name, elastic=elastic, **more)
    save_weights(run / WEIGHTS_FILE, {"w": np.array([weight, 4.0])})
    return run


def test_times_and_updates_of_all_changes_are_summed_up_by_event(tmp_path):
    runs = [
        write(tmp_path, "a", change(1.0, lost=2), change(3.0, lost=6)),
        write(tmp_path, "b", change(2.0, lost=4), change(9.0, cause="the hosts changed")),
    ]
    found = find(load_runs(runs))
    summary, changes = found.tables
    assert [(row["event"], row["n"], row["median, s"], row["worst, s"]) for row in rows_of(summary)] == [
        ("a host was removed", 1, 9.0, 9.0),
        ("a rank ended", 3, 2.0, 3.0),
    ]
    assert [(row["updates again"], row["worst, updates"]) for row in rows_of(summary)] == [(0.0, 0), (4.0, 6)]
    assert [row["ranks"] for row in rows_of(changes)] == ["2 to 1"] * 4
    assert "PyTorch continued 2 s after a rank ended (median; worst 3 s, n = 3)" in found.answer
    assert any("no run of the same experiment" in note for note in found.notes)
    assert any("its ranks came or went (2 changes)" in flag for flag in found.flags)


def test_a_run_is_compared_with_one_whose_ranks_stayed(tmp_path):
    runs = [write(tmp_path, "stayed", commits=5), write(tmp_path, "changed", change(1.0), commits=10, weight=1 + 4e-10)]
    found = find(load_runs(runs))
    (row,) = rows_of(found.tables[1])
    assert (row["run"], row["undisturbed run"], row["changes"], row["lost, s"]) == ("changed", "stayed", 1, 1.0)
    assert row["losses, relative"] == 0.0
    assert row["weights, relative"] == pytest.approx(1e-10)
    assert found.answer.startswith("Losses differ from those of runs whose ranks stayed by 0.0e+00 at most.")
    (plot,) = found.plots
    assert plot.name == "faults"
    assert [row["relative difference"] for row in rows_of(plot.data)] == [0.0] * len(plot.data.rows)
    assert [[*row.values()] for row in rows_of(found.tables[-1])] == [
        ["stayed", 5, pytest.approx(4.0), pytest.approx(0.02)],  # ms of a commit, % of its training
        ["changed", 10, pytest.approx(2.0), pytest.approx(0.02)],
    ]
    (runs[0] / WEIGHTS_FILE).unlink()
    (row,) = rows_of(find(load_runs(runs)).tables[1])
    assert row["weights, relative"] is None


@pytest.mark.parametrize(
    "other",
    [
        {"framework": "keras"},
        {"settings": {"strategy": {"strategy": "averaging", "average_every": 2}}},
        {"settings": {"device": {"compression": "fp16"}}},
    ],
)
def test_a_run_that_trains_otherwise_is_not_the_undisturbed_one(other, tmp_path):
    found = find(load_runs([write(tmp_path, "other", **other), write(tmp_path, "changed", change(1.0))]))
    assert any("no run of the same experiment" in note for note in found.notes) and len(found.tables) == 2
