"""Searches by `python -m launch search`: the best scores, when they were found, and which settings mattered."""

import json
import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from analysis.output.tables import Cell, Table, in_figures, shown_interval
from analysis.runs.labels import framework_label
from analysis.runs.table import Selection
from analysis.stats.inference import Effect, difference, median_of
from common.run_folder.search_record import (
    METRICS,
    SEARCH_FILE,
    MetricKind,
    SearchRecord,
    TrialRecord,
    Value,
    read_search,
)

FEWEST_FOR_IMPORTANCE = 10  # trials
_BEST_TRIALS = 5  # of each framework, in the table
_FEWEST_IN_BEST = 5  # trials that count as the best ones, for importance


class Progress(NamedTuple):
    """How far a search had come when one of a framework's trials ended.

    Attributes:
        trials: of this framework, finished or pruned.
        trial_seconds: of these trials, added up as if they had followed each other: so frameworks that share a machine,
            and searches that were interrupted, compare.
        clock_seconds: wall-clock time since the first trial of any framework started, interruptions included; NaN if
            it is not known.
        best: score so far, in the unit in which it is shown; NaN before a trial is finished.
    """

    trials: int
    trial_seconds: float
    clock_seconds: float
    best: float


@dataclass(frozen=True)
class Search:
    """A search, its folder and what it recorded."""

    folder: Path
    record: SearchRecord

    @property
    def name(self) -> str:
        """Name of its file."""
        return self.folder.name

    @property
    def metric(self) -> MetricKind:
        """The score."""
        return METRICS[self.record.metric]

    @property
    def is_accuracy(self) -> bool:
        """Whether scores are shown in percent."""
        return self.metric.figure.endswith("accuracy")

    @property
    def axis_label(self) -> str:
        """The score and its unit."""
        return f"{self.metric.label}{', %' if self.is_accuracy else ''}"

    @cached_property
    def frameworks(self) -> list[str]:
        """Those it has finished trials of."""
        return list(dict.fromkeys(trial.framework for trial in self.record.trials if self.ended(trial.framework)))

    def ended(self, framework: str) -> list[TrialRecord]:
        """Return the finished and the pruned trials of a framework, in the order of their ends."""
        ended = [
            one for one in self.record.trials if one.framework == framework and one.state in ("finished", "pruned")
        ]
        return sorted(ended, key=lambda one: one.ended_at or "")

    def finished(self, framework: str) -> list[TrialRecord]:
        """Return the trials of a framework that have a score at their end, in the order of their ends."""
        return [one for one in self.ended(framework) if one.state == "finished" and one.score is not None]

    def shown(self, score: float | None) -> float:
        """Return a score in the unit in which it is shown; NaN without one."""
        return math.nan if score is None else 100 * score if self.is_accuracy else score

    def best_first(self, framework: str) -> list[TrialRecord]:
        """Return the finished trials of a framework, the best first."""
        sign = -1.0 if self.metric.higher_is_better else 1.0
        return sorted(self.finished(framework), key=lambda one: (sign * (one.score or 0.0), one.number))

    def best_trial(self) -> TrialRecord | None:
        """Return the best trial of all frameworks; None: none is finished."""
        bests = [self.best_first(framework)[0] for framework in self.frameworks if self.finished(framework)]
        sign = -1.0 if self.metric.higher_is_better else 1.0
        return min(bests, key=lambda one: sign * (one.score or 0.0), default=None)

    @cached_property
    def began(self) -> datetime | None:
        """When the first trial of any framework started; None if none has ended."""
        return min((_start(trial) for trial in self.record.trials if trial.ended_at), default=None)

    def progress(self, framework: str) -> list[Progress]:
        """Return how far the search had come after each trial that ended."""
        points, trial_seconds, best = [], 0.0, math.nan
        choose = max if self.metric.higher_is_better else min
        for count, trial in enumerate(self.ended(framework), 1):
            trial_seconds += trial.seconds or 0.0
            if trial.state == "finished" and trial.score is not None:
                best = trial.score if math.isnan(best) else choose(best, trial.score)
            clock = (_end(trial) - self.began).total_seconds() if self.began and trial.ended_at else math.nan
            points.append(Progress(count, trial_seconds, clock, self.shown(best)))
        return points

    def by_point(self, framework: str) -> dict[int, float]:
        """Return number of a point -> score there, in the unit in which it is shown; without those that diverged."""
        scores = {trial.point: self.shown(trial.score) for trial in self.finished(framework)}
        return {point: score for point, score in scores.items() if math.isfinite(score)}

    def points_of_both(self) -> list[int]:
        """Return the points at which both frameworks have a score; none where each search chose its own."""
        if not self.record.drawn_once or set(self.frameworks) != {"torch", "keras"}:
            return []
        return sorted(self.by_point("torch").keys() & self.by_point("keras").keys())

    def paired(self) -> Effect | None:
        """Return how much higher Keras's scores are at equal points; None without such points."""
        both = self.points_of_both()
        sides = ({point: self.by_point(name)[point] for point in both} for name in ("keras", "torch"))
        return difference(*sides) if both else None


