"""What a Keras trainer asks of oneDNN before it imports TensorFlow; `keras_checks.py` has that TensorFlow obeys."""

import pytest
from builders import write_finished_run

from common.distributed.pinning import check_onednn
from common.errors import UserError
from keras_impl.onednn import asked_for


def test_flags_recipes_and_resumed_runs_count(tmp_path):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('[model]\nonednn = "on"\n')
    run = write_finished_run(tmp_path / "run", settings={"model": {"onednn": "off"}, "training": {"epochs": 1}})
    assert asked_for([]) == "auto"
    assert asked_for(["--onednn", "off"]) == asked_for(["--onednn=off"]) == "off"
    assert asked_for(["--recipe", str(recipe)]) == "on"
    assert asked_for(["--recipe", str(recipe), "--onednn", "off"]) == "off"
    assert asked_for(["--resume", str(run), "--epochs", "3"]) == "off"
    for wrong in (["--onednn", "yes"], ["--onednn"], ["--recipe", "nowhere.toml", "--onednn", "on"]):
        assert asked_for(wrong) == "auto", "what is wrong is said later"


@pytest.mark.parametrize(("asked", "is_on"), [("on", False), ("off", True)])
def test_a_process_that_cannot_do_it_ends(asked, is_on):
    check_onednn(asked, is_on=not is_on)
    check_onednn("auto", is_on=is_on)
    with pytest.raises(UserError, match=f"Received: --onednn {asked}. Leave it out"):
        check_onednn(asked, is_on=is_on)
