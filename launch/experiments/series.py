"""Make the missing runs of an experiment: one after the other, or side by side in lanes."""

import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from common.distributed.console import counted
from common.run_folder.records import World
from launch.experiments.at_once import resources_of_lane
from launch.experiments.plan import PlannedRun
from launch.experiments.report import Estimator, outcome
from launch.experiments.runs import make_run, prepare, wait_for_left_over
from launch.experiments.survey import SurveyedRun, missing_runs, survey
from launch.starting.lanes import WHOLE_HOST, Job, Lane, run_in_lanes
from launch.starting.progress import Progress

UNKNOWN_SECONDS = 60.0  # used in the bar for a run whose time cannot be estimated


def make_missing(estimator: Estimator, lanes: Sequence[Lane], *, note: Path | None = None) -> bool:
    """Make the missing runs, and the failed ones once more; return whether all are finished.

    Args:
        estimator: of the experiment.
        lanes: where they are made.
        note: a file that is touched whenever a run has been finished.
    """
    plan, host = estimator.plan, resources_of_lane(lanes[0])
    missing = missing_runs(survey(plan, host=host))
    prepare(plan.file.preparations, missing, folder=plan.folder)
    surveyed = survey(plan, host=host)
    estimator.print_remaining(surveyed, at_once=len(lanes))
    _print_unlike(surveyed, at_once=lanes[0].of)
    return _Series(estimator, missing, lanes=lanes, note=note).make()


def _print_unlike(surveyed: Sequence[SurveyedRun], *, at_once: int) -> None:
    """Print how many runs that are there had more or less of this host than those to come."""
    finished = [one for one in surveyed if one.run and one.state == "finished" and not one.planned.metered]
    worlds = [one.run.record.world for one in finished if one.run]
    unlike = sum(isinstance(world, World) and world.at_once != at_once for world in worlds)
    if unlike and missing_runs(surveyed):
        were = "was" if unlike == 1 else "were"
        print(f"note: {unlike} of {counted(len(surveyed), 'run')} {were} not made {at_once} at once: times do not "
              "compare with those to come")  # fmt: skip


class _Series:
    """The missing runs, while they are made."""

    def __init__(
        self, estimator: Estimator, missing: Sequence[PlannedRun], *, lanes: Sequence[Lane], note: Path | None
    ) -> None:
        self._estimator, self._missing, self._lanes, self._note = estimator, missing, lanes, note
        surveyed = survey(estimator.plan)
        self._seconds: dict[str, float] = {}
        for planned in missing:
            seconds = estimator.estimate(planned, surveyed).seconds
            beside = 1 if self._is_alone(planned) else len(lanes)
            self._seconds[planned.name] = (UNKNOWN_SECONDS if seconds is None else seconds) / beside
        self._began, self._started, self._ended, self._failed = time.monotonic(), 0, 0, 0
        pauses = estimator.plan.protocol.cool_down_seconds * max(0, len(missing) - 1)
        self._progress = Progress(sum(self._seconds.values()) + pauses)

    def _is_alone(self, planned: PlannedRun) -> bool:
        """Return whether nothing may run beside a run: nobody can tell its energy from that of the others."""
        return planned.metered and len(self._lanes) > 1

    def make(self) -> bool:
        """Make them; return whether all are finished."""
        beside = [planned for planned in self._missing if not self._is_alone(planned)]
        alone = [planned for planned in self._missing if self._is_alone(planned)]
        with self._progress:
            if len(self._lanes) > 1:  # what an earlier command left running is in no lane
                run_in_lanes((partial(self._wait, planned) for planned in self._missing), [WHOLE_HOST])
            run_in_lanes(self._jobs(beside), self._lanes)
            run_in_lanes(self._jobs(alone), [WHOLE_HOST])
        not_started = len(self._missing) - self._started
        if not_started:
            budget = self._estimator.plan.protocol.budget_minutes
            print(f"the budget of {budget:g} minutes is spent: {counted(not_started, 'run')} not started")
        if self._failed:
            print(f"{counted(self._failed, 'run')} failed; the same command runs what is missing once more")
        return not (self._failed or not_started)

    def _wait(self, planned: PlannedRun, lane: Lane) -> Iterator[None]:
        yield from wait_for_left_over(self._estimator.plan, planned)

    def _jobs(self, runs: Sequence[PlannedRun]) -> Iterator[Job]:
        """Yield the runs, each when it is to be started, until the budget is spent."""
        plan = self._estimator.plan
        budget = plan.protocol.budget_minutes
        for planned in runs:
            pause = plan.protocol.cool_down_seconds if self._started else 0.0
            expected = self._estimator.estimate(planned, survey(plan)).seconds or 0.0
            if budget is not None and time.monotonic() - self._began + pause + expected > budget * 60:
                return
            self._started += 1
            if pause:
                time.sleep(pause)
                self._progress.advance(pause, "cooling down")
            yield partial(self._make, planned)

    def _make(self, planned: PlannedRun, lane: Lane) -> Iterator[None]:
        seconds = self._seconds[planned.name]

        def advance(share: float, title: str) -> None:
            self._progress.advance(seconds * share, title)

        ended = yield from make_run(self._estimator.plan, planned, lane=lane, advance=advance)
        self._ended += 1
        self._failed += ended.state != "finished"
        if self._note and ended.state == "finished":
            self._note.touch()
        words = f"{self._ended}/{len(self._missing)} {planned.name}: {outcome(ended)}"
        self._progress.advance(0.0, words, line=True)
