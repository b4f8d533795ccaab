"""`python -m analysis energy`: published sums, pictures of power, and a damaged trace."""

import numpy as np
import pytest
from analysis_builders import rows_of, select, study
from builders import make_trace, write_finished_run

from analysis.__main__ import main
from analysis.questions.energy.command import find
from analysis.questions.energy.plots import power_plot
from analysis.runs.published import published_runs
from analysis.runs.reading import load_runs
from common.measurement.power_trace import PowerTrace

PHASES = {"startup": 3, "idle_before": 2, "training": 10, "validation": 4, "test": 2, "idle_after": 2}
CPU = {"startup": 30.0, "idle_before": 10.0, "training": 40.0, "validation": 20.0, "test": 20.0, "idle_after": 10.0}
GPU = {"startup": 20.0, "idle_before": 15.0, "training": 100.0, "validation": 60.0, "test": 60.0, "idle_after": 17.0}
# On one GPU cpu0: 40 x 10 + 20 x 4 + 20 x 2 = 520 J; gpu0: 100 x 10 + 60 x 4 + 60 x 2 = 1360 J; gpu1: 16 x 16 = 256 J.


def test_published_sums_count_the_devices_that_their_source_lists(tmp_path):
    write_finished_run(tmp_path / "timed")
    table = find(load_runs([tmp_path], added=published_runs(["thesis"]))).tables[0]
    assert {row[-1] for row in table.rows} == {"the devices that its source lists"}


def test_power_is_drawn_of_the_median_run(tmp_path):
    for seed, factor in ((1, 3.0), (2, 1.0), (3, 2.0)):
        cpu = {phase: factor * watts for phase, watts in CPU.items()}
        write_finished_run(tmp_path / f"r{seed}", seed=seed, traces=[make_trace(PHASES, {"cpu0": cpu})])
    found = find(load_runs([tmp_path]))
    power, devices = found.plots
    assert "r3, the run of median energy, n = 3" in power.data.title
    assert {row[2] for row in power.data.rows} == {60.0, 20.0, 80.0, 40.0}
    assert [row[3] for row in devices.data.rows if row[1] == "EDP of a run"] == pytest.approx([1.5, 0.5, 1.0])


def test_joules_and_images_are_of_the_epochs_that_each_run_has_trained():
    """Of which a run that reaches its target early has fewer."""
    whole, half = ({**PHASES, "training": 10 // part, "validation": 4 // part} for part in (1, 2))
    runs = study("whole", traces=[make_trace(whole, {"cpu0": CPU})], totals={"epochs": 2, "steps": 8})
    runs += study("half", first=2, traces=[make_trace(half, {"cpu0": CPU})], totals={"epochs": 1, "steps": 4})
    for order in (runs, runs[::-1]):
        (row,) = rows_of(find(select(order)), "Energy (means")
        assert row["J per epoch"] == pytest.approx((10 * 40 + 4 * 20) / 2)
        assert row["images per J"] == pytest.approx(240 / 400)


def epochs_trace(epochs):
    """10 s of training and 2 s of validation in each epoch, after 5 s of start-up."""
    phases = ["startup"] * 6 + (["training"] * 10 + ["validation"] * 2) * epochs
    whole = make_trace({"startup": len(phases) - 1}, {"cpu0": {"startup": 50.0}})
    return PowerTrace(host="", seconds=whole.seconds, phases=phases, series=whole.series)


@pytest.mark.parametrize(
    ("epochs", "seconds", "expected"),
    [
        (2, [], None),
        (4, [], (16.4, 42.2)),  # the second and the third, from 17 s on
        (1, [3.0, 3.0, 4.0], (8.5, 14.8)),  # phases do not give the epochs
        (1, [3.0, 3.0], None),
        (1, [3.0, float("nan"), 3.0], None),
    ],
)
def test_the_part_that_is_enlarged(epochs, seconds, expected):
    whole, *rest = power_plot("x", "x", [epochs_trace(epochs)], epoch_seconds=np.array(seconds)).figure.axes
    assert [ax.get_xlim() for ax in rest] == ([] if expected is None else [pytest.approx(expected)])
    if epochs == 1:
        assert [text.get_text() for text in whole.texts] == ["start-up", "training", "validation"]


def test_a_damaged_trace_is_named_and_left_out(tmp_path, capsys):
    write_finished_run(tmp_path / "r1", traces=[make_trace(PHASES, {"cpu0": CPU})])
    (tmp_path / "r1" / "power.csv").write_text("seconds\n1\n")
    assert main(["energy", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert f"flag: left out: {tmp_path / 'r1' / 'power.csv'} is not a valid power trace" in shown
    assert "no readable power.csv" in shown and "takes 520 J per run" in shown
    assert main(["energy", str(tmp_path), "--strict"]) == 2
    assert "is not a valid power trace" in capsys.readouterr().err


def test_many_devices_are_drawn_by_kind():
    trace = make_trace(PHASES, {"cpu0": CPU} | {f"gpu{number}": GPU for number in range(8)})
    *_, devices = find(select(study(traces=[trace], used_gpus={"node0": ["gpu0", "gpu1"]}))).plots
    parts = {row[1]: row[3] for row in devices.data.rows if row[2] == "J"}
    assert parts == {"cpu": 520, "gpu": 2 * 1360, "gpu, idle": 6 * 1360}
