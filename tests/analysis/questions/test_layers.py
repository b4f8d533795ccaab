"""`python -m analysis layers`: times of layers worked out by hand, their work, the roofline, and runs without them."""

import pytest
from analysis_builders import rows_of
from builders import write_finished_run

from analysis.__main__ import main
from analysis.projection.peaks import Peaks
from analysis.questions import layers
from analysis.questions.layers import find
from analysis.runs.reading import load_runs
from common.measurement.step_profile import LayerSeconds, StepProfile

LAYERS = ("flatten to fc1", "relu3", "fc2")  # of cnn
WORK = ("MFLOP", "MB", "roofline, ms")
PEAKS = Peaks(device="made", threads=1, flops_per_second=1e9, bytes_per_second=1e15)


def profile(seconds, *, optimizer=0.001, step=None):
    """A step of these passes of layers, 1 ms between them, and the optimizer."""
    forward, backward = (sum(times[way] for times in seconds.values()) for way in (0, 1))
    parts = dict.fromkeys(("input", "waiting", "allreduce", "rest"), 0.0)
    parts |= {"forward": forward + 0.001, "backward": backward, "optimizer": optimizer}
    whole = sum(parts.values()) if step is None else step
    return StepProfile(
        steps=20,
        left_out_steps=5,
        step_seconds=whole,
        parts_seconds=parts,
        parts_over_step=sum(parts.values()) / whole,
        step_seconds_of_ranks=[whole],
        parts_seconds_of_ranks={part: [time] for part, time in parts.items()},
        layers={name: LayerSeconds(forward=times[0], backward=times[1]) for name, times in seconds.items()},
    )


def times(*, first):
    return {
        LAYERS[0]: (first, 2 * first),
        LAYERS[1]: (0.001, 0.001),
        LAYERS[2]: (0.001, 0.002),
        "loss": (0.0005, 0.0005),
    }


def write(folder, framework, number, **changes):
    return write_finished_run(folder / f"{framework}-{number}", framework=framework, seed=number, **changes)


def test_the_layer_in_which_frameworks_part_is_named(tmp_path):
    runs = [
        write(tmp_path, framework, number, profile=profile(times(first=first)))
        for framework, firsts in (("torch", (0.002, 0.003, 0.009)), ("keras", (0.005, 0.006, 0.007)))
        for number, first in enumerate(firsts)
    ]
    found = find(load_runs(runs))
    # Medians of each layer: 3 x 3 ms in PyTorch and 3 x 6 ms in Keras; all else alike.
    assert found.answer == (
        "cnn: a profiled step takes 26 ms in Keras and 17 ms in PyTorch. "
        "The largest differences (+: Keras is slower): flatten to fc1 +9 ms."
    )
    rows = {row["layer"]: row for row in rows_of(found, found.tables[0].title)}
    assert list(rows) == [*LAYERS, "loss", "between layers", "optimizer", "step"]
    assert rows[LAYERS[0]]["PyTorch: forward, ms"] == pytest.approx(3.0)
    assert rows[LAYERS[0]]["Keras: backward, ms"] == pytest.approx(12.0)
    assert rows["between layers"]["Keras: forward, ms"] == pytest.approx(1.0)
    both = ("PyTorch: forward, ms", "PyTorch: backward, ms")
    added = sum(row[name] or 0.0 for layer, row in rows.items() if layer != "step" for name in both)
    assert added == pytest.approx(rows["step"]["PyTorch: forward, ms"])
    assert not [flag for flag in found.flags if "sum of the parts" in flag]
    (plot,) = found.plots
    assert len(plot.figure.axes[0].patches) == 4 * len([*LAYERS, "loss", "between layers", "optimizer"])


def test_differences_of_both_signs_are_named_in_layers_and_elsewhere(tmp_path):
    """Named first, Keras is still compared with PyTorch: 6 ms less in a layer, 9 ms more in the optimizer."""
    runs = [
        write(tmp_path, "keras", 1, profile=profile(times(first=0.002), optimizer=0.010)),
        write(tmp_path, "torch", 1, profile=profile(times(first=0.004))),
    ]
    assert find(load_runs(runs)).answer == (
        "cnn: a profiled step takes 23 ms in Keras and 20 ms in PyTorch. The largest differences "
        "(+: Keras is slower): optimizer +9 ms, flatten to fc1 -6 ms."
    )
    alike = write(tmp_path, "keras", 2, profile=profile(times(first=0.00401)))
    assert find(load_runs([alike, runs[1]])).answer.endswith("No layer and no other part differs by 1 % of a step.")


