"""The command line of both trainers, and recipes (TOML, a table per subject with the names of the fields)."""

import argparse
import json
import os
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, get_args

from pydantic import ValidationError

from common.config.config import Config, completed
from common.config.options import all_options, flag_here, help_text, read_options
from common.config.rules import flag_of
from common.config.training import ModelConfig, OneDNN
from common.errors import UserError, first_problem
from common.json_records import adapter_of
from common.names import settings_here
from common.utils.command_line import project_version
from common.utils.whole_files import parse_toml, read_text


def add_onednn_option(parser: argparse.ArgumentParser) -> None:
    """Add the trainers' `--onednn` to another program that computes."""
    parser.add_argument(
        "--onednn",
        choices=get_args(OneDNN),
        default=ModelConfig.onednn,
        help="use oneDNN on CPUs; framework: the framework's default (default: %(default)s)",
    )


def read_recipe(path: Path) -> dict[str, Any]:
    """Return the settings of a recipe, a TOML file, without its table [about] (title, source, deviations).

    Raises:
        UserError: the file is missing, is not TOML, or sets what only a flag can.
    """
    try:
        recipe = parse_toml(read_text(path))
    except OSError as error:
        raise UserError(f"cannot read the recipe. Received: --recipe {path} ({error.strerror}). Name a file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"the recipe is not TOML. Received: --recipe {path} ({error}). Fix the file") from None
    recipe.pop("about", None)
    if isinstance(recipe.get("record"), dict) and "resume" in recipe["record"]:
        raise UserError(f"a recipe cannot resume a run. Received: resume in {path}. Give --resume RUN as a flag")
    return recipe


def config_from_dict(settings: dict[str, Any], *, base: Config | None = None, source: str = "settings") -> Config:
    """Return `base` with some settings replaced.

    Args:
        settings: subject -> field -> value, as in a recipe or in `run.json`.
        base: the other settings; None: the defaults.
        source: name of the origin for error messages.

    Raises:
        UserError: unknown subject or field, wrong type, or a value out of range.
    """
    merged = (base or Config()).as_dict()
    for subject, values in settings.items():
        if subject not in merged or not isinstance(values, dict):
            raise UserError(f"unknown subject in {source}. Received: [{subject}]. Use {', '.join(merged)}")
        values = settings_here(values, source=source)
        if unknown := set(values) - set(merged[subject]):
            known = ", ".join(merged[subject])
            raise UserError(f"unknown setting in {source}. Received: {min(unknown)} in [{subject}]. Use {known}")
        merged[subject] |= values
    try:
        # Through JSON, in which a list is a valid tuple; strict, so that "3" is not a valid int.
        config: Config = adapter_of(Config).validate_json(json.dumps(merged, default=str), strict=True)
    except ValidationError as error:
        raise UserError(f"{_problem(error)} (in {source})") from None
    return config


def _problem(error: ValidationError) -> str:
    """Return what is wrong with settings: the words of the option, if it is the value of one."""
    first = error.errors(include_url=False)[0]
    subject, name, *_ = [*(str(part) for part in first["loc"] if not str(part).startswith("function-")), "", ""]
    option = all_options().get(flag_of(name))
    if option is None or "error" in first.get("ctx", {}):  # no JSON, or a UserError of several settings
        return first_problem(error)
    return f"{subject}.{name} takes {option.takes}. Received: {first['input']!r}"


HELP = {"-h", "--help", "--help-all"}


def parse_command_line(arguments: Sequence[str], *, program: str, base: Config | None = None) -> Config:
    """Return the settings of a command line; `--help`, `--help-all` and `--version` print and exit.

    Args:
        base: the settings that are overridden; None: the defaults.

    Raises:
        UserError: an unknown option or an invalid value.
    """
    if "--version" in arguments:
        _print_and_exit(project_version())
    recipe, options = _split_option(arguments, "--recipe")
    pages = HELP & set(options)
    given = {} if pages else read_options(options, program=program)
    settings = base or Config()
    if recipe is not None:
        settings = _with_recipe(Path(recipe), given, base=settings)
    if pages:
        _print_and_exit(help_text(completed(settings), program=program, shows_all="--help-all" in pages))
    parts = {subject: replace(getattr(settings, subject), **values) for subject, values in given.items()}
    return completed(replace(settings, **parts))


def _with_recipe(file: Path, flags: dict[str, dict[str, Any]], *, base: Config) -> Config:
    """Return the settings with those of a recipe; if they do not fit together without the flags, with these, too."""
    recipe, source = read_recipe(file), f"--recipe {file}"
    try:
        return config_from_dict(recipe, base=base, source=source)
    except UserError:
        if not flags or not all(isinstance(values, dict) for values in recipe.values()):
            raise
    completing = {subject: settings_here(values, source=source) for subject, values in recipe.items()}
    together = {subject: completing.get(subject, {}) | flags.get(subject, {}) for subject in {**completing, **flags}}
    return config_from_dict(together, base=base, source=source)


def _print_and_exit(text: str) -> NoReturn:
    """Print for all ranks once, and end the program."""
    names = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "HOROVOD_RANK")  # of mpirun, srun and horovodrun
    if next((os.environ[name] for name in names if name in os.environ), "0") == "0":
        print(text)
    raise SystemExit(0)


def _split_option(arguments: Sequence[str], option: str) -> tuple[str | None, list[str]]:
    """Return the value of `option` (the last one given) and the other arguments.

    Raises:
        UserError: the value is missing.
    """
    value, others = None, []
    remaining = iter(arguments)
    for argument in remaining:
        name, equals, text = argument.partition("=")
        if flag_here(name) == option:
            value = text if equals else next(remaining, "")
        else:
            others.append(argument)
    if value == "":
        raise UserError(f"{option} needs a value. Received: nothing after {option}. Give a path, or leave it out")
    return value, others


def requested(option: str, arguments: Sequence[str]) -> str | None:
    """Return the value of an option such as `--resume` on a command line; None without it."""
    return _split_option(arguments, option)[0]
