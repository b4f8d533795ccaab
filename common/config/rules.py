"""Ranges of settings, what they define, and what is refused."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, get_args, get_type_hints

from pydantic import BeforeValidator

from common.errors import UserError
from common.utils.command_line import height_and_width


def require(condition: bool, *, problem: str, received: str, remedy: str) -> None:
    """Raise UserError unless the condition holds."""
    if not condition:
        raise UserError(f"{problem}. Received: {received}. {remedy}")


def exclude(both: bool, *, problem: str, received: str) -> None:
    """Raise UserError if two settings are given that exclude each other."""
    require(not both, problem=problem, received=received, remedy="Leave one of the two out")


def settings_flags(settings: Mapping[str, Any]) -> list[str]:
    """Return the options that set these settings, by their names."""
    words = []
    for name, value in settings.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, list | tuple):
            words += [f"--{flag}", "x".join(map(str, value))]  # an image size
        else:
            words += [f"--{flag}", str(value)]
    return words


@dataclass(frozen=True, kw_only=True)
class Range:
    """The values that a setting may have, in its annotation; they are finite."""

    least: float = -math.inf
    above: float = -math.inf
    below: float = math.inf
    most: float = math.inf

    def contains(self, value: float) -> bool:
        """Return whether a setting may have this value."""
        # No call of `isfinite`, for which there are whole numbers too large.
        return abs(value) < math.inf and self.least <= value <= self.most and self.above < value < self.below

    def __str__(self) -> str:
        bounds = {"at least": self.least, "above": self.above, "below": self.below, "at most": self.most}
        return " and ".join(f"{words} {bound:,}" for words, bound in bounds.items() if math.isfinite(bound))


@dataclass(frozen=True, kw_only=True)
class Defines:
    """What a setting defines, in its annotation or of its whole subject; a setting that says nothing defines both.

    Attributes:
        experiment: what is learned: runs that differ in it are not the same experiment.
        cell: what is measured: runs that differ in it do not repeat each other, and have rows of their own in tables.
    """

    experiment: bool = True
    cell: bool = True


SPEED = Defines(experiment=False)  # of how runs compute, and of what costs them time beside training
IN_RECORD = Defines(cell=False)  # cells have what the record says of it instead, which is the same at every site
NOTHING = Defines(experiment=False, cell=False)  # neither, or not more than what the record says of it

Mark = TypeVar("Mark", Range, Defines)
Count = Annotated[int, Range(least=1)]
LimitedCount = Annotated[int, Range(least=1, most=10**6)]
Positive = Annotated[float, Range(above=0)]
NotNegative = Annotated[float, Range(least=0)]
LimitedRate = Annotated[float, Range(least=0, most=10**6)]


def _precision(value: Any) -> Any:
    """Return a flag of earlier run folders, which meant float16, as a precision."""
    return ("float16" if value else "none") if isinstance(value, bool) else value


def _image_size(value: Any) -> Any:
    """Return a size such as "148x197", or a list of JSON's, as height and width in pixels; what is none, as it is."""
    if isinstance(value, str):
        return height_and_width(value) or value
    return tuple(value) if isinstance(value, list) else value


ImageSize = Annotated[tuple[int, int], BeforeValidator(_image_size)]
Precision = Annotated[Literal["none", "float16", "bfloat16"], BeforeValidator(_precision)]
Fraction = Annotated[float, Range(least=0, below=1)]


@dataclass(frozen=True)
class Settings:
    """Settings of one subject, whose values are in the ranges of their annotations."""

    defines = Defines()  # those of its settings that say nothing themselves

    def __post_init__(self) -> None:
        for name, allowed in _ranges_of(type(self)):  # type: ignore[arg-type]  # mypy asks its instances for a hash
            value = getattr(self, name)
            if not (value is None or isinstance(value, str) or allowed.contains(value)):
                flag = f"--{name.replace('_', '-')}"
                raise UserError(f"{flag} is out of range. Received: {flag} {value}. Give a number that is {allowed}")


@cache
def _ranges_of(subject: type) -> list[tuple[str, Range]]:
    """Return name and range of the settings of a subject; found once, as thousands of runs are read."""
    return [(name, allowed) for name, hint in _hints(subject) for allowed in _marks(hint, Range)]


def defined_by(subject: type[Settings]) -> dict[str, Defines]:
    """Return what each setting of a subject defines."""
    return {name: (*_marks(hint, Defines), subject.defines)[0] for name, hint in _hints(subject)}


def _hints(subject: type[Settings]) -> list[tuple[str, Any]]:
    hints = get_type_hints(subject, include_extras=True)
    return [(field.name, hints[field.name]) for field in fields(subject)]


def _marks(annotation: Any, kind: type[Mark]) -> list[Mark]:
    """Return the marks of a kind in an annotation such as `Count`, `Count | None` or `Annotated[Count, SPEED]`."""
    of_parts = [mark for part in get_args(annotation) for mark in _marks(part, kind)]
    return [mark for mark in getattr(annotation, "__metadata__", ()) if isinstance(mark, kind)] + of_parts
