"""`python -m analysis tune`: what is taken, the recipe as trainers read it, and how `frameworks` pairs such runs."""

from pathlib import Path

import pytest
from analysis_builders import rows_of, select, study
from question_cases import cases_in, check_case, runs_in

from analysis.questions import frameworks
from analysis.questions.tune import find
from analysis.runs.cells import cells_of
from common.config import Config, parse_command_line
from common.errors import UserError

CASES = Path(__file__).with_name("tune.toml")


@pytest.mark.parametrize("case", cases_in(CASES))
def test_what_is_found(case):
    check_case(case, find)


def recipe_of(case, file):
    """Write the recipe of the case of this name, and return it as trainers read it."""
    find(select(*runs_in(CASES, case)), recipe_out=file)
    return parse_command_line(["--recipe", str(file)], program="train.py")


def test_what_is_shown_to_be_faster_becomes_a_recipe(tmp_path):
    recipe = tmp_path / "recipe.toml"
    config = recipe_of("what is shown to be faster", recipe)
    assert (config.model.model, config.model.compile, config.model.tuned) == ("cnn", False, True)
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


def runs_of(name, seconds, **changes):
    return study(name, seconds=[seconds * factor for factor in (1.0, 1.01, 0.99, 1.005, 0.995, 1.002)], **changes)


def test_frameworks_pairs_defaults_with_defaults_and_tuned_with_tuned(plots):
    runs = []
    groups, compiled = {"device": {"gradient_groups": "each"}}, {"model": {"compile": True}}
    for framework, seconds, best in (("torch", 100.0, groups), ("keras", 120.0, compiled)):
        runs += runs_of(f"{framework}-default", seconds, framework=framework, np=2)
        tuned = best | {"model": best.get("model", {}) | {"tuned": True}}
        runs += runs_of(f"{framework}-tuned", seconds / 2, settings=tuned, framework=framework, np=2)
    found = frameworks.find(select(runs))
    rows = {row["model, data set, np"]: row for row in rows_of(found, "Keras against PyTorch")}
    assert [*rows] == [
        "cnn, mnist, np 2, not tuned",
        "cnn, mnist, np 2, tuned",  # what is fastest differs between the frameworks
    ]
    assert [row["Keras / PyTorch time"] for row in rows.values()] == [pytest.approx(1.2)] * 2
    assert not [flag for flag in found.flags if "against" in flag]
    assert "tuned: each framework has the settings of speed that `launch tune` found best for it" in found.notes
    (times,) = (plot.data.rows for plot in found.plots if plot.name == "frameworks-time")
    assert {(row[0], row[1]) for row in times} == {(name, label) for name in ("torch", "keras") for label in rows}


def test_what_runs_were_tuned_to_is_named_where_a_framework_was_tuned_twice():
    tuned = [{"device": {"gradient_groups": groups}, "model": {"tuned": True}} for groups in ("each", "2")]
    runs = [runs_of(f"tuned{number}", 100.0, settings=one, np=2) for number, one in enumerate(tuned)]
    names = {cell.label for cell in cells_of(select(*runs).runs)}
    assert names == {f"cnn, mnist, np 2, tuned, gradient groups {groups}" for groups in ("each", "2")}


def test_tuned_runs_alone_are_named_so_and_pair_with_no_default():
    tuned = {"model": {"tuned": True}}
    torch, keras = (runs_of(name, 100.0, settings=tuned, framework=name) for name in ("torch", "keras"))
    (row,) = rows_of(frameworks.find(select(torch, keras)), "Keras against PyTorch")
    assert row["model, data set, np"] == "cnn, mnist, np 1, tuned"
    plain = runs_of("plain", 100.0, framework="keras")
    assert not rows_of(frameworks.find(select(torch, plain)), "Keras against PyTorch")
