"""Runs of the journal on pretended ranks, without any framework."""

from collections.abc import Callable
from typing import Any

from builders import make_setup, random_weights
from fake_ranks import alone, run_ranks

from common.config import Config
from common.distributed.communicator import Communicator
from common.distributed.console import Console
from common.measurement.metrics import Sums
from common.training.journal import EpochResult, Journal

Script = Callable[[Journal, int], Any]


def result(**changes: Any) -> EpochResult:
    values = {"training": Sums(60.0, 30, 120), "training_seconds": 2.0, "data_wait_seconds": 0.5}
    return EpochResult(**{**values, **changes})


def play(config: Config, script: Script, *, size: int = 1) -> list[Any]:
    """Start a journal on every rank and run the script of a trainer with it; return what the ranks returned."""
    setup = make_setup(config, size=size)

    def work(comm: Communicator) -> Any:
        journal = Journal(framework="torch", comm=comm, console=Console(comm, progress="lines"))
        checkpoint = journal.start(setup, device=f"cpu {comm.rank}", threads=1)
        journal.training_starts()
        if checkpoint:
            journal.check_weights(checkpoint.weights, when="after the broadcast")
        return script(journal, checkpoint.epoch if checkpoint else 0)

    return [work(alone())] if size == 1 else run_ranks(size, work)


def end_epoch(journal: Journal, epoch: int, **changes: Any) -> bool:
    weights = random_weights(journal.setup, seed=epoch)
    return journal.epoch_ended(epoch, result(**changes), weights=weights, optimizer_state=dict)


def finish(journal: Journal, test: Sums = Sums(8.0, 15, 20), seconds: float = 0.5) -> None:  # noqa: B008 - frozen
    journal.finish(test, test_seconds=seconds, weights=random_weights(journal.setup, seed=99))
