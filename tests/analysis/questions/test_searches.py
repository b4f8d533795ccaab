"""`python -m analysis hyperparameters` on a search: best scores, importance, pairs, and the recipe."""

import math
from itertools import product
from pathlib import Path

import pytest
from analysis_builders import made_search, made_trial, rate_of, rows_of, write_searched

from analysis.__main__ import main
from analysis.questions.hyperparameters.command import find
from analysis.questions.hyperparameters.search_plots import plots_of
from analysis.questions.hyperparameters.searches import Search, importances
from analysis.runs.reading import load_runs
from common.config import parse_command_line
from common.run_folder.search_record import read_search, write_search


def both(points=12):
    """Trials whose score rises with the learning rate; Keras's is 1 point higher and takes twice as long."""
    scores = [0.5 + 0.02 * point for point in range(points)]
    return [
        made_trial(framework, point, score=score + more, seconds=seconds)
        for point, score in enumerate(scores)
        for framework, more, seconds in (("torch", 0.0, 10.0), ("keras", 0.01, 20.0))
    ]


def test_best_scores_times_and_the_difference_at_equal_points(tmp_path):
    found = find(load_runs([write_searched(tmp_path / "made", made_search(both()))]))
    assert found.answer == (
        "made: PyTorch's best last validation accuracy is 72 %, of 12 trials in 120 s. "
        "made: Keras's best last validation accuracy is 73 %, of 12 trials in 240 s. "
        "At the same 12 points they differ: Keras's score is +1 points from PyTorch's."
    )
    rows = rows_of(found, "Search made: both frameworks at the same points")
    assert len(rows) == 13
    assert [row["difference"] for row in rows] == pytest.approx([1.0] * 13)
    best, *_ = rows_of(found, "Search made: best settings")
    assert (best["framework"], best["rank"], best["run"]) == ("PyTorch", 1, "torch-t11")
    assert best["learning_rate"] == pytest.approx(rate_of(11))


def search(*trials, **changes):
    return Search(Path("made"), made_search(list(trials), **changes))


def test_the_best_so_far_never_gets_worse_and_pruned_trials_cost_time():
    trials = [
        made_trial("torch", 0, score=0.6),
        made_trial("torch", 1, score=0.9, state="pruned", seconds=3.0),  # not the best: it was not trained to the end
        made_trial("torch", 2, score=0.5),
        made_trial("torch", 3, score=0.7),
        made_trial("torch", 4, score=None, state="failed"),
    ]
    accuracies = search(*trials, drawn_once=False, sampler="tpe")
    assert accuracies.progress("torch") == [
        (1, 10.0, 10.0, 60.0),
        (2, 13.0, 70.0, 60.0),
        (3, 23.0, 130.0, 60.0),
        (4, 33.0, 190.0, 70.0),
    ]
    losses = search(*trials, metric="last_validation_loss")
    assert [score for *_, score in losses.progress("torch")] == [0.6, 0.6, 0.5, 0.5]
    assert [one.best_trial().number for one in (accuracies, losses)] == [3, 2]


def test_the_clock_runs_from_the_first_start_of_any_framework():
    times = [("keras", 0, "00:00:40"), ("torch", 0, "00:00:50"), ("torch", 1, "01:00:00")]  # the last: interrupted
    trials = [
        made_trial(framework, number, score=0.5, seconds=40.0 if framework == "keras" else 10.0,
                   ended_at=f"2026-01-01T{time}.000+00:00")
        for framework, number, time in times
    ]  # fmt: skip
    assert [point.clock_seconds for point in search(*trials).progress("torch")] == [50.0, 3600.0]
    assert [point.clock_seconds for point in search(*trials).progress("keras")] == [40.0]


def test_what_decides_the_score_is_important():
    trials = [made_trial("torch", point, score=0.5 + 0.02 * point) for point in range(20)]
    found = importances(search(*trials), "torch")
    assert found["learning_rate"] > 0.8 and sum(found.values()) == pytest.approx(1.0)
    assert importances(search(*trials[:9]), "torch") == {}


def test_adaptive_searches_are_not_paired(tmp_path):
    folder = write_searched(tmp_path / "made", made_search(both(), drawn_once=False, sampler="tpe", pruner="median"))
    found = find(load_runs([folder]))
    assert "only the curves of the best score compare" in found.answer
    assert not [table for table in found.tables if "same points" in table.title]
    assert "hyperparameters-pairs" not in [plot.name for plot in found.plots]
    assert any("do not pair" in note for note in found.notes)


def test_plots_show_what_their_data_say():
    plots = {plot.name: plot for plot in plots_of(search(*both()))}
    assert list(plots) == [
        "hyperparameters-search", "hyperparameters-importance", "hyperparameters-coordinates", "hyperparameters-pairs",
    ]  # fmt: skip
    _, seconds, _ = plots["hyperparameters-search"].figure.axes
    assert [line.get_xdata()[-1] for line in seconds.get_lines()] == [120.0, 240.0]
    assert [line.get_ydata()[-1] for line in seconds.get_lines()] == pytest.approx([72.0, 73.0])


def test_diverged_and_missing_trials_do_not_break_anything(tmp_path):
    trials = [
        made_trial(framework, point, score=math.inf if point == 1 else 1.0 + point)
        for framework, point in product(("torch", "keras"), range(12))
    ]
    waiting = {"state": "waiting", "run": None, "params": {}, "seconds": None, "ended_at": None}
    record = made_search([*trials, made_trial("torch", 12, score=None, **waiting)], metric="best_validation_loss")
    write_search(tmp_path, record)
    assert read_search(tmp_path) == record
    diverged = Search(tmp_path, record)
    assert diverged.points_of_both() == [0, *range(2, 12)] and len(plots_of(diverged)) == 4
    alone = search(made_trial("torch", 0, score=0.5))
    assert [plot.name for plot in plots_of(alone)] == ["hyperparameters-search", "hyperparameters-coordinates"]
    assert plots_of(search()) == []


def test_the_recipe_gives_the_settings_of_the_best_trial(tmp_path, capsys):
    folder, recipe = write_searched(tmp_path / "made", made_search(both())), tmp_path / "best.toml"
    assert main(["hyperparameters", str(folder), "--recipe-out", str(recipe)]) == 0
    assert f"note: {recipe} has the settings of keras-t11: python keras_impl/train.py" in capsys.readouterr().out
    config = parse_command_line(["--recipe", str(recipe)], program="keras_impl/train.py")
    (best,) = load_runs([folder / "keras-t11"]).runs["config"]
    assert (config.data, config.model, config.optimizer, config.training) == (
        best.data, best.model, best.optimizer, best.training,
    )  # fmt: skip
    assert config.optimizer.learning_rate == rate_of(11)
    assert (config.device.compression, config.device.threads) == ("fp16", None)
    assert 'optimizer = "sgd"' in recipe.read_text(), "a default that readers look for"
