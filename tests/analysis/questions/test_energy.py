"""`python -m analysis energy` on traces whose energy can be computed by hand."""

import numpy as np
import pytest
from analysis_builders import rows_of, select, study
from builders import make_trace, make_world, write_finished_run
from PIL import Image

from analysis.__main__ import main
from analysis.questions.energy.command import find
from analysis.questions.energy.plots import power_plot
from analysis.runs.published import published_runs
from analysis.runs.reading import load_runs
from common.measurement.power_trace import PowerTrace
from common.run_folder.records import NotRecorded

# Seconds; twice as long where only one GPU works.
PHASES = {"startup": 3, "idle_before": 2, "training": 10, "validation": 4, "test": 2, "idle_after": 2}
CPU = {"startup": 30.0, "idle_before": 10.0, "training": 40.0, "validation": 20.0, "test": 20.0, "idle_after": 10.0}
GPU = {"startup": 20.0, "idle_before": 15.0, "training": 100.0, "validation": 60.0, "test": 60.0, "idle_after": 17.0}
IDLE = dict.fromkeys(PHASES, 16.0)
# On one GPU cpu0: 40 x 10 + 20 x 4 + 20 x 2 = 520 J; gpu0: 100 x 10 + 60 x 4 + 60 x 2 = 1360 J; gpu1: 16 x 16 = 256 J.


def write_runs(folder):
    """Write two runs on one GPU, and two on both: half the seconds of the phases that count, both GPUs as busy."""
    quick = PHASES | {"training": 5, "validation": 2, "test": 1}
    for name, phases, second in (("one", PHASES, IDLE), ("two", quick, GPU)):
        used = ["gpu0"] if name == "one" else ["gpu0", "gpu1"]
        trace = make_trace(phases, {"cpu0": CPU, "gpu0": GPU, "gpu1": second})
        for seed in (1, 2):
            write_finished_run(
                folder / f"{name}-{seed}", seed=seed, traces=[trace], used_gpus={"node0": used},
                world=make_world(*["cuda:0"] * len(used)),
            )  # fmt: skip


def test_energies_and_products_by_hand(tmp_path):
    write_runs(tmp_path)
    found = find(load_runs([tmp_path]), base="np 1")
    one, two = rows_of(found, 0)
    assert (one["n"], one["seconds"], one["J, used devices"], one["J, all devices"]) == (2, 16, 1880, 2136)
    assert (two["n"], two["seconds"], two["J, used devices"], two["J, all devices"]) == (2, 8, 1620, 1620)
    assert (one["/ base"], two["/ base"]) == (1, pytest.approx(1620 / 1880))
    assert two["/ base of all"] == pytest.approx(1620 / 2136)
    # At rest 10 W and (15 + 17) / 2 W, over 16 s.
    assert one["J above idle"] == pytest.approx(1880 - 26 * 16)
    assert one["J per epoch"] == pytest.approx((400 + 1000 + 80 + 240) / 3)
    assert one["images per J"] == pytest.approx(360 / 1400)  # 3 epochs of 120 images
    assert {row["measured"] for row in (one, two)} == {"all used devices"}
    one, two = rows_of(found, 1)
    assert (one["EDP, J s, used"], one["ED2P, J s², used"]) == (16 * 1880, 16**2 * 1880)
    assert two["EDP / base, used"] == pytest.approx(8 * 1620 / (16 * 1880))
    assert two["EDP / base, all"] == pytest.approx(8 * 1620 / (16 * 2136))
    assert two["ED2P / base, used"] == pytest.approx(8**2 * 1620 / (16**2 * 1880))
    assert "np 1 takes 1,880 J per run on average, counted over all used devices." in found.answer
    least = "The lowest energy and EDP are those of PyTorch, cnn, mnist, np 2, 0.8617 and 0.4309 times the base."
    assert found.answer.endswith(least)
    assert found.flags == []
    devices = {(row["cell"][-4:], row["device"]): row for row in rows_of(found, 2)}
    gpu = devices["np 1", "gpu0"]
    assert [gpu[f"{phase}, J"] for phase in PHASES] == [60, 30, 1000, 240, 120, 34]
    assert (gpu["how"], gpu["at rest before, W"], gpu["at rest after, W"]) == ("integral", 15, 17)
    used = {key: row["used"] for key, row in devices.items() if key[1] != "cpu0"}
    assert used == {("np 1", "gpu0"): "yes", ("np 1", "gpu1"): "no", ("np 2", "gpu0"): "yes", ("np 2", "gpu1"): "yes"}


