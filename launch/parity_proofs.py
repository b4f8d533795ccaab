"""The proofs of `python -m launch parity`: which jobs, which starts of ranks, what is compared with what."""

import itertools
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from tqdm import tqdm

from common.config import Config, parse_command_line
from common.console import readable_seconds
from common.environment import describe_environment, usable_cores
from common.errors import UserError, from_os_error
from common.parity import SCHEMA_VERSION, ParityRecord, ParitySettings, write_parity
from common.parity_cases import DTYPES, MODES, has_batch_norm
from common.parity_worker import Job
from common.records import now, read_run
from launch.parity_compare import NOTHING, Findings, Side, compare_frameworks, compare_ranks, compare_runs
from launch.processes import last_lines, launcher_command, started
from launch.train import PROGRAMS, ROOT

FRAMEWORKS = ("torch", "keras")  # the first leads, and is the reference
RUN_MODEL, RUN_RANKS = "cnn", 2
EXCHANGED_BY_RANKS = 5  # most updates of several ranks from exchanged states, each of which costs seconds
# Rough seconds of a start, a job, an update (of ResNet-34: the second), an epoch of an ordinary run; for the time left.
START_COST, JOB_COST, UPDATE_COST, RUN_COST = 5.0, (1.0, 5.0), (0.02, 0.8), 12.0
EXCHANGE_COST = 3.0  # of an update, for the state on its way
STUCK_SECONDS = 600.0  # without a new result, and more where a job has many updates: the ranks wait for each other
POLL_SECONDS = 0.2


def jobs_of(settings: ParitySettings, *, np: int) -> list[Job]:
    """Return what each framework does in a start of `np` ranks by itself."""
    jobs: list[Job] = []
    for model in settings.models:
        if np == settings.np[0]:
            jobs += [Job(kind="start", model=model, dtype=dtype) for dtype in DTYPES]
            jobs += [
                Job(kind="outputs", model=model, dtype=dtype, mode=mode)
                for mode, dtype in itertools.product(MODES, DTYPES)
            ]
        training = Job(kind="training", model=model, updates=settings.updates, optimizer=settings.optimizers[0])
        if has_batch_norm(model):
            if np == settings.np[0]:
                jobs += [replace(training, dtype=dtype) for dtype in DTYPES]
            continue
        jobs += [replace(training, dtype=dtype, traced=True) for dtype in DTYPES]
        rest = [name for name in settings.optimizers if name != training.optimizer]
        jobs += [replace(training, optimizer=optimizer) for optimizer in rest]
    return jobs


def exchange_jobs(settings: ParitySettings, *, np: int) -> list[Job]:
    """Return what both frameworks do at once, the second following the first."""
    updates = settings.exchanged_updates if np == 1 else min(settings.exchanged_updates, EXCHANGED_BY_RANKS)
    return [
        Job(kind="exchange", model=model, optimizer=optimizer, updates=updates)
        for model in settings.models
        if has_batch_norm(model)
        for optimizer in settings.optimizers
    ]


