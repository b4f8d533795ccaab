"""`python -m analysis tune`: what is taken, the recipe as trainers read it, and how `frameworks` pairs such runs."""

import pytest
from analysis_builders import rows_of, select, study

from analysis.questions import frameworks
from analysis.questions.tune import find
from analysis.runs.cells import cells_of
from common.config import Config, parse_command_line
from common.errors import UserError

SPREAD = (1.0, 1.01, 0.99, 1.005, 0.995, 1.002)
FEW = SPREAD[:2]
TOGETHER = 1001  # the first seed of the runs of all chosen settings


def runs_of(name, seconds, *, spread=SPREAD, **changes):
    """Return a run for each factor of `spread`."""
    return study(name, seconds=[seconds * factor for factor in spread], **changes)


def levers(spread=SPREAD):
    """Return runs in which two numbers of groups are faster, compiled passes not shown to be, and threads slower."""
    mixed = [factor * (1.05 if number % 2 else 0.95) for number, factor in enumerate(spread)]
    changed = [
        ("compile", 100.0, mixed, {"model": {"compile": True}}),
        ("default", 100.0, spread, {}),
        ("each", 90.0, spread, {"device": {"gradient_groups": "each"}}),
        ("layout", 80.0, spread, {"device": {"channels_last": False}}),
        ("threads", 130.0, spread, {"device": {"threads": 2}}),
        ("two", 95.0, spread, {"device": {"gradient_groups": "2"}}),
    ]
    return [
        run
        for name, seconds, factors, settings in changed
        for run in runs_of(name, seconds, spread=factors, settings=settings, np=2,
                           world={"threads_per_rank": 2} if name == "threads" else {})
    ]  # fmt: skip


def test_what_is_shown_to_be_faster_becomes_a_recipe(tmp_path):
    recipe = tmp_path / "recipe.toml"
    found = find(select(levers()), recipe_out=recipe)
    assert [(row["settings"], row["verdict"]) for row in rows_of(found, "PyTorch")] == [
        ("compile true", "not shown"),
        ("gradient_groups each", "faster"),
        ("channels_last false", "faster"),
        ("threads 2", "slower"),
        ("gradient_groups 2", "faster"),
    ]
    assert found.answer == "PyTorch: take channels_last false, gradient_groups each. They were not tried together."
    text = recipe.read_text()
    assert "#   gradient_groups each: 0.900, 95 % interval 0.900 to 0.900, n = 6 pairs: faster, taken\n" in text
    assert "#   gradient_groups 2: 0.950, 95 % interval 0.950 to 0.950, n = 6 pairs: faster\n" in text
    assert "pairs: not shown\n" in text and "6 runs of the default:" in text
    config = parse_command_line(["--recipe", str(recipe)], program="train.py")
    assert (config.model.model, config.model.compile, config.model.tuned) == ("cnn", False, True)
    device = config.device
    assert (device.gradient_groups, device.channels_last, device.threads) == ("each", False, None)
    with pytest.raises(UserError, match="the recipe exists already and is not overwritten"):
        find(select(levers()), recipe_out=recipe)


def test_what_was_tried_together_stays(tmp_path):
    """The default's runs of other seeds pair with them, and no run pairs with two."""
    beside = runs_of("beside", 100.0, first=TOGETHER, np=2)
    tuned = {"device": {"gradient_groups": "2"}, "model": {"tuned": True}}
    together = runs_of("together", 85.0, settings=tuned, first=TOGETHER, np=2)
    found = find(select(levers(), beside, together), recipe_out=tmp_path / "recipe.toml")
    row = rows_of(found, "PyTorch")[-1]
    assert (row["settings"], row["n"], row["verdict"]) == ("together: gradient_groups 2", 6, "faster")
    assert row["time / default"] == pytest.approx(0.85)
    assert found.answer == "PyTorch: take gradient_groups 2. Together: 0.85 of the default's time, faster."
    assert parse_command_line(["--recipe", str(tmp_path / "recipe.toml")], program="").device.gradient_groups == "2"


def test_too_few_runs_show_nothing(tmp_path):
    found = find(select(levers(FEW)), recipe_out=tmp_path / "recipe.toml")
    assert {row["verdict"] for row in rows_of(found, "PyTorch")} == {"too few runs"}
    assert found.answer == "PyTorch: no setting is shown to be faster than the default."
    config = parse_command_line(["--recipe", str(tmp_path / "recipe.toml")], program="")
    assert config.model.tuned and config.device == Config().device


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