def test_what_was_not_measured_is_reported_and_not_compared(tmp_path):
    write_runs(tmp_path)
    trace = make_trace(PHASES, {"gpu0": GPU}, not_measured={"cpu0": "Permission denied"})
    write_finished_run(
        tmp_path / "four", traces=[trace], used_gpus={"node0": ["gpu0"]}, world=make_world(*["cuda:0"] * 4)
    )  # fmt: skip
    write_finished_run(tmp_path / "unknown", energy=NotRecorded("lost"), seed=7)
    found = find(load_runs([tmp_path]), base="np 1")
    assert "cpu0 not measured: Permission denied (1 run)" in found.notes
    assert "energy not recorded: lost (1 run)" in found.notes
    (flag,) = found.flags
    assert "np 4 counts all used devices but cpu, the base PyTorch, cnn, mnist, np 1 all used devices" in flag


def test_published_sums_count_the_devices_that_their_source_lists(tmp_path):
    write_finished_run(tmp_path / "timed")
    table = find(load_runs([tmp_path], added=published_runs(["thesis"]))).tables[0]
    assert {row[-1] for row in table.rows} == {"the devices that its source lists"}


@pytest.mark.usefixtures("drawn")
def test_power_is_drawn_of_the_median_run_with_two_epochs_enlarged(tmp_path):
    for seed, factor in ((1, 3.0), (2, 1.0), (3, 2.0)):
        cpu = {phase: factor * watts for phase, watts in CPU.items()}
        write_finished_run(tmp_path / f"r{seed}", seed=seed, traces=[make_trace(PHASES, {"cpu0": cpu})])
    found = find(load_runs([tmp_path]))
    power, devices = found.plots
    assert "r3, the run of median energy, n = 3" in power.data.title
    assert {row[2] for row in power.data.rows} == {60.0, 20.0, 80.0, 40.0}
    assert [row[3] for row in devices.data.rows if row[1] == "EDP of a run"] == pytest.approx([1.5, 0.5, 1.0])
    assert main(["energy", str(tmp_path), "--plots", str(tmp_path / "plots")]) == 0
    for name in ("energy-power-1", "energy-devices"):
        with Image.open(tmp_path / "plots" / f"{name}.png") as picture:
            pixels = np.asarray(picture.convert("RGB")).reshape(-1, 3)
            assert picture.width > 500 and len(np.unique(pixels, axis=0)) > 30
    text = (tmp_path / "plots" / "energy-power-1.svg").read_text()
    assert all(word in text for word in ("watts", "seconds since the first sample", "training", "rest before"))


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


def test_a_long_trace_is_drawn_by_means_and_enlarged_by_samples():
    trace = epochs_trace(400)
    plot = power_plot("x", "x", [trace], epoch_seconds=np.array([]))
    whole, part = plot.figure.axes
    assert len(whole.lines[0].get_xdata()) <= 1500
    assert np.allclose(whole.lines[0].get_ydata(), 50.0)
    assert len(part.lines[0].get_xdata()) == 26  # two epochs and a little
    assert [text.get_text() for text in whole.texts] == ["epochs"]
    assert whole.get_title() == "each point the mean of 4 samples"  # of 4806


def test_a_damaged_trace_is_named_and_left_out(tmp_path, capsys):
    write_finished_run(tmp_path / "r1", traces=[make_trace(PHASES, {"cpu0": CPU})])
    (tmp_path / "r1" / "power.csv").write_text("seconds\n1\n")
    assert main(["energy", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert f"flag: left out: {tmp_path / 'r1' / 'power.csv'} is not a valid power trace" in shown
    assert "no readable power.csv" in shown and "takes 520 J per run" in shown
    assert main(["energy", str(tmp_path), "--strict"]) == 2
    assert "is not a valid power trace" in capsys.readouterr().err


def test_without_metered_runs_the_answer_is_how_to_meter():
    found = find(select(study()))
    assert not found.tables and found.answer.startswith("None of these runs measured energy")
    trace = make_trace(PHASES, {}, not_measured={"cpu0": "no counter"})
    found = find(select(study(), study("metered", traces=[trace])))
    assert found.answer.startswith("No device could be measured in any of 1 metered runs")
    assert found.notes == ["cpu0 not measured: no counter (1 run)"]


def test_many_devices_are_drawn_by_kind():
    trace = make_trace(PHASES, {"cpu0": CPU} | {f"gpu{number}": GPU for number in range(8)})
    *_, devices = find(select(study(traces=[trace], used_gpus={"node0": ["gpu0", "gpu1"]}))).plots
    parts = {row[1]: row[3] for row in devices.data.rows if row[2] == "J"}
    assert parts == {"cpu": 520, "gpu": 2 * 1360, "gpu, idle": 6 * 1360}
