"""Ranges of settings, and what is refused."""

import math
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_type_hints

from pydantic import BeforeValidator

from common.errors import UserError


def require(condition: bool, *, problem: str, received: str, remedy: str) -> None:
    """Raise UserError unless the condition holds."""
    if not condition:
        raise UserError(f"{problem}. Received: {received}. {remedy}")


def exclude(both: bool, *, problem: str, received: str) -> None:
    """Raise UserError if two settings are given that exclude each other."""
    require(not both, problem=problem, received=received, remedy="Leave one of the two out")


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


Count = Annotated[int, Range(least=1)]
LimitedCount = Annotated[int, Range(least=1, most=10**6)]
Positive = Annotated[float, Range(above=0)]
NotNegative = Annotated[float, Range(least=0)]
LimitedRate = Annotated[float, Range(least=0, most=10**6)]


def _precision(value: Any) -> Any:
    """Return a flag of earlier run folders, which meant float16, as a precision."""
    return ("float16" if value else "none") if isinstance(value, bool) else value


Precision = Annotated[Literal["none", "float16", "bfloat16"], BeforeValidator(_precision)]
Fraction = Annotated[float, Range(least=0, below=1)]


@dataclass(frozen=True)
class Settings:
    """Settings of one subject, whose values are in the ranges of their annotations."""

    def __post_init__(self) -> None:
        for name, allowed in _ranges_of(type(self)):  # type: ignore[arg-type]  # mypy asks its instances for a hash
            value = getattr(self, name)
            if not (value is None or isinstance(value, str) or allowed.contains(value)):
                flag = f"--{name.replace('_', '-')}"
                raise UserError(f"{flag} is out of range. Received: {flag} {value}. Give a number that is {allowed}")


@cache
def _ranges_of(subject: type) -> list[tuple[str, Range]]:
    """Return name and range of the settings of a subject; found once, as thousands of runs are read."""
    hints = get_type_hints(subject, include_extras=True)
    return [(name, allowed) for name, annotation in hints.items() for allowed in _ranges(annotation)]


def _ranges(annotation: Any) -> list[Range]:
    """Return the ranges in an annotation such as `Count` or `Count | None`."""
    parts = [annotation, *get_args(annotation)]
    return [one for part in parts for one in getattr(part, "__metadata__", ()) if isinstance(one, Range)]