@pytest.mark.parametrize(
    ("changes", "flag", "missing"),
    [
        ({}, None, ()),
        ({"world": {"threads_per_rank": 2}}, "threads: 1 and 2", ("roofline, ms",)),
        ({"batch": 60}, "global batch: 30 and 60", WORK),
        ({"np": 2, "batch": 15}, "np: 1 and 2", WORK),
        ({"settings": {"optimizer": {"optimizer": "adam"}}}, "optimizer: sgd and adam", WORK),
    ],
)
def test_settings_that_differ_are_flagged_and_work_is_that_of_all_runs(changes, flag, missing, tmp_path, monkeypatch):
    monkeypatch.setattr(layers, "peaks_of_machine", lambda machine, threads, measure: [PEAKS])
    torch = write(tmp_path, "torch", 1, profile=profile(times(first=0.002)))
    keras = write(tmp_path, "keras", 1, profile=profile(times(first=0.002)), **changes)
    found = find(load_runs([torch, keras]))
    told = [one.rpartition(" against ")[2].partition(": ")[2] for one in found.flags if " against " in one]
    assert flag in told if flag else told == []
    row = next(row for row in rows_of(found, found.tables[0].title) if row["layer"] == LAYERS[0])
    assert tuple(name for name in WORK if row[name] is None) == missing


def test_a_gpu_has_no_roofline_of_the_processor_beside_it(tmp_path, monkeypatch):
    monkeypatch.setattr(layers, "peaks_of_machine", lambda machine, threads, measure: [PEAKS])
    world = {"devices": ["cuda:0"], "gpus": ["NVIDIA H100 80GB HBM3"]}
    found = find(load_runs([write(tmp_path, "torch", 1, profile=profile(times(first=0.002)), world=world)]))
    assert rows_of(found, found.tables[0].title)[0]["roofline, ms"] is None
    assert any("no roofline: peaks are measured of processors, and some" in note for note in found.notes)


def test_steps_without_a_profile_are_told_where_there_are_runs(tmp_path):
    profiled = [write(tmp_path, name, 1, profile=profile(times(first=0.002))) for name in ("torch", "keras")]
    assert any(
        "to see it, name runs of the same settings without --profile-layers" in note
        for note in find(load_runs(profiled)).notes
    )
    plain = [
        write(tmp_path, name, number, seconds=seconds)  # of 12 steps
        for name, of_runs in (("torch", (0.012, 0.024, 0.36)), ("keras", (0.06,)))
        for number, seconds in enumerate(of_runs, start=2)
    ]
    notes = find(load_runs([*profiled, *plain])).notes
    assert "without a profile a step takes 2 ms in PyTorch (n = 3) and 5 ms in Keras (n = 1)" in notes
    assert not any("to see it" in note for note in notes)


def test_parts_that_do_not_add_up_are_flagged(tmp_path):
    run = write(tmp_path, "torch", 1, profile=profile(times(first=0.002), step=0.1))
    assert any("sum of the parts is" in flag for flag in find(load_runs([run])).flags)


def test_work_and_roofline_are_those_of_the_spec(tmp_path, monkeypatch):
    monkeypatch.setattr(layers, "peaks_of_machine", lambda machine, threads, measure: [PEAKS])
    run = write(tmp_path, "torch", 1, batch=30, profile=profile(times(first=0.002)))
    selection = load_runs([run])
    (one,) = layers.profiled_cells(selection)
    work, notes = layers.work_of_layers([one], measure=False)
    # cnn: forward, by weights and by input, 30 images, 320 inputs and 50 units.
    assert work["flatten to fc1"].flops == 3 * 2 * 30 * 320 * 50
    # Nothing is made of the gradient of the images: 24 x 24 places, 10 filters of 5 x 5.
    assert work["conv1"].flops == 2 * 2 * 30 * 24 * 24 * 10 * 25
    assert work[LAYERS[0]].least_seconds == pytest.approx(work[LAYERS[0]].flops / 1e9)
    assert "roofline of made with 1 thread: 1 GFLOP/s" in notes[0]


def test_runs_without_layers_and_of_two_models_are_no_comparison(tmp_path, capsys):
    plain = write(tmp_path, "torch", 1)
    assert main(["layers", str(plain)]) == 0
    assert "None of these runs has times of layers: train with --profile-layers." in capsys.readouterr().out
    other = {name.replace("fc", "conv"): seconds for name, seconds in times(first=0.002).items()}
    runs = [write(tmp_path, "torch", 2, profile=profile(times(first=0.002)))]
    runs += [write(tmp_path, "keras", 3, profile=profile(other))]
    assert "Layers of one model are compared" in find(load_runs(runs)).answer
