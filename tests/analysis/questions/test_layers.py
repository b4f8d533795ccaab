"""`python -m analysis layers`: times of layers worked out by hand, their work, the roofline, and runs without them."""

import tomllib
from pathlib import Path

import pytest
from analysis_builders import rows_of, select, study

from analysis.projection.peaks import Peaks
from analysis.questions import layers
from analysis.questions.layers import find
from common.measurement.step_profile import LayerSeconds, StepProfile

TABLE = tomllib.loads(Path(__file__).with_name("layers.toml").read_text())
LAYERS = ("flatten to fc1", "relu3", "fc2")  # of cnn
WORK = ("MFLOP", "MB", "roofline, ms")
PEAKS = Peaks(device="made", threads=1, flops_per_second=1e9, bytes_per_second=1e15)


def profile(first=0.002, *, layers=LAYERS, optimizer=0.001, step=None):
    """Return a profile with 1 ms between layers; `first`: forward in the first layer, which takes twice that back."""
    seconds = dict(zip(layers, [(first, 2 * first), (0.001, 0.001), (0.001, 0.002)], strict=True))
    seconds["loss"] = (0.0005, 0.0005)
    parts = dict.fromkeys(("input", "waiting", "allreduce", "rest"), 0.0)
    parts["forward"], parts["backward"] = (sum(times[way] for times in seconds.values()) for way in (0, 1))
    parts["forward"] += 0.001
    parts["optimizer"] = optimizer
    whole = sum(parts.values()) if step is None else step
    return StepProfile(
        steps=20, left_out_steps=5, step_seconds=whole, step_seconds_of_ranks=[whole], parts_seconds=parts,
        parts_over_step=sum(parts.values()) / whole,
        parts_seconds_of_ranks={part: [time] for part, time in parts.items()},
        layers={name: LayerSeconds(forward=times[0], backward=times[1]) for name, times in seconds.items()},
    )  # fmt: skip


def runs_of(framework, *profiles, **changes):
    return [
        run
        for seed, one in enumerate(profiles, start=1)
        for run in study(f"{framework}{len(profiles)}", first=seed, framework=framework, profile=one, **changes)
    ]


def asked(*groups):
    """Return what is found in groups of runs."""
    return find(select(*groups))


def row_of(found, layer):
    (row,) = [row for row in rows_of(found, 0) if row["layer"] == layer]
    return row


@pytest.fixture
def peaks(monkeypatch):
    monkeypatch.setattr(layers, "peaks_of_machine", lambda machine, threads, measure: [PEAKS])


def test_the_layer_in_which_frameworks_part_is_named():
    torch = runs_of("torch", *(profile(first) for first in (0.002, 0.003, 0.009)))
    keras = runs_of("keras", *(profile(first) for first in (0.005, 0.006, 0.007)))
    found = asked(torch, keras)
    # Medians of each layer: 3 x 3 ms in PyTorch and 3 x 6 ms in Keras; all else alike.
    assert found.answer == (
        "cnn: a profiled step takes 26 ms in Keras and 17 ms in PyTorch. "
        "The largest differences (+: Keras is slower): flatten to fc1 +9 ms."
    )
    rows = {row["layer"]: row for row in rows_of(found, 0)}
    assert list(rows) == [*LAYERS, "loss", "between layers", "optimizer", "step"]
    assert rows[LAYERS[0]]["PyTorch: forward, ms"] == pytest.approx(3.0)
    assert rows[LAYERS[0]]["Keras: backward, ms"] == pytest.approx(12.0)
    assert rows["between layers"]["Keras: forward, ms"] == pytest.approx(1.0)
    other = asked(runs_of("torch", profile(step=0.1)))
    assert [any("sum of the parts is" in flag for flag in one.flags) for one in (found, other)] == [False, True]


@pytest.mark.parametrize("row", TABLE["answer"], ids=lambda row: row["is"])
def test_differences_of_both_signs_are_named_in_layers_and_elsewhere(row):
    found = asked(runs_of("keras", profile(**row["keras"])), runs_of("torch", profile(0.004)))
    assert found.answer == row["is"]


@pytest.mark.parametrize("row", TABLE["differs"], ids=lambda row: row.get("flag", "nothing differs"))
def test_settings_that_differ_are_flagged_and_work_is_that_of_all_runs(row, peaks):
    found = asked(runs_of("torch", profile()), runs_of("keras", profile(), **row["changes"]))
    flags = [one.rpartition(" against ")[2].partition(": ")[2] for one in found.flags if " against " in one]
    assert row["flag"] in flags if "flag" in row else flags == []
    assert [name for name in WORK if row_of(found, LAYERS[0])[name] is None] == row["missing"]


def test_work_and_roofline_are_those_of_the_spec(peaks):
    found = asked(runs_of("torch", profile(layers=(LAYERS[0], "conv1", "fc2")), batch=30))
    row = row_of(found, LAYERS[0])
    # cnn: forward, by weights and by input, 30 images, 320 inputs and 50 units.
    assert row["MFLOP"] == pytest.approx(3 * 2 * 30 * 320 * 50 / 1e6)
    assert row["roofline, ms"] == pytest.approx(row["MFLOP"])  # at 1 GFLOP/s
    # Nothing is made of the gradient of the images: 24 x 24 places, 10 filters of 5 x 5.
    assert row_of(found, "conv1")["MFLOP"] == pytest.approx(2 * 2 * 30 * 24 * 24 * 10 * 25 / 1e6)
    assert any("roofline of made with 1 thread: 1 GFLOP/s" in note for note in found.notes)
    world = {"devices": ["cuda:0"], "gpus": ["NVIDIA H100 80GB HBM3"]}
    of_gpu = asked(runs_of("torch", profile(), world=world))
    assert row_of(of_gpu, LAYERS[0])["roofline, ms"] is None
    assert any("no roofline: peaks are measured of processors, and some" in note for note in of_gpu.notes)


def test_steps_without_a_profile_are_told_where_there_are_runs():
    profiled = [runs_of(name, profile()) for name in ("torch", "keras")]
    asks = "to see it, name runs of the same settings without --profile-layers"
    assert any(asks in note for note in asked(*profiled).notes)
    plain = [  # of 12 steps
        study(name, seconds=seconds, first=2, framework=name)
        for name, seconds in (("torch", (0.012, 0.024, 0.36)), ("keras", (0.06,)))
    ]
    notes = asked(*profiled, *plain).notes
    assert "without a profile a step takes 2 ms in PyTorch (n = 3) and 5 ms in Keras (n = 1)" in notes
    assert not any("to see it" in note for note in notes)
    assert asked(*plain).answer == "None of these runs has times of layers: train with --profile-layers."
