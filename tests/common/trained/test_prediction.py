"""Words of `predict.py` that do not go together: each trainer's folder has the program."""

import pytest

from common.trained.prediction import run_prediction


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["run", "--invert"], "only image files are inverted. Received: --invert and no file."),
        (["run", "a.png", "--data-folder", "x"], "only a data set is read from its folder. Received: --data-folder x"),
    ],
)
def test_an_option_that_would_have_no_effect_is_refused(words, line, capsys):
    assert run_prediction(lambda model: pytest.fail("built"), words, program="predict.py") == 2
    assert capsys.readouterr().err.startswith(f"predict.py: error: {line}")
