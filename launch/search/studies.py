"""The studies of a search, one per framework, in one storage that any tool of Optuna can read.

Every study gets its trials in advance: Optuna calls that enqueuing. Trials of a sampler that does not look at scores
have their points from then on; those of the others get theirs when they are started. So a trial that is missing is one
that is to be enqueued, whether the search begins, is resumed, or repeats what failed.
"""

import json
import math
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC
from functools import cached_property
from pathlib import Path
from typing import Literal

import optuna
from filelock import FileLock
from optuna.distributions import distribution_to_json
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from common.errors import UserError, user_errors
from common.run_folder import search_record
from common.run_folder.search_record import METRICS, MetricKind, SearchRecord, TrialRecord, Value, write_search
from launch.search.sampling import adaptive_sampler, distributions_of, fixed_points, pruner_of, trials_each
from launch.search.search_file import SearchFile, run_name

STORAGE_FILES = {"sqlite": "study.db", "journal": "study.journal"}
SQLITE_WAIT_SECONDS = 60  # for other commands to finish writing
_COUNTS = (TrialState.WAITING, TrialState.RUNNING, TrialState.COMPLETE, TrialState.PRUNED)  # has not failed
_STATES: dict[TrialState, search_record.TrialState] = {
    TrialState.WAITING: "waiting",
    TrialState.RUNNING: "running",
    TrialState.COMPLETE: "finished",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}


@dataclass(frozen=True)
class StartedTrial:
    """A trial of this worker that is being made.

    Attributes:
        trial: of Optuna; takes intermediate scores.
        point: number of its point, see `TrialRecord`.
    """

    framework: str
    trial: Trial
    point: int

    @property
    def run(self) -> str:
        """Name of its run folder."""
        return run_name(self.framework, self.trial.number)


