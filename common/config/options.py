"""The trainers' options, one for each setting: how they are read, and how they are shown by `--help`.

Errors are in our own words: which setting is wrong, what it takes, what was probably meant.
"""

import argparse
import ast
import inspect
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from common.config.config import Config, subjects
from common.config.rules import flag_of
from common.config.strategies import kinds_of, notes_on
from common.errors import UserError
from common.names import OPTIONS_ELSEWHERE, value_here
from common.utils.printable import suggestion

# Those that `--help` shows; `--help-all` shows all.
MOST_USED = (
    "dataset", "validation_share", "model", "optimizer", "learning_rate", "lr_scaling", "batch_size", "epochs", "seed",
    "strategy", "device", "mixed_precision", "threads", "name", "resume",
)  # fmt: skip
EXAMPLES = """\
examples:
  horovodrun -np 2 python {program} --epochs 1
  horovodrun -np 2 python {program} --model resnet34 --dataset cifar10 --batch-size 32
  python {program} --dataset images:FOLDER --image-size 64x64 --validation-share 0.1
"""
# JSON's name of a type -> in words, and in a help page.
_TYPES = {
    "integer": ("a whole number", "INT"),
    "number": ("a number", "FLOAT"),
    "string": ("a string", "STR"),
    "boolean": ("true or false", ""),
    "array": ("HEIGHTxWIDTH", "HEIGHTxWIDTH"),
}
_BOUNDS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}


@dataclass(frozen=True)
class Option:
    """An option of the command line; its setting's annotation has type, range and what it defines."""

    subject: str
    name: str
    annotation: Any

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.annotation)

    @cached_property
    def _alternatives(self) -> list[dict[str, Any]]:
        """The JSON Schema of each type that it takes, but for None."""
        schema = self._adapter.json_schema()
        return [part for part in schema.get("anyOf", [schema]) if part["type"] != "null"]

    @property
    def is_switch(self) -> bool:
        """Whether it takes no value."""
        return self._alternatives[0]["type"] == "boolean"

    @property
    def choices(self) -> list[str]:
        """The words that it takes."""
        return [word for schema in self._alternatives for word in _choices(schema)]

    @property
    def takes(self) -> str:
        """What it takes, in words."""
        *first, last = [word for schema in self._alternatives for word in _choices(schema) or [_described(schema)]]
        return f"{', '.join(first)} or {last}" if first else last

    @property
    def metavar(self) -> str:
        """What stands for its value in a help page."""
        words = [word for schema in self._alternatives for word in _choices(schema) or [_TYPES[schema["type"]][1]]]
        return words[0] if len(words) == 1 else f"{{{','.join(words)}}}"

    def read(self, text: str, *, help_page: str) -> Any:
        """Return the value that a word of the command line means.

        Raises:
            UserError: the setting takes no such value.
        """
        text = value_here(self.name, text)
        try:
            return self._adapter.validate_python(text)
        except ValidationError:
            wrong = f"{flag_of(self.name)} takes {self.takes}. Received: {flag_of(self.name)} {text}"
            raise UserError(f"{wrong}. {suggestion(text, self.choices)}{help_page}") from None


def _choices(schema: dict[str, Any]) -> list[str]:
    return [schema["const"]] if "const" in schema else schema.get("enum", [])


def _described(schema: dict[str, Any]) -> str:
    """Return what a type takes, such as "a whole number (at least 1)"."""
    bounds = " and ".join(f"{words} {schema[name]:,}" for name, words in _BOUNDS.items() if name in schema)
    words: str = schema.get("description", _TYPES[schema["type"]][0])
    return f"{words} ({bounds})" if bounds else words


@cache
def all_options() -> dict[str, Option]:
    """Return flag -> option, of all settings."""
    return {
        flag_of(name): Option(subject, name, annotation)
        for subject, settings in subjects().items()
        for name, annotation in get_type_hints(settings, include_extras=True).items()
    }