def searches_of(selection: Selection) -> list[Search]:
    """Return the searches that the selected runs are of.

    Raises:
        UserError: the record of one does not follow the schema.
    """
    folders = dict.fromkeys(Path(folder).parent for folder in selection.runs["folder"])
    return [Search(folder, read_search(folder)) for folder in folders if (folder / SEARCH_FILE).is_file()]


def importances(search: Search, framework: str) -> dict[str, float]:
    """Return setting -> importance, which add up to 1; none with too few trials, or one setting alone.

    PED-ANOVA (Watanabe, Bansal and Hutter 2023): how far the settings of the best trials differ from those of all.
    """
    trials = search.finished(framework)
    if len(trials) < FEWEST_FOR_IMPORTANCE or len(search.record.space) < 2:
        return {}
    import optuna  # here, as it takes a second, which no other question has to wait for

    space = {
        name: optuna.distributions.json_to_distribution(json.dumps(one)) for name, one in search.record.space.items()
    }
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize" if search.metric.higher_is_better else "minimize")
    study.add_trials(
        [optuna.trial.create_trial(params=dict(one.params), distributions=space, value=one.score) for one in trials]
    )
    evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=best_share(len(trials)))
    found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    # Of equal ones the order is by name: Optuna's changes from start to start.
    return dict(sorted(found.items(), key=lambda one: (-round(one[1], 9), one[0])))


def best_share(trials: int) -> float:
    """Return the share of so many trials that count as the best ones for importance."""
    return min(0.5, max(0.1, _FEWEST_IN_BEST / trials))


def _end(trial: TrialRecord) -> datetime:
    return datetime.fromisoformat(trial.ended_at or "")


def _start(trial: TrialRecord) -> datetime:
    return _end(trial) - timedelta(seconds=trial.seconds or 0.0)


# Words


def statements(search: Search) -> list[str]:
    """Return what a search found, in sentences."""
    words = []
    for framework in search.frameworks:
        best = next(iter(search.best_first(framework)), None)
        if best is None:
            continue
        count, seconds = len(search.ended(framework)), search.progress(framework)[-1].trial_seconds
        words.append(
            f"{search.name}: {framework_label(framework)}'s best {search.metric.label} is "
            f"{_in_words(search, best.score)}, of {count} trials in {seconds:,.0f} s."
        )
    effect = search.paired()
    if effect is not None:
        shown = "differ" if effect.interval and not effect.interval.contains(0.0) else "are not shown to differ"
        words.append(
            f"At the same {effect.n[0]} points they {shown}: Keras's score is {effect.estimate:+.2g}"
            f"{' points' if search.is_accuracy else ''} from PyTorch's."
        )
    elif len(search.frameworks) > 1 and not search.record.drawn_once:
        words.append("Each framework chose its own points: only the curves of the best score compare.")
    return words


def _in_words(search: Search, score: float | None) -> str:
    return f"{in_figures(search.shown(score), 4)}{' %' if search.is_accuracy else ''}"


def notes(search: Search) -> list[str]:
    """Return how to read what is shown of a search."""
    found = [
        f"{search.name}: seconds of trials are added up as if they had followed each other; those since the search "
        "began include the trials of the other framework, those made at once, and interruptions"
    ]
    counts = {
        state: sum(one.state == state for one in search.record.trials) for state in ("failed", "waiting", "running")
    }
    found += [f"{search.name}: {count} trials {state}" for state, count in counts.items() if count]
    if not search.record.drawn_once:
        found.append(
            f"{search.name}: {search.record.sampler} chooses points by the scores before, so trials of two frameworks "
            "do not pair; compare the curves of the best score"
        )
    short = [name for name in search.frameworks if len(search.finished(name)) < FEWEST_FOR_IMPORTANCE]
    if short or len(search.record.space) < 2:
        found.append(f"{search.name}: importance needs {FEWEST_FOR_IMPORTANCE} finished trials and two settings")
    else:
        found.append(
            f"{search.name}: importance by PED-ANOVA, from how the settings of the best trials differ from all; "
            "the scores are those on the validation samples that chose them"
        )
    found += [
        f"{search.name}: the best {setting} of {framework_label(name)} is at the edge of its range: widen it"
        for name in search.frameworks
        for trial in search.best_first(name)[:1]
        for setting in _at_edge(search, trial)
    ]
    return found