class Studies:
    """The studies of a search, as one worker sees them.

    Attributes:
        file: of the search.
        worker: number of this command among those that share the storage.
    """

    def __init__(self, file: SearchFile, *, worker: int) -> None:
        """Open the storage, and create in it what is missing.

        Raises:
            UserError: the search was started with other settings.
        """
        self.file, self.worker = file, worker
        self._distributions = distributions_of(file.space)
        storage = open_storage(file.folder, file.keys.storage)
        with self.locked():
            self.of = {framework: self._study(framework, storage) for framework in file.frameworks}

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other workers from taking trials meanwhile."""
        with FileLock(self.file.folder / ".study.lock"):
            yield

    @property
    def metric(self) -> MetricKind:
        """The score."""
        return METRICS[self.file.keys.metric]

    def _study(self, framework: str, storage: BaseStorage) -> Study:
        file = self.file
        study = optuna.create_study(
            study_name=framework,
            storage=storage,
            direction="maximize" if self.metric.higher_is_better else "minimize",
            load_if_exists=True,
        )
        before, now = study.user_attrs.get("search"), json.loads(json.dumps(file.definition, default=str))
        if before is None:
            study.set_user_attr("search", now)
        elif before != now:
            changed = next(
                f"{table}.{name} {values.get(name)} instead of {before.get(table, {}).get(name)}"
                for table, values in now.items()
                for name in {**values, **before.get(table, {})}
                if values.get(name) != before.get(table, {}).get(name)
            )
            raise UserError(
                f"the search was started with other settings. Received: {changed} in {file.experiment.path.name}. "
                "Give the changed search another file name, so that it has its own folder"
            )
        elif file.draws_once and list(before.get("space", {})) != list(now["space"]):
            raise UserError(
                f"points are drawn setting by setting, in the order of the search that was started. Received: "
                f"{', '.join(now['space'])} in {file.experiment.path.name}. Put them in the order "
                f"{', '.join(before['space'])}"
            )
        if not file.draws_once:
            made = len(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED)))
            study.sampler = adaptive_sampler(file, worker=self.worker, made=made)
        study.pruner = pruner_of(file, epochs=file.first_trial.config.training.epochs)
        return study

    def enqueue_missing(self) -> None:
        """Enqueue the trials that are missing, those that failed at their point of before.

        Raises:
            UserError: more than are wanted have been enqueued before.
        """
        with self.locked():
            for study in self.of.values():
                trials = study.get_trials(deepcopy=False)
                most = max((point_of(trial) + 1 for trial in trials if trial.state is TrialState.WAITING), default=0)
                if most > len(self._points):
                    raise UserError(
                        f"the search has begun with more trials, which are waiting. Received: {len(self._points)} in "
                        f"place of {most} of each framework. Give {most} or more, or the file another name"
                    )
                there = {point_of(trial) for trial in trials if trial.state in _COUNTS}
                failed = {point_of(trial): trial.params for trial in trials if trial.state is TrialState.FAIL}
                for point, params in enumerate(self._points):
                    if point not in there:
                        study.enqueue_trial(failed.get(point) or params, user_attrs={"point": point})
            self.write()

    @cached_property
    def _points(self) -> list[dict[str, Value]]:
        """Each trial's point; empty: the sampler chooses it when the trial is started."""
        return fixed_points(self.file) if self.file.draws_once else [{} for _ in range(trials_each(self.file))]

    def next_trial(self) -> StartedTrial | None:
        """Start a trial, of the framework that has fewer; None: none is waiting."""
        with self.locked():  # as Optuna makes up a new trial where none is waiting
            waiting = {
                framework: len(study.get_trials(deepcopy=False)) - count
                for framework, study in self.of.items()
                if (count := len(study.get_trials(deepcopy=False, states=(TrialState.WAITING,))))
            }
            if not waiting:
                return None
            framework = min(waiting, key=lambda name: waiting[name])
            trial = self.of[framework].ask(self._distributions)
            trial.set_user_attr("run", run_name(framework, trial.number))
            trial.set_user_attr("worker", self.worker)
            trial.set_user_attr("host", socket.gethostname())
            return StartedTrial(framework, trial, int(trial.user_attrs["point"]))

    def end_trial(self, framework: str, number: int, *, state: TrialState, score: float | None, reason: str) -> None:
        """Record how a trial has ended.

        Args:
            framework, number: of the trial.
            state: COMPLETE, PRUNED or FAIL.
            score: of a finished one; NaN: its training diverged, which is the worst of all scores.
            reason: why it failed; empty: it did not.
        """
        study = self.of[framework]
        if score is not None and math.isnan(score):
            score = -math.inf if self.metric.higher_is_better else math.inf
        with self.locked():
            if reason:
                (frozen,) = (trial for trial in study.get_trials(deepcopy=False) if trial.number == number)
                study._storage.set_trial_user_attr(frozen._trial_id, "reason", reason)
            study.tell(number, score if state is TrialState.COMPLETE else None, state=state)
            self.write()

    def running(self) -> list[tuple[str, FrozenTrial]]:
        """Return framework and trial of those that are recorded as running, by whichever worker."""
        states = (TrialState.RUNNING,)
        return [(name, trial) for name, study in self.of.items() for trial in study.get_trials(states=states)]

    def failed_points(self) -> int:
        """Return the number of points at which every trial has failed."""
        trials = [trial for trial in self.trials() if trial.point < trials_each(self.file)]
        good = {(trial.framework, trial.point) for trial in trials if trial.state != "failed"}
        return len({(trial.framework, trial.point) for trial in trials} - good)

    def write(self) -> None:
        """Write `search.json`."""
        keys = self.file.keys
        write_search(self.file.folder, SearchRecord(
            title=str(self.file.experiment.about.get("title", self.file.folder.name)),
            sampler=keys.sampler, pruner=keys.pruner, metric=keys.metric, seed=keys.seed,
            drawn_once=self.file.draws_once, trials_each=trials_each(self.file),
            space={name: json.loads(distribution_to_json(one)) for name, one in self._distributions.items()},
            trials=self.trials(),
        ))  # fmt: skip

    def trials(self) -> list[TrialRecord]:
        """Return all trials so far."""
        return [
            _record_of(framework, trial)
            for framework, study in self.of.items()
            for trial in study.get_trials(deepcopy=False)
        ]


def open_storage(folder: Path, kind: Literal["sqlite", "journal"]) -> BaseStorage:
    """Return the storage in a search's folder, created where it is missing.

    Raises:
        UserError: it cannot be read or written.
    """
    file = folder / STORAGE_FILES[kind]
    with user_errors("opening the storage of the search"):
        if kind == "journal":
            # Optuna's default lock is a link to the file: of a relative path, a killed command's is never given up.
            # Earlier versions had it.
            lock = Path(f"{file}.lock")
            if lock.is_symlink() and not lock.exists():
                lock.unlink()
            return JournalStorage(JournalFileBackend(str(file), lock_obj=JournalFileOpenLock(str(file))))
        file.touch()  # whose errors are clearer than SQLAlchemy's
    return RDBStorage(f"sqlite:///{file}", engine_kwargs={"connect_args": {"timeout": SQLITE_WAIT_SECONDS}})


def point_of(trial: FrozenTrial) -> int:
    """Return the number of a trial's point; of a trial that another tool has added, its own number."""
    return int(trial.user_attrs.get("point", trial.number))


def _record_of(framework: str, trial: FrozenTrial) -> TrialRecord:
    begin, end = trial.datetime_start, trial.datetime_complete
    return TrialRecord(
        framework=framework,
        number=trial.number,
        point=point_of(trial),
        state=_STATES[trial.state],
        run=trial.user_attrs.get("run"),
        params=trial.params,
        score=trial.value,
        seconds=(end - begin).total_seconds() if begin and end else None,
        ended_at=end.astimezone(UTC).isoformat(timespec="milliseconds") if end else None,
        worker=trial.user_attrs.get("worker"),
        reason=trial.user_attrs.get("reason", ""),
    )
