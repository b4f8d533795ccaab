"""The kinds of values in a run folder's records."""

import math
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from common.json_records import Record


def _check_timestamp(text: str) -> str:
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("a time needs a time zone, such as 2026-01-31T12:00:00.000+00:00")
    return text


def _check_seconds(value: float) -> float:
    if value < 0 or value == math.inf:
        raise ValueError("a time is finite and not negative")
    return value


Timestamp = Annotated[str, AfterValidator(_check_timestamp)]  # UTC, ISO 8601

WholeNumber = Annotated[int, Field(ge=0, le=2**53)]  # what a float64 still counts
RankCount = Annotated[int, Field(ge=1, le=2**53)]
OneDNNInForce = Literal["on", "off"]
Seconds = Annotated[float, AfterValidator(_check_seconds)]  # NaN: lost


@dataclass(frozen=True)
class NotRecorded(Record):
    """The reason why a value was not recorded, in its place."""

    not_recorded: str
