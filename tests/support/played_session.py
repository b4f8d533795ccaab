"""Runs of a session on pretended ranks, with a trainer that trains nothing, without any framework."""

from builders import make_task, random_weights
from fake_ranks import alone, run_ranks

from common.distributed.console import Console
from common.elastic.membership import Hooks
from common.measurement.metrics import Sums
from common.run.elastic_session import ElasticSession
from common.run.measured import Measured
from common.run.session import Session
from common.run_folder.checkpoints import PartialEpoch


class LostRankError(Exception):
    """Another rank has ended, as Horovod would say."""


def no_hooks(settings):
    """Return the part of Horovod in runs whose ranks stay."""
    return Hooks(rejoin=alone, is_lost_rank=lambda error: isinstance(error, LostRankError), listen=print)


class FakeState:
    """Weights without a model."""

    def __init__(self, weights):
        self.weights = weights

    def restore(self, weights, optimizer=None):
        """Take other weights."""
        self.weights = weights

    def export_weights(self):
        """Return the weights."""
        return self.weights

    def export_optimizer(self):
        """Return no state."""
        return {}


class FakeTrainer:
    """Has a result without training."""

    profiler = None
    steps_left = 0
    updates_done = 0

    def __init__(self, weights, result=Measured()):  # noqa: B008 - frozen
        self.state = FakeState(weights)
        self.epoch = 0
        self.measured = result

    def result(self):
        """Return what it was given."""
        return self.measured

    def partial_epoch(self):
        """Return nothing done."""
        return PartialEpoch()


class Played:
    """A session of one rank that has started training, and the steps of `train.py` around its epochs."""

    def __init__(self, config, comm, *, framework="torch", device="cpu", gpu=None, onednn=True, membership=None):
        self.comm = comm
        console = Console(comm, progress="lines")
        self.session = Session(framework=framework, comm=comm, console=console)
        if membership:
            self.session = ElasticSession(framework=framework, comm=comm, console=console)
            self.session.membership = membership
        self.task = make_task(config, size=comm.size, first_copies=self.session.first_copies(config))
        checkpoint = self.session.start(self.task, device=device, gpu=gpu, threads=1, onednn=onednn)
        trainer = FakeTrainer(random_weights(self.task, seed=98))
        self.checkpointer = self.session.start_training(trainer, checkpoint)
        self.done = checkpoint.epoch if checkpoint else 0
        self.step = checkpoint.step if checkpoint else 0

    def end_epoch(
        self,
        epoch,
        *,
        training=Sums(60.0, 30, 120),  # noqa: B008 - frozen
        training_seconds=2.0,
        data_wait_seconds=0.5,
        validation=Sums(),  # noqa: B008 - frozen
        validation_seconds=0.0,
        weights=None,
    ):
        """End an epoch with what this rank measured; return whether the run continues."""
        measured = Measured(sums=training, seconds=training_seconds, data_wait_seconds=data_wait_seconds)
        trainer = FakeTrainer(random_weights(self.task, seed=epoch) if weights is None else weights, measured)
        saved = self.checkpointer.save_epoch(epoch, trainer.state, PartialEpoch())
        validated = Measured(sums=validation, seconds=validation_seconds)
        is_complete = self.session.record_epoch(epoch, trainer, validated, saved=saved)
        trainer.epoch = epoch
        self.checkpointer.epoch_is_recorded(trainer)
        return not is_complete

    def finish(
        self,
        test=Sums(8.0, 15, 20),  # noqa: B008 - frozen
        *,
        seconds=0.5,
        sharing=None,
    ):
        """End the run with its test."""
        trainer = FakeTrainer(random_weights(self.task, seed=99))
        self.session.finish(trainer, Measured(sums=test, seconds=seconds), sharing, peak_memory_bytes=None)

    def end(self, state):
        """End the run early."""
        self.session.recorder.end(state, message="by the test")


def play(config, script, *, size=1, device=None, gpu=None, onednn=None):
    """Start a session on every rank and run the script of a trainer with it; return what the ranks returned."""

    def work(comm):
        of_rank = {"device": device or f"cpu {comm.rank}", "gpu": gpu, "onednn": onednn[comm.rank] if onednn else True}
        return script(Played(config, comm, **of_rank))

    return [work(alone())] if size == 1 else run_ranks(size, work)
