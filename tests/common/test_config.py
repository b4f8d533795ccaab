"""Settings: defaults, flags, recipes, and one line for each invalid value."""

import dataclasses
import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field

from common.config import Config, completed, config_from_dict, parse_command_line, requested
from common.config.rules import IN_RECORD, NOTHING, SPEED, Count, Defines, Settings, defined_by
from common.errors import UserError

PROGRAM = "torch_impl/train.py"
SUBJECTS = {field.name: getattr(Config(), field.name) for field in dataclasses.fields(Config)}
FIELDS = [(subject, field.name) for subject, part in SUBJECTS.items() for field in dataclasses.fields(part)]
# Recipes that together set all of them to other values than the defaults.
RECIPES = tomllib.loads((Path(__file__).parent / "every_setting.toml").read_text())["recipe"]


def parse(*arguments, base=None):
    return parse_command_line(arguments, program=PROGRAM, base=base)


def as_flags(name, value):
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    return [f"--{flag}", "x".join(map(str, value)) if isinstance(value, list) else str(value)]


def write_recipe(folder, text):
    path = folder / "recipe.toml"
    path.write_text(text)
    return str(path)


def test_defaults():
    assert parse() == completed(Config())
    assert parse().schedule.lr_scaling == "linear"
    assert parse("--adasum").schedule.lr_scaling == "none"
    assert parse("--adasum", "--lr-scaling", "linear").schedule.lr_scaling == "linear"


def with_values(settings):
    """Return the settings in which only some fields have other values than the defaults."""
    parts = {}
    for subject, values in settings.items():
        values = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
        parts[subject] = dataclasses.replace(SUBJECTS[subject], **values)
    return completed(Config(**parts))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe["id"])
def test_every_flag_and_line_of_a_recipe_reaches_its_field_and_no_other(recipe, tmp_path):
    """Also from a record."""
    settings = {subject: dict(values) for subject, values in recipe.items() if subject != "id"}
    flags = [flag for values in settings.values() for name, value in values.items() for flag in as_flags(name, value)]
    config = parse(*flags)
    assert config == with_values(settings)
    assert config_from_dict(json.loads(json.dumps(config.as_dict()))) == config
    settings.get("record", {}).pop("resume", None)  # which a recipe cannot
    lines = []
    for subject, values in settings.items():
        # JSON's numbers, strings, booleans and lists are TOML's.
        lines += [f"[{subject}]", *(f"{name} = {json.dumps(value)}" for name, value in values.items())]
    assert parse("--recipe", write_recipe(tmp_path, "\n".join(lines))) == with_values(settings)


def test_every_setting_is_in_one_of_these_recipes():
    tried = {
        (subject, name)
        for recipe in RECIPES
        for subject, values in recipe.items()
        for name, value in (values.items() if subject in SUBJECTS else ())
        if value != getattr(SUBJECTS[subject], name)
    }
    assert tried == set(FIELDS)


@pytest.mark.parametrize(
    "line", ["--batch-size 7 --no-dropout", "--batch_size 7 --no_dropout", "--batch_size=7 --dropout --no-dropout"]
)
def test_a_flag_is_known_in_every_spelling(line):
    expected = {"training": {"batch_size": 7}, "model": {"dropout": False}}
    assert parse(*line.split()) == completed(config_from_dict(expected))


def test_flags_override_the_recipe_and_the_recipe_the_base(tmp_path):
    text = '[about]\ntitle = "x"\n[training]\nepochs = 5\nseed = 8\n[model]\nmodel = "mlp"\n[optimizer]\nmomentum = 0\n'
    base = config_from_dict({"training": {"epochs": 3, "batch_size": 7}})
    flags = ["--recipe=missing.toml", f"--recipe={write_recipe(tmp_path, text)}", "--epochs", "8", "--epochs", "9"]
    config = parse(*flags, base=base)  # of each, the last one
    assert (config.training.epochs, config.training.seed, config.training.batch_size) == (9, 8, 7)
    assert (config.model.model, config.optimizer.momentum) == ("mlp", 0.0)
    assert isinstance(config.optimizer.momentum, float)


@pytest.mark.parametrize(
    ("recipe", "flags"),
    [
        ("[record]\nresume_or_start = true\n", ["--name", "x"]),
        ('[strategy]\nstrategy = "server"\nservers = 1\nstaleness = 2\n', ["--lr-scaling", "none"]),
        ('[device]\ndevice = "cpu"\nmixed_precision = "float16"\n', ["--device", "gpu"]),
    ],
)
def test_flags_complete_a_recipe(recipe, flags, tmp_path):
    parse("--recipe", write_recipe(tmp_path, recipe), *flags)
    for fewer in ([], ["--epochs", "7"]):
        with pytest.raises(UserError, match=r"\(in --recipe .*recipe.toml\)"):
            parse("--recipe", write_recipe(tmp_path, recipe), *fewer)


@pytest.mark.parametrize("words", [["--on-stall", "end"], ["--on_stall", "end"], ["--on_stall=wait", "--on-stall=end"]])
def test_an_option_is_found_in_every_spelling(words):
    assert requested("--on-stall", words) == "end"


