"""The command line of both trainers, and recipes (TOML, a table per subject with the names of the fields)."""

import contextlib
import io
import os
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tyro

from common.config.config import Config, completed, config_from_dict
from common.errors import EXIT_CODE_USER_ERROR, UserError
from common.utils.command_line import project_version
from common.utils.whole_files import parse_toml, read_text


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
    messages = io.StringIO()
    try:
        # tyro explains a bad flag in a box of several lines; users get one line.
        with contextlib.redirect_stderr(messages):
            config = tyro.cli(
                Config,
                args=flags,
                default=base or Config(),
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
