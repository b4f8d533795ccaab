"""`python -m launch train --find-largest-batch`: the largest batch per rank that fits into memory, found by trying.

Each trial is a run of two updates in a temporary folder. On a CPU, a trial that would fill the host's
memory is ended before it does, for the kernel might end somebody else's program in its place; on a GPU the framework
says that its memory is full.
"""

import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil

from common.errors import UserError
from common.measurement.interference import Interference
from common.pipeline.forecast import FRAMEWORK_BYTES
from common.run_folder.records import read_run
from common.task.shares import shares_of
from common.task.task import Task
from launch.starting.launchers import Launcher
from launch.starting.processes import PROGRAMS, last_lines, reason_in, started

SHARE_OF_FREE_MEMORY = 0.9
UPDATES = 2  # the second one meets the memory that the first has left behind
FINENESS = 32  # the answer is exact to one part in so many
POLL_SECONDS = 0.1
_FULL = re.compile(
    r"out of memory|OutOfMemory|not enough memory|ResourceExhausted|RESOURCE_EXHAUSTED|bad_alloc|Cannot allocate memory"
    r"|can't allocate memory|ALLOC_FAILED|Killed|needs more memory than it may have",
    re.IGNORECASE,
)


def find_largest_batch(
    experiment: Task,
    *,
    start: Launcher,
    framework: str,
    controller: str | None,
    arguments: Sequence[str],
    memory_gb: float | None,
) -> int:
    """Try batches, print a line for each, and return the largest that fits; 0 if none does.

    Args:
        experiment: the settings, its number of ranks, and its data.
        start: of the ranks, on this host, whose memory is watched.
        framework: torch or keras.
        controller: mpi, gloo or None.
        arguments: of the trainer.
        memory_gb: of this host, for all ranks together, in 10^9 bytes; None: most of what is free.

    Raises:
        UserError: a try failed for another reason than memory.
    """
    config = experiment.config
    unit = config.parts.microbatches if config.parts.stages else 1
    most = len(experiment.training_indices) // experiment.copies // unit * unit
    free = psutil.virtual_memory().available
    limit = SHARE_OF_FREE_MEMORY * free if memory_gb is None else memory_gb * 1e9
    forecast = max(unit, min(most, _forecast(experiment, limit_bytes=limit, unit=unit)))
    print(
        f"memory: {limit / 1e9:.1f} GB for all ranks; batches of {unit} to {most:,} images per rank, {forecast:,} by "
        "the numbers of the model",
        flush=True,
    )
    fits, too_large = 0, most + unit
    with tempfile.TemporaryDirectory(prefix="largest-batch-") as folder:
        while not _is_exact(fits, too_large, most, unit=unit):
            batch = max(unit, _next(fits, too_large, most, first=forecast) // unit * unit)
            command = start.command(
                PROGRAMS[framework],
                np=experiment.processes,
                controller=controller,
                arguments=[*arguments, *_trial_arguments(batch, folder=folder)],
            )
            is_fitting, what = _try(command, Path(folder), batch=batch, limit_bytes=limit)
            print(f"batch {batch:,}: {'fits' if is_fitting else 'does not fit'}, {what}", flush=True)
            fits, too_large = (batch, too_large) if is_fitting else (fits, batch)
    if fits == most:
        print(f"largest batch that fits: {fits:,}, all training samples of a rank")
    elif fits:
        print(f"largest batch that fits: {fits:,} per rank ({too_large:,} does not fit)")
    else:
        print("not even one image fits")
    return fits


def _forecast(experiment: Task, *, limit_bytes: float, unit: int) -> int:
    """Return the largest batch whose training should fit by the numbers of the model, which is linear in the batch."""
    shares = (shares_of(experiment.config, [batch] * experiment.copies) for batch in (unit, 2 * unit))
    one, two = (sum(replace(experiment, shares=of_batch).forecast_bytes) for of_batch in shares)
    ranks = len(experiment.samples_of_ranks)
    free = limit_bytes - FRAMEWORK_BYTES * experiment.processes - ranks * (2 * one - two)
    return int(free / (ranks * (two - one))) * unit


def _is_exact(fits: int, too_large: int, most: int, *, unit: int) -> bool:
    """Return whether the answer is known to its fineness; as long as nothing was too large, only `most` is one."""
    if too_large > most:
        return fits == most
    return too_large - fits <= max(unit, fits // FINENESS)


def _next(fits: int, too_large: int, most: int, *, first: int) -> int:
    """Return the batch to try: twice as much as long as nothing was too large, then the middle."""
    if too_large > most:
        return min(most, max(first, 2 * fits))
    return (fits + too_large) // 2


def _trial_arguments(batch: int, *, folder: str) -> list[str]:
    steps = ["--epochs", "1", "--max-steps", str(UPDATES), "--batch-size", str(batch)]
    return [*steps, "--runs-folder", folder, "--name", f"batch-{batch}"]


def _try(command: Sequence[str], folder: Path, *, batch: int, limit_bytes: float) -> tuple[bool, str]:
    """Return whether a run with this batch fits, and what it took or why not."""
    log, most_seen = folder / f"batch-{batch}.log", 0
    with started(command, variables={}, log=log) as process:
        while process.poll() is None:
            most_seen = max(most_seen, _resident_bytes(process))
            if most_seen > limit_bytes:
                return False, f"the ranks took {most_seen / 1e9:.2f} GB"
            time.sleep(POLL_SECONDS)
    if process.returncode == 0:
        isolation = read_run(folder / f"batch-{batch}").record.isolation
        assert isinstance(isolation, Interference)
        device = [peak for peak in isolation.peak_device_memory_bytes if peak is not None]
        peaks = f"{sum(isolation.peak_memory_bytes) / 1e9:.2f} GB of the host"
        return True, peaks + (f", {max(device) / 1e9:.2f} GB of a GPU" if device else "")
    text = last_lines(log)
    if _FULL.search(text) or process.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL):
        return False, "memory is full"
    raise UserError(f"a trial with a batch of {batch} failed. Received: {reason_in(log)}. Fix that first")


def _resident_bytes(process: "subprocess.Popen[bytes]") -> int:
    """Return the memory of a program and all that it has started."""
    total = 0
    with suppress(psutil.NoSuchProcess):
        first = psutil.Process(process.pid)
        for member in [first, *first.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                total += member.memory_info().rss
    return total
