"""The status of an experiment's runs, as JSON: `launch experiment status` passes it to `analysis experiment`."""

from dataclasses import dataclass
from typing import Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from common.errors import UserError, first_problem

PlannedState = Literal["finished", "failed", "running", "to do", "left out"]
_STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True, kw_only=True)
class PlannedRunStatus:
    """The status of one run.

    Attributes:
        name: of its run folder, which may not exist.
        cell: of the experiment; the runs of a cell differ only in the seed.
        reason: why it failed or is left out.
    """

    __pydantic_config__ = _STRICT
    name: str
    cell: str
    state: PlannedState
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class ExperimentStatus:
    """The status of all runs, in their order."""

    __pydantic_config__ = _STRICT
    runs: list[PlannedRunStatus]


_STATUS = TypeAdapter(ExperimentStatus)


def status_as_json(status: ExperimentStatus) -> str:
    """Return the status as JSON."""
    return _STATUS.dump_json(status).decode()


def status_from_json(text: str | bytes) -> ExperimentStatus:
    """Parse and validate a status in JSON.

    Raises:
        UserError: it does not follow the schema.
    """
    try:
        return _STATUS.validate_json(text, strict=True)
    except ValidationError as error:
        raise UserError(
            f"this is not the status of an experiment: {first_problem(error)}. Use `python -m launch experiment status`"
        ) from None