class Proofs:
    """Starts the ranks, compares what they leave, keeps the record."""

    def __init__(self, folder: Path, settings: ParitySettings) -> None:
        self.folder = folder
        self.settings = settings
        self.findings = NOTHING
        self.record = ParityRecord(
            schema_version=SCHEMA_VERSION,
            started_at=now(),
            ended_at=None,
            settings=settings,
            environment=describe_environment(),
        )
        self._write()
        costs = [
            2 * _cost(jobs_of(settings, np=np), np=np)
            + sum(_cost([job], np=np) for job in exchange_jobs(settings, np=np))
            for np in settings.np
        ]
        self.progress = _Progress(sum(costs) + 2 * RUN_COST * settings.epochs)

    def carry_out(self) -> None:
        """Do all of it."""
        first: dict[str, Side] = {}
        for np in self.settings.np:
            jobs = jobs_of(self.settings, np=np)
            sides = [self._start([framework], jobs, np=np)[0] for framework in FRAMEWORKS]
            for job in jobs:
                self._found(compare_frameworks(job, sides[1], sides[0]))
            for side in sides:
                if np == self.settings.np[0]:
                    first[side.framework] = side
                    continue
                for job in jobs:
                    self._found(compare_ranks(job, side, first[side.framework]))
                shutil.rmtree(side.folder)
            for job in exchange_jobs(self.settings, np=np):
                # A start for each: TensorFlow keeps the memory of a trained model, about 1 GB of this one.
                leader, follower = self._start(FRAMEWORKS, [job], np=np)
                self._found(compare_frameworks(job, follower, leader))
                for side in (leader, follower):
                    shutil.rmtree(side.folder)
            self._write()
        if self.settings.epochs:
            self._ordinary_runs()
        self.record = replace(self.record, ended_at=now())
        self._write()
        self.progress.close()

    def report(self) -> int:
        """Print what came of it; return the number of comparisons that differ more than they may."""
        comparisons = self.record.comparisons
        wrong = [one for one in comparisons if one.differs]
        judged = sum(one.tolerance is not None for one in comparisons)
        for one in wrong:
            print(
                f"differs: {one.model}, {one.what}{f', {one.optimizer}' if one.optimizer else ''}, {one.dtype}, "
                f"{' against '.join(one.between)}: {one.difference:.1e} at {one.where}, may be {one.tolerance:.0e}"
            )
        print(
            f"{judged} comparisons judged, {len(wrong)} differ more than they may; {len(comparisons) - judged} shown "
            f"only. Table and plots: python -m analysis parity {self.folder}"
        )
        return len(wrong)

    def _found(self, findings: Findings) -> None:
        self.findings += findings

    def _write(self) -> None:
        self.record = replace(self.record, comparisons=self.findings.comparisons, curves=self.findings.curves)
        try:
            write_parity(self.folder, self.record)
        except OSError as error:
            raise from_os_error(error, doing="writing the proofs") from None

    def _start(self, frameworks: Sequence[str], jobs: list[Job], *, np: int) -> list[Side]:
        """Start the ranks of one framework, or of both at once; return where their results are."""
        work = self.folder / "work"
        together = "exchange" if len(frameworks) > 1 else "alone"
        sides = [Side(name, np, work / f"{together}-{name}-{np}") for name in frameworks]
        plan, states = work / "jobs.json", work / "states"
        plan.write_text(json.dumps([asdict(job) for job in jobs]))
        states.mkdir(exist_ok=True)
        launcher = launcher_command("none" if np == 1 else self.settings.controller, size=np)
        commands = []
        for side in sides:
            side.folder.mkdir()
            worker = ROOT / f"{side.framework}_impl" / "parity_worker.py"
            files = ("--jobs", str(plan), "--results", str(side.folder), "--states", str(states))
            commands.append([*launcher, str(worker), *files])
        with self._running(commands, [side.title for side in sides]) as is_running:
            done, last = 0, time.monotonic()
            while is_running():
                known, done = done, min(len(list(side.folder.glob("*.safetensors"))) for side in sides)
                if done > known:
                    last = time.monotonic()
                    cost = _cost(jobs[known:done], np=np) - START_COST
                    self.progress.advance(cost, f"{' and '.join(frameworks)}, np {np}: {jobs[done - 1].name}")
                patience = STUCK_SECONDS + 10 * max(job.updates for job in jobs)
                if time.monotonic() - last > patience:
                    raise UserError(
                        f"the ranks stand still. Received: nothing new for {patience:.0f} s after {done} of "
                        f"{len(jobs)} jobs with --np {np}. Try --controller gloo, or leave that number of ranks out"
                    )
                time.sleep(POLL_SECONDS)
        what = jobs[0].name if len(jobs) == 1 else f"{len(jobs)} jobs"
        self.progress.advance(START_COST, f"{' and '.join(frameworks)}, np {np}: {what} done", line=True)
        return sides

    @contextmanager
    def _running(self, commands: list[list[str]], titles: list[str]) -> Iterator[Callable[[], bool]]:
        """Run commands at once; hand out a function that tells whether any still runs, and raises when one failed."""
        logs = [self.folder / "work" / f"{title.replace(' ', '-')}.log" for title in titles]
        variables = {"OMP_NUM_THREADS": "1"}  # one thread adds in one order
        with started(commands[0], variables=variables, log=logs[0]) as first:
            processes = [first]

            def is_running() -> bool:
                for process, title, log in zip(processes, titles, logs, strict=True):
                    if process.poll():
                        self.progress.close()
                        print(last_lines(log), file=sys.stderr)
                        raise UserError(
                            f"the ranks of {title} failed; their last lines are above. Received: exit code "
                            f"{process.returncode}. Mend what they say, or leave it out with --models or --np"
                        )
                return any(process.poll() is None for process in processes)

            if len(commands) == 1:
                yield is_running
            else:
                with started(commands[1], variables=variables, log=logs[1]) as second:
                    processes.append(second)
                    yield is_running

    def _ordinary_runs(self) -> None:
        """Train by horovodrun with each framework, and compare the run folders."""
        for framework in FRAMEWORKS:
            launcher = launcher_command(self.settings.controller, size=RUN_RANKS)
            flags = run_flags(self.settings, self.folder, name=framework)
            command = [*launcher, str(ROOT / PROGRAMS[framework]), *flags]
            with self._running([command], [f"{framework} train"]) as is_running:
                while is_running():
                    time.sleep(POLL_SECONDS)
            title = f"{framework}, np {RUN_RANKS}: a run of train.py on {self.settings.dataset}"
            self.progress.advance(RUN_COST * self.settings.epochs, title, line=True)
        torch, keras = (read_run(self.folder / name) for name in FRAMEWORKS)
        self._found(compare_runs(keras, torch))
        self.record = replace(self.record, runs=list(FRAMEWORKS))