# Tables


def tables(search: Search) -> list[Table]:
    """Return the tables of a search; those without rows are left out."""
    made = [_summary(search), _best(search), _importance(search), _pairs(search)]
    return [table for table in made if table.rows]


def _summary(search: Search) -> Table:
    headings = ["framework", "sampler", "pruner", "finished", "pruned", "failed", "all trials, s", "a trial, s", "best"]
    rows: list[list[Cell]] = []
    for framework in search.frameworks:
        ended, finished = search.ended(framework), search.finished(framework)
        failed = sum(one.framework == framework and one.state == "failed" for one in search.record.trials)
        seconds = [one.seconds for one in finished if one.seconds is not None]
        best = search.best_first(framework)
        rows.append(
            [framework_label(framework), search.record.sampler, search.record.pruner, len(finished),
             len(ended) - len(finished), failed, search.progress(framework)[-1].trial_seconds, median_of(seconds),
             search.shown(best[0].score) if best else None]
        )  # fmt: skip
    formats = dict.fromkeys(("finished", "pruned", "failed"), "d")
    formats |= {"all trials, s": ",.1f", "a trial, s": ",.2f", "best": ".4g"}
    return Table(
        f"Search {search.name}: trials ({search.axis_label}; seconds of a finished trial: median)",
        headings,
        rows,
        formats,
    )


def _best(search: Search) -> Table:
    settings = list(search.record.space)
    headings = ["framework", "rank", "run", "score", *settings]
    rows: list[list[Cell]] = [
        [framework_label(framework), rank, trial.run, search.shown(trial.score),
         *(_shown_value(trial.params.get(name)) for name in settings)]
        for framework in search.frameworks
        for rank, trial in enumerate(search.best_first(framework)[:_BEST_TRIALS], 1)
    ]  # fmt: skip
    formats = {"rank": "d", "score": ".4g"} | dict.fromkeys(_numeric(search), ".4g")
    return Table(f"Search {search.name}: best settings ({search.axis_label})", headings, rows, formats)


def _numeric(search: Search) -> list[str]:
    values = [(name, value) for one in search.record.trials for name, value in one.params.items()]
    words = {name for name, value in values if isinstance(value, str | bool)}
    return [name for name in search.record.space if name not in words]


def _shown_value(value: Value | None) -> Cell:
    return str(value).lower() if isinstance(value, bool) else value


def _importance(search: Search) -> Table:
    rows: list[list[Cell]] = [
        [framework_label(framework), name, 100 * value]
        for framework in search.frameworks
        for name, value in importances(search, framework).items()
    ]
    heading = "importance, %"
    return Table(
        f"Search {search.name}: importance of each setting", ["framework", "setting", heading], rows, {heading: ".0f"}
    )


def _pairs(search: Search) -> Table:
    effect, both = search.paired(), search.points_of_both()
    if effect is None:
        return Table("", [], [], {})
    scores = {name: search.by_point(name) for name in ("torch", "keras")}
    rows: list[list[Cell]] = [
        [
            str(point),
            scores["torch"][point],
            scores["keras"][point],
            scores["keras"][point] - scores["torch"][point],
            None,
        ]
        for point in both
    ]
    middle = [median_of(scores[name][point] for point in both) for name in ("torch", "keras")]
    rows.append(["all: median, Hodges-Lehmann", *middle, effect.estimate, shown_interval(effect.interval, "+.2f")])
    headings = ["point", "PyTorch", "Keras", "difference", "95 % interval"]
    formats = {"PyTorch": ".4g", "Keras": ".4g", "difference": "+.2f"}
    return Table(
        f"Search {search.name}: both frameworks at the same points ({search.axis_label})", headings, rows, formats
    )


def _at_edge(search: Search, trial: TrialRecord) -> list[str]:
    found = []
    for name, distribution in search.record.space.items():
        ends = distribution.get("attributes", {})
        low, high, value = ends.get("low"), ends.get("high"), trial.params.get(name)
        if not isinstance(low, int | float) or not isinstance(high, int | float) or not isinstance(value, int | float):
            continue
        if low < high and value in (low, high):
            found.append(name)
    return found
