"""Search files: what they mean, and what is wrong with them in one line."""

from pathlib import Path

import pytest
from made_trials import write_search_file

from common.errors import UserError
from launch.search.search_file import Range, grid_size, read_search_file, shipped_searches, steps_of


def test_the_shipped_search_is_valid():
    assert shipped_searches() == ["search"]
    file = read_search_file("search", runs_folder=Path("runs"))
    assert (file.keys.trials, file.frameworks, file.folder) == (20, ["torch", "keras"], Path("runs/search"))
    assert file.draws_once


def test_a_trial_is_a_run_with_the_settings_of_its_point(tmp_path):
    file = read_search_file(str(write_search_file(tmp_path)), runs_folder=tmp_path / "runs")
    planned = file.planned("keras", {"learning_rate": 0.03, "momentum": 0.5}, name="keras-t7", point=5)
    assert planned.name == "keras-t7"
    config = planned.config
    assert (config.optimizer.learning_rate, config.optimizer.momentum, config.training.epochs) == (0.03, 0.5, 3)
    assert config.training.seed == 6  # the point's, which a trial that is made again keeps
    arguments = planned.arguments(file.folder)
    assert arguments[-6:] == ["--seed", "6", "--runs-folder", str(tmp_path / "runs/made"), "--name", "keras-t7"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"random"', '"gp"', "made.toml is not a valid search file: search.sampler: Input should be"),
        ("trials = 4", "trials = 0", "search.trials: Input should be greater than or equal to 1"),
        ("trials = 4", "", "no number of trials. Received: no trials in"),
        ("trials = 4", 'trials = 4\npruner = "best"', "search.pruner: Input should be"),
        ("trials = 4", 'trials = 4\npruner = "median"', "a pruner with random points"),
        ("trials = 4", 'trials = 4\nmetric = "speed"', "search.metric: Input should be"),
        ('"journal"', '"mysql"', "search.storage: Input should be"),
        ("trials = 4", "trials = 4\nworkers = 2", "search.workers: Unexpected keyword argument"),
        ("epochs = 3", "epoch = 3", "`epoch` in [settings], which is not a setting"),
        ("epochs = 3", "repeats = 3", "`repeats` in [settings], which a search has no use for"),
        ("epochs = 3", "epochs = [1, 2]", "an axis in [settings], `epochs`"),
        ("epochs = 3", 'epochs = "many"', "invalid cell"),
        ("epochs = 3", "validate_every = 5\nepochs = 3", "no validation, and so no last validation accuracy"),
        ("validation_share = 0.2", "", "no validation, and so no last validation accuracy"),
        ('["torch", "keras"]', '["torch", "jax"]', "framework: Input should be 'torch' or 'keras'"),
        ('["torch", "keras"]', '["torch", "torch"]', "no frameworks, or one twice"),
        ('["torch", "keras"]', "[]", "no frameworks, or one twice"),
        ("momentum = [", "moment = [", "`moment` in [space], which is not a setting to search"),
        ("momentum = [", "np = [", "`np` in [space], which is the same in all trials"),
        ("momentum = [", "seed = [", "`seed` in [space], which is the same in all trials"),
        ("momentum = [", "name = [", "`name` in [space], which is not a setting to search"),
        ("momentum = [", "runs_folder = [", "`runs_folder` in [space], which the experiment sets itself"),
        ("momentum = [", "epochs = [", "`epochs` in [settings] and in [space]"),
        ("[0.0, 0.5, 0.9]", "[]", "no choices, or one twice, for `momentum`"),
        ("[0.0, 0.5, 0.9]", "[0.5, 0.5]", "no choices, or one twice, for `momentum`"),
        ("[0.0, 0.5, 0.9]", "[0.0, 2.0]", "invalid cell: "),
        ("[0.0, 0.5, 0.9]", "[[0.0], [0.5]]", "space.momentum"),
        ("[0.0, 0.5, 0.9]", "0.5", "space.momentum"),
        ("low = 0.001, high = 0.1", "low = 0.1, high = 0.001", "a range of `learning_rate` that ends before it begins"),
        ("low = 0.001, high = 0.1", "low = nan, high = 0.1", "ends before it begins"),
        ("low = 0.001", "low = 0.0", "a logarithmic range of `learning_rate` that is not of plain positive numbers"),
        ("log = true", "log = true, step = 0.1", "that is not of plain positive numbers"),
        ("log = true", "step = -0.1", "a step of `learning_rate` that is not above 0"),
        ("log = true", "base = 2", "space.learning_rate"),
        ("low = 0.001, high = 0.1, log = true", "low = 0.001", "space.learning_rate"),
        ("high = 0.1", "high = 1e9", "invalid cell: "),
        ('"random"', '"grid"', "a continuous range of `learning_rate`, which has no grid"),
        ('"random"', '"cma-es"', "too few ranges for cma-es"),
        ("[space]", "[spaces]", "is not a valid search file"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(tmp_path, old, new, message):
    file = write_search_file(tmp_path, old=old, new=new)
    with pytest.raises(UserError) as error:
        read_search_file(str(file), runs_folder=tmp_path / "runs")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_an_empty_space_and_a_file_that_is_missing_are_errors(tmp_path):
    file = write_search_file(tmp_path)
    file.write_text(file.read_text().split("[space]")[0] + "[space]\n")
    with pytest.raises(UserError, match="space: Dictionary should have at least 1 item"):
        read_search_file(str(file), runs_folder=tmp_path)
    with pytest.raises(UserError, match=r"cannot read the search file: .* Give a TOML file, or one of search"):
        read_search_file(str(tmp_path / "absent.toml"), runs_folder=tmp_path)


def test_a_grid_has_the_choices_and_the_steps_of_its_axes(tmp_path):
    assert steps_of(Range(low=0.1, high=0.4, step=0.1)) == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert steps_of(Range(low=1, high=6, step=2)) == [1, 3, 5]
    assert steps_of(Range(low=1, high=3)) == [1, 2, 3]
    part = "{ low = 0.001, high = 0.1, log = true }"
    file = write_search_file(tmp_path, sampler="grid", old=part, new="{ low = 0.01, high = 0.03, step = 0.01 }")
    assert grid_size(read_search_file(str(file), runs_folder=tmp_path)) == 9
    file.write_text(file.read_text().replace("trials = 4", "trials = 10"))
    with pytest.raises(UserError, match=r"more trials than its grid has points, 9\. Received: 10"):
        read_search_file(str(file), runs_folder=tmp_path)