@cache
def _docstrings(subject: Any) -> dict[str, str]:
    """Return the text below each setting of a subject, which Python does not keep."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(subject))).body
    assert isinstance(definition, ast.ClassDef)
    texts = {}
    for setting, below in pairwise(definition.body):
        if isinstance(setting, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            assert isinstance(setting.target, ast.Name)
            texts[setting.target.id] = " ".join(str(below.value.value).split())
    return texts


def read_options(arguments: Sequence[str], *, program: str) -> dict[str, dict[str, Any]]:
    """Return subject -> setting -> value, of each option that is given to a program; the last one counts.

    Raises:
        UserError: an unknown option, one without a value, or a value that it does not take.
    """
    help_page = f"See {program} --help-all"
    given: dict[str, dict[str, Any]] = {}
    words = iter(arguments)
    for word in words:
        start, equals, text = word.partition("=")
        flag = flag_here(start)
        option, switched = all_options().get(flag), True
        if option is None and flag.startswith("--no-"):
            option, switched = all_options().get(f"--{flag.removeprefix('--no-')}"), False
        if option is None or not (switched or option.is_switch):
            raise UserError(f"{_unknown(word)}{help_page}")
        flag = flag_of(option.name)
        if option.is_switch:
            if equals:
                raise UserError(f"{flag} takes no value. Received: {word}. Remove the value. {help_page}")
            value: Any = switched
        else:
            text = text if equals else next(words, "")
            if not text or (not equals and text.startswith("--")):
                raise UserError(f"{flag} takes {option.takes}. Received: {word} without a value. {help_page}")
            value = option.read(text, help_page=help_page)
        given.setdefault(option.subject, {})[option.name] = value
    return given


def flag_here(word: str) -> str:
    """Return an option in our spelling and by our name."""
    if not word.startswith("--"):
        return word
    name = word[2:].replace("-", "_")
    return flag_of(OPTIONS_ELSEWHERE.get(name, name))


def _unknown(word: str) -> str:
    """Return what is wrong with a word that is no option."""
    flag = flag_here(word.partition("=")[0])
    if flag in ("--np", "-np", "-n"):
        starts = "horovodrun -np 2 python ..., or python -m launch train --np 2"
        return f"the launcher sets the number of ranks. Received: {word}. Start ranks with {starts}. "
    if not word.startswith("-"):
        return f"unexpected argument. Received: {word}. "
    return f"unknown option. Received: {word}. {suggestion(flag, all_options())}"


def help_text(settings: Config, *, program: str, shows_all: bool) -> str:
    """Return the help page of a trainer.

    Args:
        settings: those that hold without an option.
        shows_all: all settings, in groups by subject, with what they need and exclude.
    """
    parser = argparse.ArgumentParser(
        prog=program, usage=f"{program} [OPTIONS]", add_help=False,
        formatter_class=argparse.RawDescriptionHelpFormatter, epilog=EXAMPLES.format(program=program),
        description="Train a model with Horovod. Every option can also be set in a recipe: --recipe FILE (TOML).",
    )  # fmt: skip
    groups: dict[str, Any] = {}
    for option in all_options().values() if shows_all else [all_options()[flag_of(name)] for name in MOST_USED]:
        name = option.subject if shows_all else "common options"
        if name not in groups:
            about = " ".join(str(subjects()[name].__doc__).split()) if shows_all else None
            groups[name] = parser.add_argument_group(name, about)
        words = [_docstrings(subjects()[option.subject])[option.name], *kinds_of(option.name)]
        words += notes_on(option.name) if shows_all else []
        _add(groups[name], option, "; ".join(words), getattr(getattr(settings, option.subject), option.name))
    more = parser.add_argument_group("other options")
    more.add_argument("--recipe", metavar="FILE", help="settings from a TOML file; options override them")
    more.add_argument("--help-all", action="store_true", help="show all settings")
    more.add_argument("--version", action="store_true", help="show the version of this program")
    return parser.format_help()


def _add(group: Any, option: Option, words: str, default: Any) -> None:
    flag, words = flag_of(option.name), words.replace("(None: ", "(default: ").replace("%", "%%")
    if option.is_switch:
        flags = [flag, flag_of(f"no_{option.name}")] if default else [flag]
        group.add_argument(*flags, action="store_true", help=words + " (default: on)" * default)
        return
    if default is not None and "(default: " not in words:
        words += f" (default: {default})"
    group.add_argument(flag, metavar=option.metavar, help=words)
