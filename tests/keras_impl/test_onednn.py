"""What a program of Keras asks of oneDNN before it imports TensorFlow; `keras_checks.py` has that TensorFlow obeys."""

import sys

from builders import write_finished_run

from keras_impl.onednn import asked_for


def test_flags_recipes_and_resumed_runs_of_trainers_count(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["keras_impl/train.py"])
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('[model]\nonednn = "framework"\n')
    run = write_finished_run(tmp_path / "run", settings={"model": {"onednn": "off"}, "training": {"epochs": 1}})
    assert asked_for([]) == "on"
    assert asked_for(["--onednn", "off"]) == asked_for(["--onednn=off"]) == "off"
    assert asked_for(["--recipe", str(recipe)]) == "framework"
    assert asked_for(["--recipe", str(recipe), "--onednn", "off"]) == "off"
    assert asked_for(["--resume", str(run), "--epochs", "3"]) == "off"
    for wrong in (["--onednn", "yes"], ["--onednn"], ["--recipe", "nowhere.toml", "--onednn", "off"]):
        assert asked_for(wrong) == "on", "what is wrong is said later"


def test_other_programs_have_the_flag_alone(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["keras_impl/predict.py"])
    assert asked_for(["runs/a", "--data-folder", "b"]) == asked_for(["runs/a", "--onednn"]) == "on"
    assert asked_for(["runs/a", "--onednn", "framework"]) == "framework"
