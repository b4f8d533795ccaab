"""The status of an experiment's runs, as JSON: `launch experiment status` passes it to `analysis experiment`."""

from dataclasses import dataclass
from typing import Literal

from common.json_records import Record, RecordFile

PlannedState = Literal["finished", "failed", "running", "to do", "left out"]


@dataclass(frozen=True, kw_only=True)
class PlannedRunStatus(Record):
    """The status of one run.

    Attributes:
        name: of its run folder, which may not exist.
        cell: of the experiment; the runs of a cell differ only in the seed.
        reason: why it failed or is left out.
    """

    name: str
    cell: str
    state: PlannedState
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class ExperimentStatus(Record):
    """The status of all runs, in their order."""

    runs: list[PlannedRunStatus]


STATUSES = RecordFile(
    kind=ExperimentStatus,
    what="the status of an experiment",
    missing="cannot read the status of an experiment",
    source="Use `python -m launch experiment status`",
    remedy="Use `python -m launch experiment status`",
)
