"""`python -m analysis projection`: errors on what was left out, published times, ratios, what is refused."""

from dataclasses import replace

import pytest
from analysis_builders import rows_of
from made_steps import MACHINE, PEAKS, made_steps

from analysis.projection.project import project
from analysis.projection.study import read_study, study_of
from analysis.questions.projection.command import find
from common.sites.table import read_sites


def test_errors_are_those_of_fits_that_did_not_see_the_step(study):
    made = find(study)
    rows = {(row["left out of the fit"], row["framework"]): row for row in rows_of(made, "Errors of projected steps")}
    assert {words for words, _ in rows} == {"one model", "one batch size", "one number of threads", "nothing"}
    for words in ("one model", "nothing"):
        assert rows[words, "all"]["cells"] == 90 and rows[words, "Keras"]["cells"] == 45
        assert 3 < rows[words, "all"]["median error, %"] < 15  # noise of 10 % was planted
    assert rows["nothing", "all"]["median error, %"] <= rows["one model", "all"]["median error, %"]
    assert "is reached" in made.answer and "Of 90 cells " in made.answer and " are within 30 %" in made.answer
    (plot,) = made.plots
    assert len(plot.data.rows) == 90
    (ax,) = plot.figure.axes
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    measured, projected = plot.data.rows[0][5:7]
    drawn = [(line.get_xdata()[0], line.get_ydata()[0]) for line in ax.lines if len(line.get_xdata()) == 1]
    assert any(x == pytest.approx(1e3 * measured) and y == pytest.approx(1e3 * projected) for x, y in drawn)


def test_a_model_that_the_formula_does_not_fit_is_reported_as_missed():
    slower = {"cnn": 8, "mlp": 8}
    steps = [replace(step, seconds=(slower.get(step.model, 1) * step.undisturbed,)) for step in made_steps()]
    found = find(study_of(steps, machine=MACHINE, date="2026-01-01", packages={}, peaks=list(PEAKS.values())))
    assert "is missed" in found.answer
    worst = {row["model left out"]: row["median error, %"] for row in rows_of(found, "Errors by model")}
    assert min(worst["cnn"], worst["mlp"]) > 30


def test_published_times_are_projected_with_their_settings():
    shipped = find(read_study())
    rows = {row["published"]: row for row in rows_of(shipped, "Published times, projected (interval: assumption")}
    one = rows["thesis-gpu1"]
    assert (one["published, s"], one["batch per rank"], one["phases"]) == (6008.01, 128, "training")
    k20m = read_sites().gpus["k20m"]
    step = project("resnet34", image=(1, 148, 197), outputs=9, batch=128, device=k20m)
    assert one["projected, s"] == pytest.approx(100 * 7650 / 128 * step.seconds)
    assert one["projected / published"] == pytest.approx(one["projected, s"] / 6008.01)
    assert rows["thesis-gpu2"]["ranks"] == 2 and rows["thesis-gpu2"]["batch per rank"] == 128
    outside = [name for name, row in rows.items() if row["inside"] == "no"]
    assert f"Of {len(rows)} published times {len(outside)} are outside their projected interval." in shipped.answer
    for row in rows.values():
        low, high = (float(edge.replace(",", "")) for edge in row["interval"].split(" to "))
        assert row["inside"] == ("yes" if low <= row["published, s"] <= high else "no"), row
    # The one time of the CPU is that of everything; what stands alone contains validation.
    notes = " ".join(shipped.notes)
    assert "not projected: no time is stated: notebook-cpu, notebook-gpu" in notes
    assert "not projected: pydtnn was not measured here: pydtnn-mnist" in notes
