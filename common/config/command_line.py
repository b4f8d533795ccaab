"""The command line of both trainers, and recipes (TOML, a table per subject with the names of the fields)."""

import argparse
import contextlib
import dataclasses
import io
import os
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args, get_type_hints

import tyro

from common.config.config import Config, completed, config_from_dict
from common.config.training import ModelConfig, OneDNN
from common.errors import EXIT_CODE_USER_ERROR, UserError
from common.utils.command_line import project_version
from common.utils.whole_files import parse_toml, read_text


def add_onednn_option(parser: argparse.ArgumentParser) -> None:
    """Add the trainers' `--onednn` to another program that computes."""
    parser.add_argument(
        "--onednn",
        choices=get_args(OneDNN),
        default=ModelConfig.onednn,
        help="whether oneDNN computes on CPUs; framework: as the framework decides (default: %(default)s)",
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


def parse_command_line(arguments: Sequence[str], *, program: str, base: Config | None = None) -> Config:
    """Return the settings of a command line; `--help` and `--version` print and exit.

    Args:
        base: the settings that are overridden; None: the defaults.

    Raises:
        UserError: an unknown flag or an invalid value.
    """
    if "--version" in arguments:
        print(project_version())
        raise SystemExit(0)
    recipe, flags = _split_option(arguments, "--recipe")
    if recipe is not None:
        base = config_from_dict(read_recipe(Path(recipe)), base=base, source=f"--recipe {recipe}")
    default = base or Config()
    # Help shows all settings, with their values as defaults.
    shows_all = any(flag.startswith(("-h", "--help", "--tyro")) for flag in flags)
    messages = io.StringIO()
    try:
        # tyro explains a bad flag in a box of several lines; users get one line.
        with contextlib.redirect_stderr(messages):
            config = tyro.cli(
                Config if shows_all else _changes_of(default, named=_named(flags)),
                args=flags,
                default=default if shows_all else tyro.MISSING_NONPROP,
                prog=program,
                description=(
                    "Train a model on Horovod. --recipe FILE (TOML) sets any of the following; "
                    "flags override the recipe."
                ),
                config=(tyro.conf.OmitArgPrefixes,),
                console_outputs=os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("HOROVOD_RANK", "0")) == "0",
            )
    except SystemExit as stop:
        if stop.code != EXIT_CODE_USER_ERROR:
            raise
        raise UserError(f"{_first_sentence(messages.getvalue())}. See {program} --help") from None
    return completed(config)


def _named(flags: Sequence[str]) -> set[str]:
    """Return the names of all settings that are on a command line, such as gray of `--no-gray`, and other words."""
    words = {flag.partition("=")[0].lstrip("-").replace("-", "_") for flag in flags}
    return words | {word.removeprefix("no_") for word in words}


def _changes_of(settings: Any, *, named: set[str]) -> type:
    """Return a class with those fields of `settings` that are named; called, it returns `settings` with other values.

    tyro makes a parser of all fields of a class, in each call. For the hundred settings of a run that takes ten times
    as long as all else; a command line names a few.
    """
    hints = get_type_hints(type(settings), include_extras=True)
    no_help = {"help": ""}  # else tyro looks for it in the source code
    fields: list[tuple[str, Any, Any]] = []
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            subject = _changes_of(value, named=named)
            if dataclasses.fields(subject):
                fields.append((field.name, subject, dataclasses.field(metadata=no_help)))
        elif field.name in named:
            fields.append((field.name, hints[field.name], dataclasses.field(default=value, metadata=no_help)))

    def __new__(cls: type, **changes: Any) -> Any:  # noqa: N807
        return dataclasses.replace(settings, **changes)

    name, methods = type(settings).__name__, {"__new__": __new__}
    return dataclasses.make_dataclass(name, fields, namespace=methods, init=False, repr=False, eq=False)


def _split_option(arguments: Sequence[str], option: str) -> tuple[str | None, list[str]]:
    """Return the value of `option` (the last one given) and the other arguments.

    Raises:
        UserError: the value is missing.
    """
    value, others = None, []
    remaining = iter(arguments)
    for argument in remaining:
        if argument == option:
            value = next(remaining, "")
        elif argument.startswith(f"{option}="):
            value = argument.removeprefix(f"{option}=")
        else:
            others.append(argument)
    if value == "":
        raise UserError(f"{option} needs a value. Received: nothing after {option}. Give a path, or leave it out")
    return value, others


def _first_sentence(box: str) -> str:
    """Return the text of tyro's error box below its title and above its next rule, as one line.

    On a terminal without UTF-8 the box has no sides, and hyphens below its title. If standard output is a terminal, it
    is colored.
    """
    lines: list[str] = []
    for line in re.sub(r"\x1b\[[\d;]*m", "", box).splitlines()[1:]:
        text = line.strip("│╭╰╮╯ ")
        if text.strip("─-"):
            lines.append(text)
        elif lines:
            break
    text = " ".join(lines).rstrip(".") or "the command line cannot be read"
    return re.sub(r"^Error parsing \w+: ", "", text)


def requested(option: str, arguments: Sequence[str]) -> str | None:
    """Return the value of an option such as `--resume` on a command line; None without it."""
    return _split_option(arguments, option)[0]
