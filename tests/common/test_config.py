"""Settings: defaults, flags, recipes, and one line for each invalid value."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from builders import make_config, make_setup
from hypothesis import given
from hypothesis import strategies as st

from common.config import (
    Config,
    changed_settings,
    completed,
    config_from_dict,
    parse_command_line,
    requested,
)
from common.config.strategy import STRATEGY_OF_OPTION
from common.errors import UserError

PROGRAM = "torch_impl/train.py"
SUBJECTS = {field.name: getattr(Config(), field.name) for field in dataclasses.fields(Config)}
FIELDS = [(subject, field.name) for subject, part in SUBJECTS.items() for field in dataclasses.fields(part)]
# For the fields where the value made from the type would be impossible.
SPECIAL = {
    "stall_seconds": 7.0,
    "on_stall": "drop",
    "image_size": (14, 20),
    "model": "mlp",
    "validation_share": 0.25,
    "name": "run-1",
    "output_activation": "softmax",
    "target_accuracy": 0.75,
    "checkpoint_minutes": 7.5,
    "average_every": 8,
    "lr_scaling": "sqrt",
    "shares": "2:1",
    "slow": "0:2:0.5",
    "native": "mirrored",
    "microbatches": 8,
}
# Other settings that some values need.
COMPANIONS = {
    "staleness": {"schedule": {"lr_scaling": "sqrt"}},
    "output_activation": {"optimizer": {"loss": "mse"}},
}


def parse(*arguments: str, base: Config | None = None) -> Config:
    return parse_command_line(arguments, program=PROGRAM, base=base)


def other_value(subject: str, name: str) -> Any:
    """Return a legal value of a field that is not its default."""
    default, hint = getattr(SUBJECTS[subject], name), get_type_hints(type(SUBJECTS[subject]))[name]
    if name in SPECIAL:
        return SPECIAL[name]
    if isinstance(default, bool):
        return not default
    if isinstance(default, float):
        return default / 2 + 0.125
    if isinstance(default, int) or int in get_args(hint):
        return (default or 0) + 7
    choices = get_args(hint)
    return choices[-1] if choices and isinstance(choices[0], str) else f"{name}-value"


def as_flags(name: str, value: Any) -> list[str]:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    return [f"--{flag}", *(map(str, value) if isinstance(value, tuple) else [str(value)])]


def write_recipe(folder: Path, text: str) -> str:
    path = folder / "recipe.toml"
    path.write_text(text)
    return str(path)


def assert_one_line(error: pytest.ExceptionInfo[UserError], *parts: str) -> None:
    message = str(error.value)
    assert "\n" not in message
    for part in parts:
        assert part in message, message


def test_defaults() -> None:
    config = parse()
    assert config == completed(Config())
    assert (config.model.model, config.data.dataset) == ("cnn", "mnist")
    assert (config.training.batch_size, config.optimizer.optimizer) == (64, "sgd")
    assert (config.optimizer.momentum, config.optimizer.learning_rate) == (0.9, 0.01)
    assert config.schedule.lr_scaling == "linear" and config.schedule.warmup_epochs > 0


def test_no_subject_has_more_than_a_dozen_fields_and_names_are_unique() -> None:
    for part in SUBJECTS.values():
        assert len(dataclasses.fields(part)) <= 12
    names = [name for _, name in FIELDS]
    assert len(names) == len(set(names))


# Every subject; those of strategies once for each strategy, as each has options of its own.
OF_STRATEGIES = ("strategy", "parts")
PARTS = [*(name for name in SUBJECTS if name not in OF_STRATEGIES), *sorted(set(STRATEGY_OF_OPTION.values()))]


def changed(part: str) -> tuple[str, dict[str, Any], dict[str, dict[str, Any]]]:
    """Return a subject, another value for every field of it, and what these need in other subjects."""
    if part in SUBJECTS:
        subject, values = part, {}
        names = [field.name for field in dataclasses.fields(SUBJECTS[subject])]
    else:
        subject, values = "strategy", {"strategy": part} if part != SUBJECTS["strategy"].strategy else {}
        names = [name for name, strategy in STRATEGY_OF_OPTION.items() if strategy == part]
    own = {subject: [name for name in names if (subject, name) in FIELDS] for subject in (subject, "parts")}
    values |= {name: other_value(subject, name) for name in own[subject]}
    needed = [COMPANIONS[name] for name in values if name in COMPANIONS]
    if own["parts"]:
        needed.append({"parts": {name: other_value("parts", name) for name in own["parts"]}})
    return subject, values, {part: settings for companion in needed for part, settings in companion.items()}


@pytest.mark.parametrize("part", PARTS)
def test_every_flag_reaches_its_field_and_no_other(part: str) -> None:
    subject, values, needed = changed(part)
    assert not any(value == getattr(SUBJECTS[subject], name) for name, value in values.items())
    settings = {subject: values, **needed}
    config = parse(
        *(flag for part in settings.values() for name, value in part.items() for flag in as_flags(name, value))
    )
    expected = {part: dataclasses.replace(SUBJECTS[part], **fields) for part, fields in settings.items()}
    assert config == completed(Config(**expected))


def test_the_default_scaling_of_the_learning_rate_is_that_of_the_strategy() -> None:
    assert (parse().schedule.lr_scaling, parse("--adasum").schedule.lr_scaling) == ("linear", "none")
    assert parse("--adasum", "--lr-scaling", "linear").schedule.lr_scaling == "linear"


@pytest.mark.parametrize("part", PARTS)
def test_a_recipe_can_set_every_setting(part: str, tmp_path: Path) -> None:
    subject, values, needed = changed(part)
    values.pop("resume", None)
    settings = {subject: values, **needed}
    lines = []
    for part, fields in settings.items():
        # JSON's numbers, strings, booleans and lists are TOML's.
        lines += [f"[{part}]", *(f"{name} = {json.dumps(value)}" for name, value in fields.items())]
    expected = {part: dataclasses.replace(SUBJECTS[part], **fields) for part, fields in settings.items()}
    assert parse("--recipe", write_recipe(tmp_path, "\n".join(lines))) == completed(Config(**expected))


def test_flags_override_the_recipe_and_the_recipe_the_base(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, '[about]\ntitle = "x"\n[training]\nepochs = 5\nseed = 8\n[model]\nmodel = "mlp"\n')
    base = config_from_dict({"training": {"epochs": 3, "batch_size": 7}})
    config = parse(f"--recipe={recipe}", "--epochs", "9", base=base)
    assert (config.training.epochs, config.training.seed, config.training.batch_size) == (9, 8, 7)
    assert config.model.model == "mlp"


def test_the_last_of_a_flag_wins(tmp_path: Path) -> None:
    assert parse("--epochs", "3", "--epochs", "4").training.epochs == 4
    recipe = write_recipe(tmp_path, "[training]\nepochs = 5\n")
    assert parse("--recipe", "missing.toml", "--recipe", recipe).training.epochs == 5


def test_a_whole_number_is_a_valid_float_in_a_recipe(tmp_path: Path) -> None:
    config = parse("--recipe", write_recipe(tmp_path, "[optimizer]\nlearning_rate = 1\n"))
    assert config.optimizer.learning_rate == 1.0 and isinstance(config.optimizer.learning_rate, float)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[trainin]\nepochs = 3\n", ["trainin", "training"]),
        ("epochs = 3\n", ["epochs", "training"]),
        ("[training]\nepoch = 3\n", ["epoch in [training]", "batch_size"]),
        ('[training]\nepochs = "3"\n', ["training.epochs", "'3'"]),
        ("[training]\nepochs = 3.5\n", ["training.epochs", "3.5"]),
        ("[training]\nepochs = true\n", ["training.epochs", "True"]),
        ("[training]\nepochs = -1\n", ["--epochs -1"]),
        ("[data]\nimage_size = [3]\n", ["image_size"]),
        ('[optimizer]\nloss = "hinge"\n', ["optimizer.loss", "hinge"]),
        ("[optimizer]\nlearning_rate = nan\n", ["--learning-rate nan"]),
        ("[training]\nseed = 2026-01-31\n", ["training.seed", "2026-01-31"]),
        ("[training\nepochs = 3\n", ["not TOML", "line 1"]),
        ('[record]\nresume = "runs/a"\n', ["resume", "flag"]),
    ],
)
def test_an_invalid_recipe_is_reported_in_one_line(text: str, parts: list[str], tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, text)
    with pytest.raises(UserError) as error:
        parse("--recipe", recipe)
    assert_one_line(error, "recipe.toml", *parts)


def test_an_unreadable_recipe_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    for arguments, part in [
        (["--recipe", str(tmp_path / "none.toml")], "No such file"),
        (["--recipe", str(tmp_path)], "directory"),
        (["--recipe", str(tmp_path / "binary.toml")], "not TOML"),
        (["--recipe"], "nothing after --recipe"),
        (["--recipe="], "nothing after --recipe"),
    ]:
        with pytest.raises(UserError) as error:
            parse(*arguments)
        assert_one_line(error, "--recipe", part)


IMPOSSIBLE = [
    ("--model resnet99", ["resnet99", "resnet34"]),
    ("--model deep:0x8", ["deep:0x8", "resnet34"]),
    ("--model deep:8", ["deep:8", "deep"]),
    ("--outputs 1", ["--outputs 1", "at least 2"]),
    ("--output-activation relu", ["relu", "softmax"]),
    ("--dtype float16", ["float16", "float64"]),
    ("--validation-share 1", ["--validation-share 1", "below 1"]),
    ("--validation-share -0.1", ["-0.1"]),
    ("--validation-share nan", ["nan"]),
    ("--image-size 0 5", ["(0, 5)"]),
    ("--image-size 5", ["--image-size"]),
    ("--normalization other", ["other", "unit"]),
    ("--optimizer lion", ["lion", "adamw"]),
    ("--loss hinge", ["hinge", "mse"]),
    ("--learning-rate -1", ["--learning-rate -1", "at least 0"]),
    ("--learning-rate nan", ["--learning-rate nan"]),
    ("--learning-rate inf", ["--learning-rate inf"]),
    ("--momentum 1", ["--momentum 1"]),
    ("--momentum -0.5", ["--momentum -0.5"]),
    ("--nesterov --momentum 0", ["--momentum 0", "--nesterov"]),
    ("--weight-decay -1", ["--weight-decay -1"]),
    ("--beta1 1", ["--beta1 1"]),
    ("--beta2 -0.1", ["--beta2 -0.1"]),
    ("--alpha 1.5", ["--alpha 1.5"]),
    ("--epsilon 0", ["--epsilon 0"]),
    ("--epsilon inf", ["--epsilon inf"]),
    ("--lr-scaling cubic", ["cubic", "sqrt"]),
    ("--warmup-epochs -1", ["--warmup-epochs -1"]),
    ("--decay exponential", ["exponential", "cosine"]),
    ("--decay-epochs 0", ["--decay-epochs 0"]),
    ("--decay-factor -2", ["--decay-factor -2"]),
    ("--epochs -1", ["--epochs -1"]),
    ("--epochs many", ["many"]),
    ("--epochs 1.5", ["1.5"]),
    ("--batch-size 0", ["--batch-size 0", "at least 1"]),
    ("--eval-batch-size 0", ["--eval-batch-size 0"]),
    ("--seed -1", ["--seed -1"]),
    ("--steps-per-epoch 0", ["--steps-per-epoch 0"]),
    ("--max-steps 0", ["--max-steps 0"]),
    ("--validate-every 0", ["--validate-every 0"]),
    ("--validation half", ["half", "replicated"]),
    ("--early-stop 0", ["--early-stop 0"]),
    ("--target-accuracy 0", ["--target-accuracy 0"]),
    ("--target-accuracy 97", ["--target-accuracy 97"]),
    ("--target-accuracy nan", ["--target-accuracy nan"]),
    ("--device tpu", ["tpu", "gpu"]),
    ("--mixed-precision float16 --device cpu", ["--mixed-precision float16 --device cpu", "bfloat16 does not"]),
    ("--share-gpu --device cpu", ["ranks on the CPU share no GPU", "--share-gpu --device cpu"]),
    ("--pinned-memory --device cpu", ["pinned memory is for copies to a GPU", "--pinned-memory --device cpu"]),
    ("--mixed-precision half", ["half", "bfloat16"]),
    ("--mixed-precision bfloat16 --dtype float64", ["--mixed-precision bfloat16 --dtype float64"]),
    ("--onednn yes", ["--onednn", "auto", "on", "off"]),
    ("--threads 0", ["--threads 0"]),
    ("--compression zip", ["zip", "fp16"]),
    ("--gradient-groups two", ["two", "each"]),
    ("--gradient-groups 3", ["3", "each"]),
    ("--strategy gossip", ["gossip", "averaging"]),
    ("--strategy averaging", ["averaging needs an interval", "Give --average-every"]),
    ("--strategy averaging --average-every 0", ["--average-every 0", "at least 1"]),
    ("--strategy averaging --average-every often", ["often", "epoch"]),
    ("--shares fast:slow", ["--shares is no ratio", "--shares fast:slow", "such as 2:1, or auto"]),
    ("--shares 2:0", ["--shares is no ratio", "--shares 2:0", "above 0"]),
    ("--shares 2:-1", ["--shares is no ratio", "--shares 2:-1", "above 0"]),
    ("--slow 1", ["--slow is no straggler", "--slow 1.", "RANK:FACTOR"]),
    ("--slow 1:0.5", ["--slow is no straggler", "--slow 1:0.5", "a factor from 1 to 1000"]),
    ("--slow 0:1000.5", ["--slow is no straggler", "--slow 0:1000.5", "a factor from 1 to 1000"]),
    ("--slow-is-subject", ["no straggler to be the subject", "--slow-is-subject without --slow", "Give --slow RANK"]),
    ("--slow 1:2:1.5", ["--slow is no straggler", "--slow 1:2:1.5", "RANK:FACTOR:PROBABILITY"]),
    ("--slow 1:2:0", ["--slow is no straggler", "--slow 1:2:0", "RANK:FACTOR:PROBABILITY"]),
    ("--slow 1:2 --profile", ["--profile --slow 1:2", "one of the two"]),
    ("--slow 1:2 --gradient-groups each", ["--slow 1:2 --gradient-groups each", "one of the two"]),
    ("--slow 1:2 --gradient-groups 2", ["--slow 1:2 --gradient-groups 2", "one of the two"]),
    ("--strategy averaging --average-every 8 --adasum", ["is an option of --strategy allreduce", "averaging --adasum"]),
    ("--adasum --gradient-groups auto", ["in one group", "--adasum --gradient-groups auto"]),
    ("--adasum --compression fp16", ["Adasum in float16 is not proven", "--adasum --compression fp16"]),
    ("--adasum --mixed-precision float16", ["Adasum in float16 is not proven", "--adasum --mixed-precision float16"]),
    ("--adasum --shares 2:1", ["by their angles", "--adasum --shares 2:1", "one of the two"]),
    ("--adasum --profile", ["times the averaging", "--adasum --profile"]),
    ("--backward-passes-per-step 0", ["--backward-passes-per-step 0", "at least 1"]),
    ("--backward-passes-per-step 2 --profile", ["--profile --backward-passes-per-step 2", "one of the two"]),
    (
        "--strategy averaging --average-every 8 --backward-passes-per-step 2",
        ["is an option of --strategy allreduce", "--strategy averaging --backward-passes-per-step 2"],
    ),
    ("--strategy layers", ["layers are divided among a number of ranks", "Give --stages"]),
    ("--strategy layers --stages 1", ["--stages 1", "at least 2"]),
    ("--strategy layers --stages 2 --microbatches 0", ["--microbatches 0", "at least 1"]),
    ("--strategy layers --stages 2 --microbatches 5", ["--batch-size 64 --microbatches 5", "divides the batch"]),
    ("--strategy layers --stages 2 --pipeline-schedule zero", ["zero", "1f1b"]),
    ("--memory-limit 0", ["--memory-limit 0", "at least 1"]),
    ("--elastic --commit-steps 0", ["--commit-steps 0", "at least 1"]),
    ("--stall-seconds 0", ["--stall-seconds 0", "at least 1"]),
    ("--on-stall panic", ["panic", "wait"]),
    ("--on-stall drop", ["--on-stall drop", "--elastic, too"]),
    ("--commit-steps 5", ["--commit-steps is an option of --elastic", "or give --elastic"]),
    *(
        (f"--elastic {flag}", [f"--elastic {flag.split(' --')[0]}", "one of the two"])
        for flag in (
            *("--adasum", "--shares 2:1", "--slow 0:2", "--energy", "--profile", "--horovod-timeline", "--compile"),
            *("--memory-limit 100", "--strategy server --servers 1", "--strategy averaging --average-every 2"),
            "--gradient-groups auto",
        )
    ),
    ("--cut-after conv1", ["--strategy allreduce --cut-after conv1", "or give --strategy layers"]),
    ("--strategy split", ["layers are split over a number of ranks", "Give --model-ranks"]),
    ("--strategy split --model-ranks 1", ["--model-ranks 1", "at least 2"]),
    ("--strategy split --model-ranks 2 --stages 2", ["--strategy split --stages 2", "or give --strategy layers"]),
    ("--strategy split --model-ranks 2 --mixed-precision bfloat16", ["--mixed-precision bfloat16", "not proven"]),
    *(
        (
            f"--strategy {strategy} {flag}",
            [reason, f"Received: --strategy {strategy.split()[0]} {flag.split(' --')[0]}. "],
        )
        for strategy, group in (
            ("layers --stages 2", "a stage has one group"),
            ("split --model-ranks 2", "a rank has one"),
        )
        for flag, reason in (
            ("--profile", "times the averaging of gradients"),
            ("--compression fp16", "are sent as they are"),
            ("--gradient-groups each", group),
            ("--slow 0:2 --slow-is-subject", "in steps of whole models"),
        )
    ),
    ("--strategy layers --stages 2 --profile-layers", ["averaging of gradients", "--strategy layers --profile"]),
    ("--strategy split --model-ranks 2 --profile-layers", ["averaging of gradients", "--strategy split --profile"]),
    ("--strategy server", ["servers are ranks of their own", "Give --servers"]),
    ("--servers 2", ["--strategy allreduce --servers 2", "or give --strategy server"]),
    ("--strategy server --servers 0", ["--servers 0", "at least 1"]),
    ("--strategy server --servers 1 --staleness -1", ["--staleness -1", "at least 0"]),
    ("--strategy server --servers 1 --staleness some", ["some", "none"]),
    ("--strategy server --servers 1 --staleness 2", ["--staleness 2 without --lr-scaling", "such as none"]),
    ("--strategy server --servers 1 --staleness none", ["--staleness none without --lr-scaling"]),
    ("--strategy server --servers 1 --push-every 2", ["--staleness 0 --push-every 2", "give --staleness none"]),
    ("--strategy server --servers 1 --fetch-every 0", ["--fetch-every 0", "at least 1"]),
    ("--strategy server --servers 1 --replay runs/a", ["--staleness 0 --replay runs/a"]),
    ("--strategy server --servers 1 --staleness 1 --lr-scaling none --shares 2:1", ["--staleness 1 --shares 2:1"]),
    *(
        (f"--strategy server --servers 1 {flag}", [f"--strategy server {flag}", "one of the two"])
        for flag in (
            *("--profile", "--compression fp16", "--gradient-groups each", "--mixed-precision float16"),
            "--horovod-timeline",
        )
    ),
    ("--average-every 8", ["--strategy allreduce --average-every 8", "Leave it out, or give --strategy averaging"]),
    ("--no-average-state", ["--strategy allreduce --no-average-state"]),
    ("--warmup-allreduce 5", ["--strategy allreduce --warmup-allreduce 5"]),
    ("--shares fast:slow", ["--shares is no ratio", "--shares fast:slow", "such as 2:1, or auto"]),
    ("--strategy native", ["there are several native strategies", "ddp, mirrored, multiworker"]),
    ("--strategy native --native zero", ["zero", "multiworker"]),
    ("--native ddp", ["--native is an option of --strategy native", "--strategy allreduce --native ddp"]),
    ("--strategy native --native mirrored", ["mirrored needs a number of devices", "Give --replicas"]),
    ("--strategy native --native mirrored --replicas 0", ["--replicas 0", "at least 1"]),
    ("--strategy native --native multiworker --replicas 2", ["--native multiworker --replicas 2", "as many ranks"]),
    ("--strategy native --native mirrored --replicas 2 --energy", ["energy is measured of one GPU", "--device cpu"]),
    ("--replicas 2", ["--strategy allreduce --replicas 2", "or give --strategy native"]),
    *(
        (f"--strategy native --native ddp {flag}", [f"--strategy native {flag}", "one of the two"])
        for flag in (
            *("--profile", "--compression fp16", "--gradient-groups each", "--mixed-precision float16"),
            *("--horovod-timeline", "--share-gpu", "--shares 2:1", "--slow 0:2", "--compile"),
        )
    ),
    ("--strategy averaging --average-every 8 --warmup-allreduce -1", ["--warmup-allreduce -1", "at least 0"]),
    ("--strategy averaging --average-every 8 --profile", ["--strategy averaging --profile", "one of the two"]),
    ("--strategy averaging --average-every 8 --compression fp16", ["--strategy averaging --compression fp16"]),
    ("--strategy averaging --average-every 8 --gradient-groups each", ["--strategy averaging --gradient-groups each"]),
    ("--strategy averaging --average-every 8 --mixed-precision float16", ["--mixed-precision float16", "its own way"]),
    ("--name a/b", ["a/b"]),
    ("--name .hidden", [".hidden"]),
    ("--name ..", [".."]),
    ("--keep -1", ["--keep -1"]),
    ("--checkpoint-minutes 0", ["--checkpoint-minutes 0", "above 0"]),
    ("--checkpoint-minutes -1", ["--checkpoint-minutes -1"]),
    ("--checkpoint-minutes inf", ["--checkpoint-minutes inf"]),
    ("--checkpoint-minutes nan", ["--checkpoint-minutes nan"]),
    ("--resume-or-start", ["--resume-or-start without --name", "Give --name"]),
    ("--power-interval 0", ["--power-interval 0", "at least 0.01"]),
    ("--power-interval 61", ["--power-interval 61", "at most 60"]),
    ("--idle-seconds -1", ["--idle-seconds -1", "at least 0"]),
    ("--profile --gradient-groups each", ["--gradient-groups each", "one of the two"]),
    ("--profile --gradient-groups auto", ["--gradient-groups auto", "one of the two"]),
    ("--batch-norm frozen", ["frozen", "frozen_after_validation"]),
    ("--profile --batch-norm frozen_after_validation", ["--profile", "--batch-norm frozen_after_validation"]),
    ("--profile --energy", ["--profile --energy"]),
    ("--profile --compile", ["compiled as one", "--profile --compile"]),
    ("--profile-layers --compile", ["compiled as one", "--profile --compile"]),
    ("--strategy layers --stages 2 --compile", ["exchange activations inside a pass", "--strategy layers --compile"]),
    ("--strategy split --model-ranks 2 --compile", ["exchange activations", "--strategy split --compile"]),
    ("--profile --mixed-precision bfloat16", ["--profile --mixed-precision bfloat16"]),
    ("--profile-layers --mixed-precision bfloat16", ["--profile --mixed-precision bfloat16"]),
    ("--progress dots", ["dots", "lines"]),
    ("--site my/cluster", ["--site is not a valid name", "my/cluster"]),
    ("--loss cross_entropy --output-activation softmax", ["--output-activation softmax"]),
    ("--modle cnn", ["--modle"]),
    ("stray", ["stray"]),
    ("--epochs", ["--epochs"]),
]


@pytest.mark.parametrize(
    ("recorded", "precision"), [(False, "none"), (True, "float16"), ("bfloat16", "bfloat16"), ("none", "none")]
)
def test_a_flag_of_earlier_runs_is_a_precision(recorded: bool | str, precision: str) -> None:
    config = config_from_dict({"device": {"mixed_precision": recorded}}, source="run.json")
    assert config.device.mixed_precision == precision


@pytest.mark.parametrize("recorded", [1, [True], {"a": 1}, "half"])
def test_another_precision_is_one_line(recorded: Any) -> None:
    with pytest.raises(UserError, match="mixed_precision"):
        config_from_dict({"device": {"mixed_precision": recorded}}, source="run.json")


@pytest.mark.parametrize(("line", "parts"), IMPOSSIBLE, ids=[line for line, _ in IMPOSSIBLE])
def test_an_invalid_value_is_reported_in_one_line(
    line: str, parts: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError) as error:
        parse(*line.split())
    assert_one_line(error, *parts)
    assert capfd.readouterr() == ("", "")


def test_an_error_has_no_colors_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    with pytest.raises(UserError) as error:
        parse("--share-gpu", "--device", "cpu")
    assert str(error.value).startswith("ranks on the CPU share no GPU. Received: --share-gpu --device cpu. Leave one")
    assert str(error.value).isprintable()


@pytest.mark.parametrize("setting", [{"early_stop": 3}, {"target_accuracy": 0.9}])
def test_settings_that_need_validation_samples_are_checked_against_the_data(
    setting: dict[str, float], tmp_path: Path
) -> None:
    ((name, value),) = setting.items()
    with pytest.raises(UserError) as error:
        make_setup(make_config(tmp_path, training=setting))
    assert_one_line(error, f"--{name.replace('_', '-')} {value} --validation-share 0.0. Give --validation-share")
    make_setup(make_config(tmp_path, training=setting, data={"validation_share": 0.25}))


def test_the_warm_up_of_averaging_is_shorter_than_the_run(tmp_path: Path) -> None:
    def prepare(steps: int) -> None:
        averaging = {"strategy": "averaging", "average_every": "epoch", "warmup_allreduce": steps}
        make_setup(make_config(tmp_path, strategy=averaging))

    prepare(11)
    with pytest.raises(UserError) as error:
        prepare(12)
    assert_one_line(error, "which has 12 updates. Received: --warmup-allreduce 12. Give fewer")


def test_mirrored_is_one_process_whose_replicas_share_a_batch(tmp_path: Path) -> None:
    config = make_config(tmp_path, strategy={"strategy": "native", "native": "mirrored", "replicas": 3})
    setup, batch_size = make_setup(config), config.training.batch_size
    assert (setup.size, setup.batch_sizes, setup.weight_of(0)) == (3, (3 * batch_size,), 1.0)
    with pytest.raises(UserError) as error:
        make_setup(config, size=2)
    assert_one_line(error, "mirrored is one process with several devices. Received: 2 ranks.")


def test_a_free_server_takes_a_scaling_of_the_learning_rate_from_a_recipe(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, '[schedule]\nlr_scaling = "linear"\n')
    flags = ["--strategy", "server", "--servers", "1", "--staleness", "3"]
    assert parse("--recipe", recipe, *flags) == parse("--lr_scaling=linear", *flags)


def test_every_setting_with_a_limit_is_in_the_table_above() -> None:
    """All but paths, free text and switches."""
    free = {
        "dataset",
        "data_folder",
        "gray",
        "dropout",
        "average_state",
        "evaluate_first",
        "runs_folder",
        "resume",
        "tensorboard",
        "energy",
        "tf32",
        "cudnn_benchmark",
        "channels_last",
        "powercap_folder",
        "horovod_timeline",
        "slow_is_subject",
        "start_weights",
        "replay",
        "tuned",
    }
    named = {word[2:].replace("-", "_") for line, _ in IMPOSSIBLE for word in line.split() if word.startswith("--")}
    assert {name for _, name in FIELDS} - free - named == set()


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_the_message_does_not_depend_on_the_width_of_the_terminal(
    columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    with pytest.raises(UserError) as error:
        parse("--validation-share", "1.5")
    assert_one_line(
        error,
        "--validation-share is out of range. Received: --validation-share 1.5. Give a number that is at least 0",
    )


def test_help_shows_groups_defaults_and_units(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parse("--help")
    shown = capsys.readouterr().out
    assert stop.value.code == 0
    assert PROGRAM in shown and "--recipe FILE" in shown
    for subject, part in SUBJECTS.items():
        assert f"{subject} options" in shown.lower() or subject in shown
        for field in dataclasses.fields(part):
            assert f"--{field.name.replace('_', '-')}" in shown
    text = " ".join(shown.replace("│", " ").split())
    for default in ("default: 64", "default: 0.01", "default: mnist", "default: linear", "default: None"):
        assert default in text
    assert "images per step and rank" in text and "in pixels" in text


def test_help_of_a_recipe_shows_its_values_as_defaults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("--recipe", write_recipe(tmp_path, "[training]\nbatch_size = 137\n"), "--help")
    assert "default: 137" in capsys.readouterr().out


def test_help_comes_from_the_first_rank_only(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for rank in ("0", "1"):
        monkeypatch.setenv("OMPI_COMM_WORLD_RANK", rank)
        with pytest.raises(SystemExit):
            parse("--help")
        shown = capfd.readouterr().out
        assert ("--batch-size" in shown) == (rank == "0")


def test_both_programs_have_one_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for program in ("torch_impl/train.py", "keras_impl/train.py"):
        with pytest.raises(SystemExit):
            parse_command_line(["--help"], program=program)
        shown.append(capsys.readouterr().out.replace(program, "PROGRAM"))
    assert shown[0] == shown[1]
    flags = ["--model", "mlp", "--seed", "3"]
    assert parse_command_line(flags, program="keras_impl/train.py") == parse(*flags)


@given(
    epochs=st.integers(0, 10**6),
    seed=st.integers(0, 2**63),
    learning_rate=st.floats(0, 1e6),
    share=st.floats(0, 1, exclude_max=True),
    image_size=st.none() | st.tuples(st.integers(1, 999), st.integers(1, 999)),
    gray=st.booleans(),
    outputs=st.none() | st.integers(2, 999),
)
def test_settings_survive_dictionary_and_json(
    epochs: int,
    seed: int,
    learning_rate: float,
    share: float,
    image_size: tuple[int, int] | None,
    gray: bool,
    outputs: int | None,
) -> None:
    changes = {
        "training": {"epochs": epochs, "seed": seed},
        "optimizer": {"learning_rate": learning_rate},
        "data": {"validation_share": share, "image_size": image_size, "gray": gray},
        "model": {"outputs": outputs},
    }
    config = config_from_dict(changes)
    assert config.data.image_size == image_size and config.training.seed == seed
    assert config_from_dict(config.as_dict()) == config
    assert config_from_dict(json.loads(json.dumps(config.as_dict()))) == config


def test_changed_settings_are_found_by_subject_and_name() -> None:
    before, after = Config(), config_from_dict({"training": {"epochs": 3}, "model": {"model": "mlp"}})
    assert list(changed_settings(before, before)) == []
    assert list(changed_settings(before, after)) == [("model", "model", "cnn", "mlp"), ("training", "epochs", 12, 3)]


def test_settings_cannot_be_changed_afterwards() -> None:
    for part in (Config(), *SUBJECTS.values()):
        with pytest.raises(dataclasses.FrozenInstanceError):
            part.anything = 1


def test_resume_is_found_on_the_command_line() -> None:
    assert requested("--resume", ["--epochs", "3"]) is None
    assert requested("--resume", ["--resume", "runs/a", "--epochs", "3"]) == "runs/a"
    assert requested("--resume", ["--resume=runs/a"]) == "runs/a"
    with pytest.raises(UserError, match="nothing after --resume"):
        requested("--resume", ["--resume"])
