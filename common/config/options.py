"""The trainers' options, one for each setting: how they are read, and how they are shown by `--help`.

Errors are in our own words: which setting is wrong, what it takes, what was probably meant.
"""

import argparse
import ast
import dataclasses
import inspect
import textwrap
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from common.config.config import Config
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
# Type -> in words, and in a help page.
_KINDS = {
    int: ("a whole number", "INT"),
    float: ("a number", "FLOAT"),
    str: ("a string", "STR"),
    tuple: ("HEIGHTxWIDTH", "HEIGHTxWIDTH"),
}


@dataclass(frozen=True)
class Option:
    """An option of the command line.

    Attributes:
        subject, name: of its setting.
        annotation: of the setting: type, range and what it defines.
    """

    subject: str
    name: str
    annotation: Any

    @property
    def flag(self) -> str:
        """As on the command line, such as --batch-size."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def is_switch(self) -> bool:
        """Whether it takes no value."""
        return list(_kinds(self.annotation)) == [bool]

    @property
    def choices(self) -> list[str]:
        """The words that it takes."""
        return [kind for kind in _kinds(self.annotation) if isinstance(kind, str)]

    @property
    def takes(self) -> str:
        """What it takes, in words."""
        *first, last = [_KINDS[kind][0] if kind in _KINDS else kind for kind in _kinds(self.annotation)]
        return f"{', '.join(first)} or {last}" if first else last

    @property
    def metavar(self) -> str:
        """What stands for its value in a help page."""
        words = [_KINDS[kind][1] if kind in _KINDS else kind for kind in _kinds(self.annotation)]
        return words[0] if len(words) == 1 else f"{{{','.join(words)}}}"

    def read(self, text: str, *, help_page: str) -> Any:
        """Return the value that a word of the command line means.

        Raises:
            UserError: the setting takes no such value.
        """
        text = value_here(self.name, text)
        try:
            return _adapter(self).validate_python(text)
        except ValidationError:
            wrong = f"{self.flag} takes {self.takes}. Received: {self.flag} {text}"
            raise UserError(f"{wrong}. {suggestion(text, self.choices)}{help_page}") from None


def _kinds(annotation: Any) -> Iterator[Any]:
    """Yield the types, and the words, that an annotation allows, but for None."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _kinds(get_args(annotation)[0])
    elif origin in (Union, types.UnionType):
        for part in get_args(annotation):
            yield from _kinds(part)
    elif origin is Literal:
        yield from (word for word in get_args(annotation) if word is not None)
    elif annotation is not type(None):
        yield origin or annotation


@cache
def _adapter(option: Option) -> TypeAdapter[Any]:
    return TypeAdapter(option.annotation)


@cache
def all_options() -> dict[str, Option]:
    """Return flag -> option, of all settings."""
    found = {}
    for subject in dataclasses.fields(Config):
        kind: Any = subject.default_factory
        for name, annotation in get_type_hints(kind, include_extras=True).items():
            option = Option(subject.name, name, annotation)
            found[option.flag] = option
    return found


def read_options(arguments: Sequence[str], *, program: str) -> dict[str, dict[str, Any]]:
    """Return subject -> setting -> value, of each option that is given; the last one counts.

    Args:
        program: whose help page an error names.

    Raises:
        UserError: an unknown option, one without a value, or a value that it does not take.
    """
    help_page = f"See {program} --help-all"
    given: dict[str, dict[str, Any]] = {}
    words = iter(arguments)
    for word in words:
        start, equals, text = word.partition("=")
        flag = _flag_here(start)
        option, switched = all_options().get(flag), True
        if option is None and flag.startswith("--no-"):
            option, switched = all_options().get(f"--{flag.removeprefix('--no-')}"), False
        if option is None or not (switched or option.is_switch):
            raise UserError(f"{_unknown(word)}{help_page}")
        if option.is_switch:
            if equals:
                raise UserError(f"{option.flag} takes no value. Received: {word}. Remove the value. {help_page}")
            value: Any = switched
        else:
            text = text if equals else next(words, "")
            if not text or (not equals and text.startswith("--")):
                raise UserError(f"{option.flag} takes {option.takes}. Received: {word} without a value. {help_page}")
            value = option.read(text, help_page=help_page)
        given.setdefault(option.subject, {})[option.name] = value
    return given


def _flag_here(word: str) -> str:
    """Return an option in our spelling and by our name."""
    if not word.startswith("--"):
        return word
    name = word[2:].replace("-", "_")
    return f"--{OPTIONS_ELSEWHERE.get(name, name).replace('_', '-')}"


def _unknown(word: str) -> str:
    """Return what is wrong with a word that is no option."""
    flag = _flag_here(word.partition("=")[0])
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
        shows_all: all settings, in groups by subject.
    """
    parser = argparse.ArgumentParser(
        prog=program, usage=f"{program} [OPTIONS]", add_help=False,
        formatter_class=argparse.RawDescriptionHelpFormatter, epilog=EXAMPLES.format(program=program),
        description="Train a model with Horovod. Every option can also be set in a recipe: --recipe FILE (TOML).",
    )  # fmt: skip
    if shows_all:
        for subject in dataclasses.fields(settings):
            part = getattr(settings, subject.name)
            group = parser.add_argument_group(subject.name, " ".join((type(part).__doc__ or "").split()))
            for option in all_options().values():
                if option.subject == subject.name:
                    _add(group, option, getattr(part, option.name))
    else:
        group = parser.add_argument_group("common options")
        for name in MOST_USED:
            option = all_options()[f"--{name.replace('_', '-')}"]
            _add(group, option, getattr(getattr(settings, option.subject), name))
    more = parser.add_argument_group("other options")
    more.add_argument("--recipe", metavar="FILE", help="settings from a TOML file; options override them")
    more.add_argument("--help-all", action="store_true", help="show all settings")
    more.add_argument("--version", action="store_true", help="show the version of this program")
    return parser.format_help()


def _add(group: Any, option: Option, default: Any) -> None:
    subject: Any = type(getattr(Config(), option.subject))
    words = _docstrings(subject)[option.name].replace("(None: ", "(default: ").replace("%", "%%")
    if option.is_switch:
        flags = [option.flag, f"--no-{option.flag[2:]}"] if default else [option.flag]
        group.add_argument(*flags, action="store_true", help=words + " (default: on)" * default)
        return
    if default is not None and "(default: " not in words:
        words += f" (default: {default})"
    group.add_argument(option.flag, metavar=option.metavar, help=words)


@cache
def _docstrings(subject: type) -> dict[str, str]:
    """Return the text below each setting of a subject, which Python does not keep."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(subject))).body
    assert isinstance(definition, ast.ClassDef)
    texts = {}
    for setting, below in pairwise(definition.body):
        if isinstance(setting, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            assert isinstance(setting.target, ast.Name)
            texts[setting.target.id] = " ".join(str(below.value.value).split())
    return texts