@pytest.mark.parametrize(
    ("recorded", "precision"),
    [(False, "none"), (True, "float16"), ("bfloat16", "bfloat16"), (1, None), ([True], None), ("half", None)],
)
def test_a_flag_of_earlier_runs_is_a_precision_and_anything_else_is_one_line(recorded, precision):
    settings = {"device": {"mixed_precision": recorded}}
    if precision:
        assert config_from_dict(settings, source="run.json").device.mixed_precision == precision
    else:
        with pytest.raises(UserError, match="mixed_precision"):
            config_from_dict(settings, source="run.json")


def test_an_error_is_the_same_line_in_every_terminal(monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "40")
    with pytest.raises(UserError) as error:
        parse("--share-gpu", "--device", "cpu")
    assert str(error.value).startswith(
        "ranks on the CPU have no GPU to share. Received: --share-gpu --device cpu. Leave one"
    )
    assert str(error.value).isprintable()


WITHOUT_LIMIT = """
    dataset data_folder gray dropout average_state evaluate_first runs_folder resume tensorboard energy tf32
    cudnn_benchmark channels_last powercap_folder horovod_timeline slow_is_subject start_weights replay tuned tuned_by
    verbose
"""  # paths, free text, switches


def test_every_setting_with_a_limit_is_in_the_table_of_refusals():
    table = tomllib.loads((Path(__file__).parents[1] / "refusals" / "train.toml").read_text())["refusal"]
    words = [word for row in table if "given" not in row for word in row["arguments"].split()]
    named = {word[2:].replace("-", "_") for word in words if word.startswith("--")}
    assert {name for _, name in FIELDS} - set(WITHOUT_LIMIT.split()) - named == set()


def test_what_a_setting_defines_is_in_its_annotation_or_that_of_its_subject():
    class Subject(Settings):
        plain: int = 1
        of_speed: Annotated[Count, SPEED] | None = None

    class Free(Subject):
        defines = NOTHING
        limited: Annotated[int | None, Field(ge=1, le=3), IN_RECORD] = None

    assert defined_by(dataclasses.dataclass(frozen=True)(Subject)) == {"plain": Defines(), "of_speed": SPEED}
    free = dataclasses.dataclass(frozen=True)(Free)
    assert defined_by(free) == {"plain": NOTHING, "of_speed": SPEED, "limited": IN_RECORD}


def help_of(capsys, *arguments, program=PROGRAM, page="--help"):
    with pytest.raises(SystemExit) as stop:
        parse_command_line([*arguments, page], program=program)
    assert stop.value.code == 0
    return capsys.readouterr().out


def test_help_shows_the_options_most_used_and_help_all_shows_all(tmp_path, capsys):
    shown, whole = help_of(capsys), help_of(capsys, page="--help-all")
    assert len(re.findall(r"^  --", shown, re.MULTILINE)) == 15 + 3  # and --recipe, --help-all, --version
    assert len(shown.splitlines()) <= 75
    for subject, part in SUBJECTS.items():
        assert f"\n{subject}:\n" in whole
        for field in dataclasses.fields(part):
            assert f"-{field.name.replace('_', '-')}" in whole
    assert "(default: 64)" in whole and "None" not in whole
    of_keras = help_of(capsys, program="keras_impl/train.py", page="--help-all")
    assert of_keras.replace("keras_impl/train.py", "PROGRAM") == whole.replace(PROGRAM, "PROGRAM")
    recipe = write_recipe(tmp_path, "[training]\nbatch_size = 137\n")
    assert "default: 137" in help_of(capsys, "--recipe", recipe)


@pytest.mark.parametrize(
    ("elsewhere", "here"),
    [
        ("--lr 0.5", "--learning-rate 0.5"),
        ("--gradient-accumulation-steps 2", "--backward-passes-per-step 2"),
        ("--strategy local-sgd --average-every 3", "--strategy averaging --average-every 3"),
        ("--strategy pipeline-parallel --stages 2", "--strategy layers --stages 2"),
        ("--strategy tensor-parallel --model-ranks 2", "--strategy split --model-ranks 2"),
    ],
)
def test_names_of_other_programs_are_read_as_ours(elsewhere, here):
    assert parse(*elsewhere.split()) == parse(*here.split()) != parse()


def test_recipes_have_these_names_and_sizes_too(tmp_path):
    text = '[optimizer]\nlr = 0.5\n[strategy]\nstrategy = "local-sgd"\naverage_every = 3\n[data]\nimage_size = "6x4"\n'
    config = parse("--recipe", write_recipe(tmp_path, text))
    assert (config.optimizer.learning_rate, config.strategy.strategy) == (0.5, "averaging")
    assert config.data.image_size == (6, 4)
    with pytest.raises(UserError, match=r"two names of one setting.*Received: learning_rate and lr"):
        parse("--recipe", write_recipe(tmp_path, "[optimizer]\nlearning_rate = 0.5\nlr = 0.1\n"))


@pytest.mark.parametrize("variable", ["OMPI_COMM_WORLD_RANK", "PMIX_RANK", "HOROVOD_RANK"])
def test_help_comes_from_the_first_rank_only(variable, monkeypatch, capfd):
    for rank in ("0", "1"):
        monkeypatch.setenv(variable, rank)
        assert ("--batch-size" in help_of(capfd)) == (rank == "0")


def test_onednn_was_once_left_to_the_framework(tmp_path):
    assert parse().model.onednn == config_from_dict({"model": {"model": "mlp"}}).model.onednn == "on"
    assert parse("--recipe", write_recipe(tmp_path, '[model]\nonednn = "auto"\n')).model.onednn == "framework"
