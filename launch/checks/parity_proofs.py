"""The proofs of `python -m launch parity`: start the ranks, compare their results, write the record."""

import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from common.checks.parity_record import PARITY_FILE, PROOFS, FinishedPart, ParityRecord, ParitySettings
from common.checks.parity_worker import ParityJob
from common.distributed.console import counted
from common.errors import UserError, as_user_error
from common.json_records import SCHEMA_VERSION
from common.run_folder.environment import describe_environment, package_versions
from common.run_folder.records import EPOCHS_FILE, now, read_run
from common.utils.environments import package_folders
from common.utils.paths import ROOT
from launch.checks.parity_compare import (
    NOTHING,
    RANKS,
    ParityResults,
    ParitySide,
    compare_frameworks,
    compare_ranks,
    compare_runs,
)
from launch.checks.parity_jobs import (
    RUN_COST,
    RUN_RANKS,
    START_COST,
    STEPS_PER_EPOCH,
    exchange_jobs,
    jobs_of,
    planned_seconds,
    run_flags,
    strategy_flags,
    strategy_jobs,
    strategy_runs,
)
from launch.starting.processes import PROGRAMS, last_lines, launcher_command, started
from launch.starting.progress import Progress

FRAMEWORKS = ("torch", "keras")  # the first leads, and is the reference
STUCK_SECONDS = 600.0  # without a new result, more for jobs with many updates: the ranks are deadlocked
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class _Part:
    """A part of the proofs; `cost`: its rough seconds."""

    name: str
    cost: float
    prove: Callable[[], None]


