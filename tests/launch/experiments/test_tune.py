"""`python -m launch tune`: what is tried, and a toy run of it."""

import pytest
from made_trials import made_run

from common.config import Config, parse_command_line
from common.run_folder.records import read_run
from launch.__main__ import main
from launch.experiments import series, tune
from launch.experiments.survey import HostResources
from launch.experiments.tune import levers_of

TORCH = {"compile": True, "channels_last": False}


def host(cores, gpus=0):
    return HostResources(gpus=gpus, cores=cores)


@pytest.mark.parametrize(
    ("framework", "np", "here", "tried"),
    [
        ("torch", 1, host(2), {**TORCH, "threads": [1], "onednn": "off"}),
        ("torch", 2, host(2), {**TORCH, "onednn": "off", "gradient_groups": ["2", "4", "each"]}),
        ("keras", 1, host(9), {"compile": True, "threads": [1, 2, 4, 8], "onednn": "off"}),
        ("keras", 1, host(8, gpus=1), {"compile": True, "channels_last": False}),
        ("torch", 1, host(8, gpus=1), {**TORCH, "pinned_memory": True}),
    ],
)
def test_settings_are_tried_that_change_something_here(framework, np, here, tried):
    cells = levers_of(framework, np=np, host=here)
    assert {name: value for cell in cells for name, value in cell.items() if name != "name"} == tried


@pytest.mark.ci
def test_a_toy_run_writes_a_recipe_and_is_complete_the_second_time(tmp_path, monkeypatch, capfd):
    """Two runs of each, made here without trainers, show nothing, so what is tried together are the defaults."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(series, "make_run", made_run)
    levers = [lever for lever in levers_of("torch", np=1, host=host(1)) if lever["name"] == "onednn"]
    monkeypatch.setattr(tune, "this_host", lambda: host(2))
    monkeypatch.setattr(tune, "levers_of", lambda *_, **__: levers)
    task = ["tune", "--framework", "torch", "--model", "cnn", "--dataset", "synthetic:240x28x28x1x10", "--np", "2"]
    command = [*task, "--steps", "2", "--repeats", "2"]
    assert main(command) == 0
    folder = tmp_path / "runs/tune-torch-cnn-np2"
    names = {file.parent.name for file in folder.glob("*/run.json")}
    assert names == {
        f"{name}-torch-cnn-np2-r{repeat}" for name in ("default", "onednn", "beside", "together") for repeat in (1, 2)
    }
    tuned = [read_run(folder / f"{name}-torch-cnn-np2-r1").record.config for name in ("beside", "together")]
    expected = [(False, tune.SEED_TOGETHER), (True, tune.SEED_TOGETHER)]
    assert [(config.model.tuned, config.training.seed) for config in tuned] == expected
    recipe = parse_command_line(["--recipe", str(folder / "recipe.toml")], program="train.py")
    assert recipe.model.tuned_by.startswith("tune-torch-cnn-np2 on ") and tuned[1].model.tuned_by is None
    assert recipe.model.tuned and recipe.model.model == "cnn" and recipe.device == Config().device
    printed = capfd.readouterr().out
    assert "onednn off" in printed and "no setting is shown to be faster than the default" in printed
    assert main(command) == 0 and capfd.readouterr().out.count("nothing is left to do") == 2
