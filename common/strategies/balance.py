"""`--shares auto`: ranks take parts of a global batch in proportion to their speed, measured before training."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from common.config import Config
from common.distributed.communicator import Communicator
from common.run_folder.records import RUN_FILE, DataRecord, read_record
from common.training.run_setup import RunSetup, check_batch_norm, prepare_run, shared_batch

# Updates before those whose time counts, and those.
LEFT_OUT_STEPS = 3
MEASURED_STEPS = 20


def prepare_on_all_ranks(
    config: Config, *, comm: Communicator, device: Any, measure: Callable[..., float], first_size: int | None = None
) -> RunSetup:
    """Return the run setup of all ranks; every rank calls this.

    Args:
        device: of this rank.
        first_size: ranks that the run was first started with, if these are others (`--elastic`).
        measure: the framework's `speed_alone`: this rank's images per second in training alone; called only with
            `--shares auto`, on all ranks at once, as they compute at once in training, too.

    Raises:
        UserError: settings or data do not fit together; on all ranks.
    """
    with comm.propagate_errors("preparing the data"):
        setup = prepare_run(config, size=comm.size, first_size=first_size)
    if config.balance.shares != "auto":
        return setup
    with comm.propagate_errors("looking at the run folder"):
        recorded = _recorded_batch_sizes(config, size=comm.size) if comm.rank == 0 else None
    batch_sizes = comm.broadcast(recorded)
    if batch_sizes is None:
        speeds = comm.allgather(measure(setup, comm=comm, device=device))
        batch_sizes = shared_batch(config, parts=speeds)
    with comm.propagate_errors("sharing the batch"):
        check_batch_norm(setup.spec, config, batch_sizes=batch_sizes)
    return replace(setup, batch_sizes=batch_sizes)


def _recorded_batch_sizes(config: Config, *, size: int) -> tuple[int, ...] | None:
    """Return the parts that a run to be resumed started with, which it keeps; None for a new run."""
    record = config.record
    if not record.resume and not record.resume_or_start:
        return None
    folder = Path(record.resume) if record.resume else record.folder(record.name or "")
    if not (folder / RUN_FILE).exists():
        return None
    data = read_record(folder).data
    sizes = data.batch_sizes if isinstance(data, DataRecord) else None
    return tuple(sizes) if sizes and len(sizes) == size else None
