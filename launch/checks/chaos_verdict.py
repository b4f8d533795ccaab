"""What became of a run after a fault: for both kinds of trials of `python -m launch chaos`."""

from pathlib import Path

from common.checks.differences import worst_difference
from common.errors import UserError
from common.model.weights import load_weights
from common.run_folder.checkpoints import newest_finished_epoch
from common.run_folder.records import RUN_FILE, WEIGHTS_FILE, Hashes, read_run

TOLERANCE = 1e-10  # of a run whose ranks came and went, in float64; others repeat bit for bit
MOST_STARTS = 4


def is_readable(folder: Path) -> bool:
    """Return whether a run folder is absent, or valid and does not say that the run goes on."""
    if not (folder / RUN_FILE).exists():
        return not folder.exists() or not any(not one.name.startswith(".") for one in folder.iterdir())
    try:
        return read_run(folder).state != "running"
    except UserError:
        return False


def is_kept(folder: Path, *, epochs: int) -> bool:
    """Return whether a run that has ended can go on after all epochs that it has recorded, of which there are enough.

    Args:
        epochs: that were recorded when the fault came. The first rank of an elastic run may end between a record and
            what the others keep in memory: they train that epoch again.
    """
    if has_finished(folder):
        return True
    try:
        recorded = len(read_run(folder).epochs)
    except UserError:
        return not epochs
    return recorded >= epochs and newest_finished_epoch(folder, recorded_epochs=recorded) == recorded


def has_finished(folder: Path) -> bool:
    """Return whether a run has come to its end."""
    try:
        return read_run(folder).state == "finished"
    except UserError:
        return False


def same_run(folder: Path, reference: Path, *, is_elastic: bool = False) -> bool:
    """Return whether two finished runs have the same weights."""
    if is_elastic:
        apart, _ = worst_difference(*(load_weights(one / WEIGHTS_FILE) for one in (folder, reference)))
        return apart <= TOLERANCE
    hashes = [read_run(one).record.hashes for one in (folder, reference)]
    return isinstance(hashes[0], Hashes) and hashes[0] == hashes[1]
