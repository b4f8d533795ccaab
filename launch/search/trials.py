"""Make the trials of a search: each is an ordinary run, whose epochs become scores while it trains."""

import socket
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import optuna
from optuna.trial import TrialState

from common.errors import UserError
from common.run_folder.records import EpochRecord, RecordedRun, read_epochs, read_run
from common.run_folder.search_record import Value
from launch.experiments.left_over import left_over
from launch.experiments.plan import ExperimentPlan
from launch.experiments.runs import make_run
from launch.experiments.survey import SurveyedRun, survey_run
from launch.search.search_file import PlannedTrial, run_name
from launch.search.studies import StartedTrial, Studies, point_of
from launch.starting.lanes import Job, Lane
from launch.starting.launchers import Launcher
from launch.starting.processes import end_processes


@dataclass(frozen=True)
class Trials:
    """The trials of a search, as they are made by one worker.

    Attributes:
        studies: of the search.
        launcher: how the ranks are started.
        report: is given a line for each trial that has ended.
    """

    studies: Studies
    launcher: Launcher
    report: Callable[[str], None]

    @property
    def plan(self) -> ExperimentPlan:
        """The search as `launch.experiments` sees it."""
        return ExperimentPlan(self.studies.file.experiment, [], [], self.launcher)

    def jobs(self) -> Iterator[Job]:
        """Yield a job for each waiting trial, each started when it is asked for; see `launch.starting.lanes`."""
        while started := self.studies.next_trial():
            yield partial(self._make, started)

    def _make(self, started: StartedTrial, lane: Lane) -> Iterator[None]:
        """Make a trial. Whatever ends this ends its run, and is recorded."""
        ending = _Ending(TrialState.FAIL, reason="interrupted")
        try:
            planned = self._planned(started.framework, started.trial.params, run=started.run, point=started.point)
            ending = yield from self._run(started, planned, lane)
        except UserError as error:  # settings that do not fit together
            ending = _Ending(TrialState.FAIL, reason=str(error))
        except Exception as error:
            ending = _Ending(TrialState.FAIL, reason=f"{type(error).__name__}: {error}")
            raise
        finally:
            self.studies.end_trial(
                started.framework, started.trial.number, state=ending.state, score=ending.score, reason=ending.reason
            )
            self.report(f"{started.run}: {ending.words}")

    def _run(self, started: StartedTrial, planned: PlannedTrial, lane: Lane) -> Generator[None, None, "_Ending"]:
        reported = 0

        def advance(share: float, title: str) -> None:
            nonlocal reported
            epochs = self._epochs(planned)
            for epoch, value in self.studies.metric.values(epochs[reported:]):
                started.trial.report(value, step=epoch)
            is_new, reported = len(epochs) > reported, len(epochs)
            if is_new and reported < planned.config.training.epochs and started.trial.should_prune():
                raise optuna.TrialPruned

        try:
            ended = yield from make_run(self.plan, planned, lane=lane, advance=advance)
        except optuna.TrialPruned:  # on its way here it has ended the ranks, unless they had finished
            ended = survey_run(self.plan, planned)
            if ended.state != "finished":
                return _Ending(TrialState.PRUNED, epochs=reported)
        return self._judged(ended)

    def _epochs(self, planned: PlannedTrial) -> list[EpochRecord]:
        try:
            return read_epochs(self.plan.folder / planned.name)
        except UserError:  # there is no folder so far
            return []

    def _judged(self, ended: SurveyedRun) -> "_Ending":
        """Return how a trial has ended whose run has."""
        if ended.state != "finished" or ended.run is None:
            return _Ending(TrialState.FAIL, reason=ended.reason)
        score = self.studies.metric.score(ended.run.epochs)
        if score is None:
            return _Ending(TrialState.FAIL, reason="it has not validated")
        return _Ending(TrialState.COMPLETE, score=score)

    def _planned(self, framework: str, params: Mapping[str, Value], *, run: str, point: int) -> PlannedTrial:
        return self.studies.file.planned(framework, params, name=run, point=point)

    def settle_running(self) -> None:
        """Record how trials have ended that an earlier command left as running, and end what is left of their runs.

        Those that this worker has begun are all meant, as it is only starting; of others those whose runs have been
        killed.

        Raises:
            UserError: one is running on another host, where SQLite or this worker's number must not be used.
        """
        here = socket.gethostname()
        for framework, trial in self.studies.running():
            name = run_name(framework, trial.number)
            planned = self._planned(framework, trial.params, run=name, point=point_of(trial))
            host, own = trial.user_attrs.get("host", here), trial.user_attrs.get("worker") == self.studies.worker
            run = _run_of(self.plan, name)
            if run and run.state == "running" and host != here:
                self._refuse(name, host=host, own=own)
                continue
            if not own and (run is None or run.state != "killed"):
                continue  # of another worker, which is at it
            end_processes(left_over(self.plan, planned))
            ending = self._judged(survey_run(self.plan, planned))
            if ending.state is TrialState.FAIL:
                why = f": {ending.reason}" if ending.reason else ""
                ending = replace(ending, reason=f"left by an interrupted command{why}")
            self.studies.end_trial(
                framework, trial.number, state=ending.state, score=ending.score, reason=ending.reason
            )
            self.report(f"{name}: {ending.words}")

    def _refuse(self, name: str, *, host: str, own: bool) -> None:
        received = f"{name} is running on {host}"
        if self.studies.file.keys.storage == "sqlite":
            raise UserError(
                f"SQLite is for the commands of one host. Received: {received}. Wait for it, or give "
                'storage = "journal" in a search of its own'
            )
        if own:
            raise UserError(
                f"this worker is at work on another host. Received: --worker {self.studies.worker}, {received}. "
                "Give each host another --worker"
            )


@dataclass(frozen=True)
class _Ending:
    """How a trial has ended; `epochs` of a pruned one."""

    state: TrialState
    score: float | None = None
    reason: str = ""
    epochs: int = 0

    @property
    def words(self) -> str:
        """In a few words."""
        if self.state is TrialState.FAIL:
            return f"FAILED: {self.reason}"
        return f"pruned after epoch {self.epochs}" if self.state is TrialState.PRUNED else f"score {self.score:.6g}"


def _run_of(plan: ExperimentPlan, name: str) -> RecordedRun | None:
    try:
        return read_run(plan.folder / name)
    except UserError:
        return None