def run_flags(settings: ParitySettings, folder: Path, *, name: str) -> list[str]:
    """Return the flags of one of the two ordinary runs."""
    return [
        *("--dataset", settings.dataset, "--model", RUN_MODEL, "--no-dropout", "--dtype", "float64"),
        *("--epochs", str(settings.epochs), "--runs-folder", str(folder), "--name", name),
    ]


def run_settings(settings: ParitySettings, folder: Path, *, name: str) -> Config:
    """Return the same as settings, checked."""
    return parse_command_line(run_flags(settings, folder, name=name), program="python -m launch parity")


class _Progress:
    """Tells how far it is: a bar in a terminal, else a line for each start of ranks."""

    def __init__(self, cost: float) -> None:
        self._bar = tqdm(total=round(cost), bar_format="{percentage:3.0f} % |{bar:20}| {elapsed}, {postfix}",
                         disable=not sys.stderr.isatty(), leave=False)  # fmt: skip
        self._cost, self._done = cost, 0.0
        self._began = time.monotonic()

    def advance(self, cost: float, title: str, *, line: bool = False) -> None:
        """Tell of so many planned seconds done."""
        self._done += cost
        pace = (time.monotonic() - self._began) / max(self._done, 1.0)
        left = readable_seconds(round(max(0.0, self._cost - self._done) * pace))
        if line:
            self._bar.clear()
            print(f"{title}; about {left} left", flush=True)
        self._bar.set_postfix_str(f"about {left} left; {title}", refresh=False)
        self._bar.update(round(min(self._done, self._cost)) - self._bar.n)

    def close(self) -> None:
        """Take the bar away."""
        self._bar.close()


def _cost(jobs: Sequence[Job], *, np: int) -> float:
    """Return roughly how many seconds jobs take, to tell the time left."""
    seconds = START_COST if jobs else 0.0
    slower = max(1.0, np / usable_cores())
    for job in jobs:
        large = has_batch_norm(job.model)
        update = EXCHANGE_COST if job.kind == "exchange" else UPDATE_COST[large]
        seconds += slower * (JOB_COST[large] + job.updates * update)
    return seconds