class ParityProofs:
    """The proofs in a folder: `parity.json`, the two run folders; `logs/` of the ranks until all have succeeded.

    Args:
        before: the record of proofs that ended early, which are resumed.
    """

    def __init__(self, folder: Path, settings: ParitySettings, *, before: ParityRecord | None = None) -> None:
        self.folder, self.settings = folder, settings
        self.work, self.logs = folder / "work", folder / "logs"
        self.findings = NOTHING
        self._first: list[ParitySide] | None = None  # of the first number of ranks
        folders = [folder for framework in FRAMEWORKS for folder in package_folders(framework)]
        self.record = ParityRecord(
            schema_version=SCHEMA_VERSION,
            started_at=now(),
            ended_at=None,
            settings=settings,
            environment=replace(describe_environment(), packages=package_versions(folders)),
        )
        if before:
            last = before.parts[-1] if before.parts else FinishedPart(name="", comparisons=0, curves=0)
            self.findings = ParityResults(before.comparisons[: last.comparisons], before.curves[: last.curves])
            self.record = replace(before, ended_at=None)
        done = {part.name for part in self.record.parts}
        self.parts = [part for part in self._all_parts() if part.name not in done]
        self.progress = Progress(sum(part.cost for part in self.parts))

    def run(self) -> None:
        """Make all comparisons; each is in the record at once.

        Raises:
            UserError: ranks failed or made no progress, or the results cannot be written.
        """
        try:
            with self.progress:
                self.work.mkdir(parents=True)
                self.logs.mkdir(exist_ok=True)
                self._keep(NOTHING)
                self._prove()
                shutil.rmtree(self.logs)
        except OSError as error:
            raise as_user_error(error, doing="writing the proofs") from None
        finally:
            shutil.rmtree(self.work, ignore_errors=True)

    def _all_parts(self) -> list[_Part]:
        """Return the parts of the proofs in their order."""
        settings, parts = self.settings, []
        for np in settings.np:
            cost = 2 * planned_seconds(jobs_of(settings, np=np) + strategy_jobs(settings, np=np), np=np)
            parts.append(_Part(f"np {np}", cost, partial(self._jobs, np)))
            for job in exchange_jobs(settings, np=np):
                cost = planned_seconds([job], np=np)
                parts.append(_Part(f"np {np}, {job.name}", cost, partial(self._exchange, job, np)))
        parts.append(_Part("strategies", 2 * RUN_COST * len(strategy_runs(settings)), self._strategy_runs))
        return [*parts, _Part("runs", 2 * RUN_COST * settings.epochs, self._ordinary_runs)]

    def _prove(self) -> None:
        for part in self.parts:
            part.prove()
            counts = {"comparisons": len(self.findings.comparisons), "curves": len(self.findings.curves)}
            self.record = replace(self.record, parts=[*self.record.parts, FinishedPart(name=part.name, **counts)])
            self._keep(NOTHING)
        self.record = replace(self.record, ended_at=now())
        self._keep(NOTHING)

    def _jobs(self, np: int) -> None:
        """Compare the frameworks, and several ranks with the first number of them."""
        jobs, by_strategy = jobs_of(self.settings, np=np), strategy_jobs(self.settings, np=np)
        sides = [self._start([framework], jobs + by_strategy, np=np)[0] for framework in FRAMEWORKS]
        torch, keras = sides
        for job in jobs + by_strategy:
            self._keep(compare_frameworks(job, keras, torch))
        first = self.settings.np[0]
        if np == first:
            self._first = sides
            return
        if self._first is None:  # made before the proofs were resumed
            again = jobs_of(self.settings, np=first)
            self._first = [self._start([framework], again, np=first)[0] for framework in FRAMEWORKS]
        for side, reference in zip(sides, self._first, strict=True):
            for job in jobs:
                self._keep(compare_ranks(job, side, reference))
            shutil.rmtree(side.folder)

    def _exchange(self, job: ParityJob, np: int) -> None:
        """Compare updates of which each starts from the same state.

        One start per job: TensorFlow keeps the memory of a trained model, here about 1 GB.
        """
        torch, keras = self._start(FRAMEWORKS, [job], np=np)
        self._keep(compare_frameworks(job, keras, torch))
        for side in (torch, keras):
            shutil.rmtree(side.folder)

    @property
    def differ(self) -> bool:
        """Whether a difference exceeds its tolerance."""
        return any(one.differs for one in self.record.comparisons)

    def _keep(self, findings: ParityResults) -> None:
        self.findings += findings
        self.record = replace(self.record, comparisons=self.findings.comparisons, curves=self.findings.curves)
        PROOFS.write(self.folder / PARITY_FILE, self.record)

    def _start(self, frameworks: Sequence[str], jobs: list[ParityJob], *, np: int) -> list[ParitySide]:
        """Start the ranks of one framework, or of both at once; return the folders of their results."""
        kind = "both" if len(frameworks) > 1 else "alone"
        sides = [ParitySide(name, np, self.work / f"{kind}-{name}-{np}") for name in frameworks]
        plan, states = self.work / "jobs.json", self.work / "states"
        plan.write_text(json.dumps([asdict(job) for job in jobs]))
        states.mkdir(exist_ok=True)
        commands = {}
        for side in sides:
            side.folder.mkdir()
            files = ("--jobs", str(plan), "--results", str(side.folder), "--states", str(states),
                     "--onednn", self.settings.onednn)  # fmt: skip
            commands[side.title] = [*self._launcher(np), str(ROOT / f"{side.framework}_impl/parity_worker.py"), *files]
        who = f"{' and '.join(frameworks)}, np {np}"

        def advance(known: int, done: int) -> None:
            cost = planned_seconds(jobs[known:done], np=np) - START_COST
            self.progress.advance(cost, f"{who}: {jobs[done - 1].name}")

        self._wait(
            commands,
            count=lambda: min(len(list(side.folder.glob("*.safetensors"))) for side in sides),
            advance=advance,
            patience=STUCK_SECONDS + 10 * max(job.updates for job in jobs),
        )
        what = jobs[0].name if len(jobs) == 1 else f"{len(jobs)} jobs"
        self.progress.advance(START_COST, f"{who}: {what} done", line=True)
        return sides

    def _ordinary_runs(self) -> None:
        """Train with each framework by horovodrun, and compare the run folders."""
        if not self.settings.epochs:
            return
        for framework in FRAMEWORKS:
            shutil.rmtree(self.folder / framework, ignore_errors=True)  # of proofs that ended in the middle of it
            flags = run_flags(self.settings, self.folder, name=framework)
            self._train(framework, flags, np=RUN_RANKS, folder=self.folder / framework, epoch_cost=RUN_COST)
        torch, keras = (read_run(self.folder / name) for name in FRAMEWORKS)
        self.record = replace(self.record, runs=list(FRAMEWORKS))
        self._keep(compare_runs(keras, torch, title=f"train.py, {counted(self.settings.epochs, 'epoch')}"))

    def _strategy_runs(self) -> None:
        """Train by strategies that start their ranks in their own way; the run folders are not kept."""
        for run in strategy_runs(self.settings):
            for framework in FRAMEWORKS:
                flags = strategy_flags(self.settings, self.work, run, framework=framework)
                folder = self.work / f"{run.name}-{framework}"
                cost = RUN_COST * STEPS_PER_EPOCH / self.settings.updates
                self._train(framework, flags, np=run.np, folder=folder, epoch_cost=cost)
            torch, keras = (read_run(self.work / f"{run.name}-{framework}") for framework in FRAMEWORKS)
            title = f"train.py, {counted(self.settings.updates, 'update')}, {run.name}"
            self._keep(compare_runs(keras, torch, title=title))
            for ours in (torch, keras) if run.alone else ():
                alone = read_run(self.work / f"alone-{ours.record.framework}")
                self._keep(compare_runs(ours, alone, title=title, tolerance=RANKS))

    def _train(self, framework: str, flags: list[str], *, np: int, folder: Path, epoch_cost: float) -> None:
        """Make an ordinary run; `epoch_cost`: rough seconds of an epoch."""
        lines, who = folder / EPOCHS_FILE, f"{framework}, np {np}: {folder.name} by train.py"
        self._wait(
            {f"{folder.name} train.py": [*self._launcher(np), str(ROOT / PROGRAMS[framework]), *flags]},
            count=lambda: len(lines.read_text().splitlines()) if lines.exists() else 0,
            advance=lambda known, done: self.progress.advance(epoch_cost * (done - known), f"{who}, epoch {done}"),
            patience=STUCK_SECONDS,
        )
        self.progress.advance(0.0, f"{who} done", line=True)

    def _launcher(self, np: int) -> list[str]:
        return launcher_command("none" if np == 1 else self.settings.controller, size=np)

    def _wait(
        self,
        commands: dict[str, list[str]],
        *,
        count: Callable[[], int],
        advance: Callable[[int, int], None],
        patience: float,
    ) -> None:
        """Run commands at the same time, until all have ended.

        Args:
            commands: name -> command.
            count: returns the number of results so far.
            advance: called with the count before and now, when it has grown.
            patience: seconds without a new result before all are stopped.

        Raises:
            UserError: one failed, or made no progress.
        """
        logs = {name: self.logs / f"{name.replace(' ', '-')}.log" for name in commands}
        variables = {"OMP_NUM_THREADS": "1"}  # one thread adds in one order
        with ExitStack() as stack:
            processes = {
                name: stack.enter_context(started(command, variables=variables, log=logs[name]))
                for name, command in commands.items()
            }
            done, last = 0, time.monotonic()
            while True:
                running = any(process.poll() is None for process in processes.values())
                for name, process in processes.items():
                    if process.returncode:
                        raise self._failure(name, logs[name], f"exit code {process.returncode}")
                known, done = done, count()
                if done > known:
                    last = time.monotonic()
                    advance(known, done)
                if not running:
                    return
                if time.monotonic() - last > patience:
                    raise self._failure(" and ".join(processes), logs[name], f"no new result for {patience:.0f} s")
                time.sleep(POLL_SECONDS)

    def _failure(self, who: str, log: Path, received: str) -> UserError:
        print(last_lines(log), file=sys.stderr)
        return UserError(
            f"the ranks of {who} failed. Received: {received}. Their last lines are above, the whole log is {log}; "
            "fix the cause, or omit this part with --models or --np"
        )
