"""`python -m analysis tune`: the recipe as trainers read it."""

from pathlib import Path

import pytest
from question_cases import case_in, selection_of

from analysis.questions.tune import find
from common.config import Config, parse_command_line
from common.errors import UserError

CASES = Path(__file__).with_name("tune.toml")


def recipe_of(case, file):
    """Write the recipe of the case of this name, and return it as trainers read it."""
    find(selection_of(case_in(CASES, case)), recipe_out=file)
    return parse_command_line(["--recipe", str(file)], program="train.py")


def test_what_is_shown_to_be_faster_becomes_a_recipe(tmp_path):
    recipe = tmp_path / "recipe.toml"
    config = recipe_of("what is shown to be faster", recipe)
    assert (config.model.model, config.model.compile, config.model.tuned) == ("cnn", False, True)
    assert config.model.tuned_by.endswith(" on node1")
    device = config.device
    assert (device.gradient_groups, device.channels_last, device.threads) == ("each", False, None)
    text = recipe.read_text()
    assert "#   gradient_groups each: 0.900, 95 % interval 0.900 to 0.900, n = 6 pairs: faster, taken\n" in text
    assert "#   gradient_groups 2: 0.950, 95 % interval 0.950 to 0.950, n = 6 pairs: faster\n" in text
    assert "pairs: not shown\n" in text and "6 runs of the default:" in text
    with pytest.raises(UserError, match="the recipe exists already and is not overwritten"):
        recipe_of("what is shown to be faster", recipe)
    assert recipe_of("what was tried together stays", tmp_path / "together.toml").device.gradient_groups == "2"
    few = recipe_of("too few runs", tmp_path / "few.toml")
    assert few.model.tuned and few.device == Config().device
