"""What a Keras trainer asks of oneDNN before it imports TensorFlow; in a process of its own, that TensorFlow obeys."""

import subprocess
import sys
from pathlib import Path

import pytest
from builders import write_finished_run

from common.distributed.pinning import check_onednn
from common.errors import UserError
from common.utils.paths import ROOT
from keras_impl.onednn import asked_for

PROGRAM = """
import os
from types import SimpleNamespace
from common.distributed.console import Console
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"
from keras_impl import onednn
onednn.import_tensorflow("off")
assert not onednn.onednn_is_on()
for asked, device in (("auto", "cpu"), ("off", "cpu"), ("auto", "GPU:0")):
    onednn.say_without_onednn(Console(SimpleNamespace(rank=0)), asked=asked, device=device)
assert os.environ["TF_ENABLE_ONEDNN_OPTS"] == "1", "what the user has set is recorded"
"""


def test_flags_recipes_and_resumed_runs_count(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('[model]\nonednn = "on"\n')
    run = write_finished_run(tmp_path / "run", settings={"model": {"onednn": "off"}, "training": {"epochs": 1}})
    assert asked_for([]) == "auto"
    assert asked_for(["--onednn", "off"]) == asked_for(["--onednn=off"]) == "off"
    assert asked_for(["--recipe", str(recipe)]) == "on"
    assert asked_for(["--recipe", str(recipe), "--onednn", "off"]) == "off"
    assert asked_for(["--resume", str(run), "--epochs", "3"]) == "off"


@pytest.mark.parametrize("wrong", [["--onednn", "yes"], ["--onednn"], ["--recipe", "nowhere.toml", "--onednn", "on"]])
def test_what_is_wrong_is_said_later(wrong: list[str]) -> None:
    assert asked_for(wrong) == "auto"


@pytest.mark.parametrize(("asked", "is_on"), [("on", False), ("off", True)])
def test_a_process_that_cannot_do_it_ends(asked: str, is_on: bool) -> None:
    check_onednn(asked, is_on=not is_on)
    check_onednn("auto", is_on=is_on)
    with pytest.raises(UserError, match=f"Received: --onednn {asked}. Leave it out"):
        check_onednn(asked, is_on=is_on)


def test_tensorflow_obeys(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("try --onednn on") == 1, "said where nothing was asked for, on a CPU"
