"""Types of settings with their ranges, and what settings define.

Ranges are pydantic's constraints. They are checked where settings are read: from flags, recipes and records.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, get_args, get_type_hints

from pydantic import BeforeValidator, Field, FiniteFloat

from common.utils.command_line import height_and_width


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


@dataclass(frozen=True)
class Settings:
    """Settings of one subject."""

    defines = Defines()  # those of its settings that say nothing themselves


def defined_by(subject: type[Settings]) -> dict[str, Defines]:
    """Return what each setting of a subject defines."""
    hints = get_type_hints(subject, include_extras=True)
    return {field.name: (*_marks(hints[field.name]), subject.defines)[0] for field in fields(subject)}


def _marks(annotation: Any) -> list[Defines]:
    """Return the marks in an annotation such as `Annotated[Count, SPEED]` or `Annotated[Count, SPEED] | None`."""
    of_parts = [mark for part in get_args(annotation) for mark in _marks(part)]
    return [mark for mark in getattr(annotation, "__metadata__", ()) if isinstance(mark, Defines)] + of_parts


def _precision(value: Any) -> Any:
    """Return a flag of earlier run folders, which meant float16, as a precision."""
    return ("float16" if value else "none") if isinstance(value, bool) else value


def _image_size(value: Any) -> Any:
    """Return a size such as "148x197", or a list of JSON's, as height and width in pixels; what is none, as it is."""
    if isinstance(value, str):
        return height_and_width(value) or value
    return tuple(value) if isinstance(value, list) else value


Count = Annotated[int, Field(ge=1)]
LimitedCount = Annotated[int, Field(ge=1, le=10**6)]
CountFromZero = Annotated[int, Field(ge=0)]
LimitedCountFromZero = Annotated[int, Field(ge=0, le=10**6)]
Positive = Annotated[FiniteFloat, Field(gt=0)]
NotNegative = Annotated[FiniteFloat, Field(ge=0)]
LimitedRate = Annotated[FiniteFloat, Field(ge=0, le=10**6)]
Fraction = Annotated[FiniteFloat, Field(ge=0, lt=1)]
ImageSize = Annotated[tuple[Count, Count], BeforeValidator(_image_size)]
Precision = Annotated[Literal["none", "float16", "bfloat16"], BeforeValidator(_precision)]


def flag_of(setting: str) -> str:
    """Return the option that sets a setting, such as --batch-size."""
    return f"--{setting.replace('_', '-')}"


def settings_flags(settings: Mapping[str, Any]) -> list[str]:
    """Return the options that set these settings, by their names."""
    words = []
    for name, value in settings.items():
        if isinstance(value, bool):
            words.append(flag_of(name) if value else flag_of(f"no_{name}"))
        else:  # of several numbers an image size
            words += [flag_of(name), "x".join(map(str, value)) if isinstance(value, list | tuple) else str(value)]
    return words
