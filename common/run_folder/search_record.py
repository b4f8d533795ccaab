"""The trials of a search, as JSON: `launch search` keeps it in its folder, `analysis hyperparameters` reads it.

The study in the storage is the source; this is what needs no Optuna to be read.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from common.errors import user_errors
from common.json_records import Record, RecordFile
from common.run_folder.records import EpochRecord

SEARCH_FILE = "search.json"
Value = bool | int | float | str
Metric = Literal["last_validation_accuracy", "best_validation_accuracy", "last_validation_loss", "best_validation_loss"]
TrialState = Literal["waiting", "running", "finished", "pruned", "failed"]


@dataclass(frozen=True, kw_only=True)
class MetricKind:
    """What a metric is: a figure of epochs, the last or the best one, and which values are better."""

    figure: str
    of_best: bool
    higher_is_better: bool

    @property
    def label(self) -> str:
        """Its name for people: "last validation accuracy"."""
        return f"{'best' if self.of_best else 'last'} {self.figure.replace('_', ' ')}"

    def score(self, epochs: list[EpochRecord]) -> float | None:
        """Return the score of a run; None where it has not validated."""
        values = [value for _, value in self.values(epochs)]
        if not values:
            return None
        if not self.of_best:
            return values[-1]
        known = [value for value in values if value == value] or values  # a loss that diverged is NaN
        return max(known) if self.higher_is_better else min(known)

    def values(self, epochs: list[EpochRecord]) -> list[tuple[int, float]]:
        """Return number and value of each epoch that was validated."""
        figures = ((one.epoch, getattr(one, self.figure)) for one in epochs)
        return [(epoch, float(value)) for epoch, value in figures if isinstance(value, int | float)]


METRICS: dict[Metric, MetricKind] = {
    "last_validation_accuracy": MetricKind(figure="validation_accuracy", of_best=False, higher_is_better=True),
    "best_validation_accuracy": MetricKind(figure="validation_accuracy", of_best=True, higher_is_better=True),
    "last_validation_loss": MetricKind(figure="validation_loss", of_best=False, higher_is_better=False),
    "best_validation_loss": MetricKind(figure="validation_loss", of_best=True, higher_is_better=False),
}


@dataclass(frozen=True, kw_only=True)
class TrialRecord(Record):
    """One trial.

    Attributes:
        number: in the study of its framework, from 0.
        point: number of the point, from 0; equal points of two frameworks are the same settings where the search has
            drawn its points once. A trial that was made again has its point.
        run: name of its run folder; None before it is started.
        params: setting -> value.
        score: None unless it is finished, or was pruned after a validation.
        seconds: from start to end, wall-clock time.
        ended_at: ISO 8601.
        worker: number of the command that made it.
        reason: why it failed.
    """

    framework: str
    number: int
    point: int
    state: TrialState
    run: str | None
    params: dict[str, Value]
    score: float | None
    seconds: float | None
    ended_at: str | None
    worker: int | None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class SearchRecord(Record):
    """A search and its trials so far.

    Attributes:
        drawn_once: whether the points are the same for all frameworks; else each point depends on the scores before.
        trials_each: wanted of each framework.
        space: setting -> its distribution as Optuna writes it in JSON.
    """

    title: str
    sampler: str
    pruner: str
    metric: Metric
    seed: int
    drawn_once: bool
    trials_each: int
    space: dict[str, dict[str, Any]]
    trials: list[TrialRecord]


SEARCHES = RecordFile(
    kind=SearchRecord,
    what="a valid record of a search",
    missing="cannot read the record of a search",
    source="Restore the file",
    remedy="Run the search again: it is rewritten",
)


def write_search(folder: Path, search: SearchRecord) -> None:
    """Write `search.json`.

    Raises:
        UserError: full disk, missing permission.
    """
    with user_errors("writing the record of the search"):
        SEARCHES.write(folder / SEARCH_FILE, search)


def read_search(folder: Path) -> SearchRecord:
    """Read and validate `search.json`.

    Raises:
        UserError: it cannot be read, or does not follow the schema.
    """
    return SEARCHES.read(folder / SEARCH_FILE)
