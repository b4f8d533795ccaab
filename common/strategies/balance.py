"""What ranks measure before training: how fast each is (`--shares auto`), and `--gradient-groups auto`."""

import gc
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from common.config import Config
from common.distributed.communicator import Communicator
from common.run.epoch import Trial
from common.run.resume import can_be_resumed
from common.run_folder.records import RUN_FILE, DataRecord, RunRecord, read_record
from common.run_folder.sharing import MeasuredGroups
from common.strategies.gradient_groups import DEFAULT, measure_groups
from common.task.prepare import prepare
from common.task.shares import divided
from common.task.task import Task

# Updates before those whose time counts, and those.
LEFT_OUT_STEPS = 3
MEASURED_STEPS = 20


def prepare_on_all_ranks(
    config: Config, *, comm: Communicator, device: Any, build: Callable[..., Trial], first_copies: int | None = None
) -> Task:
    """Return the task, the same on all ranks; every rank calls this.

    Args:
        device: of this rank.
        build: the framework's `trial`; called only for what is to be measured, on all ranks at once, as they
            compute at once in training, too.
        first_copies: of the model, that the run was first started with, if these are others (`--elastic`).

    Raises:
        UserError: settings or data do not fit together; on all ranks.
    """
    with comm.propagate_errors("preparing the data"):
        task = prepare(config, ranks=comm.size, first_copies=first_copies)
    shares, groups = config.balance.shares == "auto", config.device.gradient_groups == "auto"
    if not shares and not groups:
        return task
    if not task.total_steps:  # nothing is trained, and nothing can be measured
        return replace(task, groups=MeasuredGroups(chosen=DEFAULT)) if groups else task
    recorded = None
    with comm.propagate_errors("looking at the run folder"):
        if comm.rank == 0:
            recorded = _resumed_record(config)
    recorded = comm.broadcast(recorded)
    build = partial(build, comm=comm, device=device)
    if shares:
        samples = _recorded_samples(recorded, copies=comm.size)
        if samples is None:
            parts = comm.allgather(_speed(build(task, exchanges=False)))
            samples = divided(config, parts=parts, first_copies=task.first_copies)
        with comm.propagate_errors("sharing the batch"):
            task = task.with_samples(samples)
    if groups:
        kept = recorded.groups if recorded else None
        measured = kept or measure_groups(task, comm=comm, build=partial(build, exchanges=True))
        task = replace(task, groups=measured)
    gc.collect()  # the trials, which are in cycles, would else stay in the memory of the GPU
    return task


def _speed(trial: Trial) -> float:
    """Return the images per second of this rank in training."""
    trial.train(LEFT_OUT_STEPS)
    measured = trial.train(MEASURED_STEPS)
    return measured.sums.samples / measured.seconds


def _resumed_record(config: Config) -> RunRecord | None:
    """Return the record of a run to be resumed, which keeps what it measured; None for a new run."""
    folder, is_named = config.record.folder(), config.record.resume_or_start
    if not (config.record.resume or is_named) or not (folder / RUN_FILE).exists():
        return None
    return None if is_named and not can_be_resumed(folder, config) else read_record(folder)


def _recorded_samples(recorded: RunRecord | None, *, copies: int) -> tuple[int, ...] | None:
    """Return the parts that a run to be resumed started with; None for a new run."""
    data = recorded.data if recorded else None
    sizes = data.batch_sizes if isinstance(data, DataRecord) else None
    return tuple(sizes) if sizes and len(sizes) == copies else None
