"""The jobs of `python -m launch parity`: for each start of ranks, for the two ordinary runs, and their rough time."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from common.checks.parity_cases import DTYPES, GLOBAL_BATCH, MODES, STRATEGIES, STRATEGY_RANKS, has_batch_norm
from common.checks.parity_record import ParitySettings
from common.checks.parity_worker import ParityJob
from common.config import Config, parse_command_line
from common.utils.cores import usable_cores

RUN_MODEL, RUN_RANKS = "cnn", 2


@dataclass(frozen=True)
class StrategyRun:
    """A training of both frameworks by `train.py`: of a strategy whose ranks no worker can be.

    Attributes:
        np: ranks, servers included.
        flags: of each framework.
        copies: of the model, which share a global batch.
        alone: whether one process of the same framework does the same, with which it is compared, too.
    """

    name: str
    np: int
    flags: dict[str, tuple[str, ...]]
    copies: int = STRATEGY_RANKS
    alone: bool = False


SERVER = ("--strategy", "server", "--servers", "1", "--staleness", "0")
NATIVE = ("--strategy", "native", "--native")
LAYERS = ("--strategy", "layers", "--stages", "2")
SPLIT = ("--strategy", "split", "--model-ranks", "2")
STRATEGY_RUNS = (
    StrategyRun("server", 3, {"torch": SERVER, "keras": SERVER}),
    StrategyRun("native", 2, {"torch": (*NATIVE, "ddp"), "keras": (*NATIVE, "multiworker")}),
)
# By the most ranks of the proof: one copy of the model on two, two copies on four.
MODEL_RUNS = {
    2: (
        StrategyRun("layers", 2, {"torch": LAYERS, "keras": LAYERS}, copies=1),
        StrategyRun("split", 2, {"torch": SPLIT, "keras": SPLIT}, copies=1),
    ),
    4: (
        StrategyRun("alone", 1, {"torch": (), "keras": ()}, copies=1),
        StrategyRun("layers", 4, {"torch": LAYERS, "keras": LAYERS}, alone=True),
        StrategyRun("split", 4, {"torch": SPLIT, "keras": SPLIT}, alone=True),
    ),
}
EXCHANGED_BY_RANKS = 5  # maximum with several ranks; each update from an exchanged state takes seconds
# Rough seconds of a start, a job, an update (of ResNet-34: the second), an epoch of an ordinary run.
START_COST, JOB_COST, UPDATE_COST, RUN_COST = 5.0, (1.0, 5.0), (0.02, 0.8), 12.0
STRATEGY_DATASET, STEPS_PER_EPOCH = "synthetic:2000x28x28x1x10", 10
EXCHANGE_COST = 1.8  # per update, for passing on the state


def jobs_of(settings: ParitySettings, *, np: int) -> list[ParityJob]:
    """Return the jobs that each framework does on its own in a start of `np` ranks."""
    jobs: list[ParityJob] = []
    for model in settings.models:
        if np == settings.np[0]:
            jobs += [ParityJob(kind="start", model=model, dtype=dtype) for dtype in DTYPES]
            jobs += [
                ParityJob(kind="outputs", model=model, dtype=dtype, mode=mode)
                for mode, dtype in itertools.product(MODES, DTYPES)
            ]
        training = ParityJob(kind="training", model=model, updates=settings.updates, optimizer=settings.optimizers[0])
        if has_batch_norm(model):
            if np == settings.np[0]:
                jobs += [replace(training, dtype=dtype) for dtype in DTYPES]
            continue
        jobs += [replace(training, dtype=dtype, traced=True) for dtype in DTYPES]
        rest = [name for name in settings.optimizers if name != training.optimizer]
        jobs += [replace(training, optimizer=optimizer) for optimizer in rest]
    return jobs


def exchange_jobs(settings: ParitySettings, *, np: int) -> list[ParityJob]:
    """Return the jobs that both frameworks do at once, the second one following the first."""
    updates = settings.exchanged_updates if np == 1 else min(settings.exchanged_updates, EXCHANGED_BY_RANKS)
    return [
        ParityJob(kind="exchange", model=model, optimizer=optimizer, updates=updates)
        for model in settings.models
        if has_batch_norm(model)
        for optimizer in settings.optimizers
    ]


def strategy_jobs(settings: ParitySettings, *, np: int) -> list[ParityJob]:
    """Return the trainings by other strategies than allreduce, for which one model and the last optimizer suffice."""
    free = [model for model in settings.models if not has_batch_norm(model)]
    return [
        ParityJob(kind="training", model=free[0], optimizer=settings.optimizers[-1], updates=settings.updates,
                  strategy=strategy)
        for strategy in STRATEGIES
        if np == STRATEGY_RANKS and free
    ]  # fmt: skip


def strategy_runs(settings: ParitySettings) -> list[StrategyRun]:
    """Return the trainings by strategies that need MPI and ranks of their own."""
    if settings.controller != "mpi" or STRATEGY_RANKS not in settings.np:
        return []
    return [*STRATEGY_RUNS, *MODEL_RUNS[4 if 4 in settings.np else 2]]


def strategy_flags(settings: ParitySettings, folder: Path, run: StrategyRun, *, framework: str) -> list[str]:
    """Return the flags of one of them: as many updates as other trainings have."""
    return [
        *("--dataset", STRATEGY_DATASET, "--model", RUN_MODEL, "--no-dropout", "--dtype", "float64", "--device", "cpu"),
        *(
            "--onednn",
            settings.onednn,
            "--threads",
            "1",
            "--batch-size",
            str(GLOBAL_BATCH // run.copies),
            "--lr-scaling",
            "none",
        ),
        *("--epochs", str(settings.updates), "--steps-per-epoch", str(STEPS_PER_EPOCH)),
        *("--max-steps", str(settings.updates)),
        *("--runs-folder", str(folder), "--name", f"{run.name}-{framework}", *run.flags[framework]),
    ]


def run_flags(settings: ParitySettings, folder: Path, *, name: str) -> list[str]:
    """Return the flags of one of the two ordinary runs."""
    return [
        *("--dataset", settings.dataset, "--model", RUN_MODEL, "--no-dropout", "--dtype", "float64"),
        *("--onednn", settings.onednn, "--epochs", str(settings.epochs), "--runs-folder", str(folder), "--name", name),
    ]


def run_settings(settings: ParitySettings, folder: Path, *, name: str) -> Config:
    """Return the settings of that run, validated."""
    return parse_command_line(run_flags(settings, folder, name=name), program="python -m launch parity")


def planned_seconds(jobs: Sequence[ParityJob], *, np: int) -> float:
    """Return roughly how many seconds jobs take, for the time left."""
    seconds = START_COST if jobs else 0.0
    slower = max(1.0, np / usable_cores())
    for job in jobs:
        large = has_batch_norm(job.model)
        update = EXCHANGE_COST if job.kind == "exchange" else UPDATE_COST[large]
        seconds += slower * (JOB_COST[large] + job.updates * update)
    return seconds
