"""Runs on pretended ranks, with a strategy that trains nothing, without any framework."""

import numpy as np
from builders import make_task, random_weights
from fake_ranks import alone, run_ranks

from common.distributed.console import Console
from common.measurement.metrics import Sums
from common.run.elastic import Hooks
from common.run.measured import Measured
from common.run.run import Run
from common.run.world import RankDevice
from common.run_folder.checkpoints import PartialEpoch


class LostRankError(Exception):
    """Another rank has ended, as Horovod would say."""


# The part of Horovod in runs without it.
HOOKS = Hooks(
    horovod=None, rejoin=lambda settings: alone(), is_lost_rank=lambda error: isinstance(error, LostRankError)
)


class FakeStrategy:
    """Weights without a model, and sums without training."""

    draw = profiler = None
    most_updates = 1000

    def updates_made(self):
        return 0

    def __init__(self, weights, *, state=None):
        self.own_weights, self.measured, self.exchanges, self.state = weights, Sums(), None, state or {}

    def load(self, weights, optimizer=None):
        """Take nothing."""

    def weights(self):
        return self.own_weights

    def optimizer_state(self):
        return {}

    def own_state(self, step):
        """Return nothing: other ranks have the same."""
        return PartialEpoch()

    def rank_state(self):
        return self.state

    def broadcast(self, *, from_checkpoint):
        """Send nothing."""

    def rehearse(self, batches, epoch):
        """Do nothing."""

    def rehearse_evaluation(self, batches):
        """Do nothing."""

    def start_epoch(self, epoch, own):
        """Do nothing."""

    def end_epoch(self):
        """Return nothing: other ranks have the same."""
        return PartialEpoch()

    def sums(self, samples):
        return self.measured

    def synchronize(self):
        """Do nothing."""

    def exchanged(self):
        return self.exchanges


class FakeBatches:
    """Batches without samples, all of an epoch in one stack."""

    samples = 0

    def __init__(self, task):
        self.task = task

    def training(self, epoch, *, first_step=0, most=1000):
        left = np.zeros(self.task.steps_of_epoch(epoch) - first_step)
        yield left, left


def device_of(name="cpu", *, gpu=None, onednn=True):
    return RankDevice(name=name, gpu=gpu, threads=1, onednn=onednn, peak_memory=lambda: None)


class PlayedRun(Run):
    """A run whose evaluations are given."""

    evaluated = Measured()

    def validate(self, epoch):
        return self.evaluated

    def evaluate(self, part):
        return self.evaluated


class Played:
    """A run of one rank that has started training, and the steps of `train.py` around its epochs."""

    def __init__(
        self, config, comm, *, framework="torch", device="cpu", gpu=None, onednn=True, elastic=None, strategy=None
    ):
        self.comm = comm
        self.run = PlayedRun(framework=framework, comm=comm, console=Console(comm, progress="lines"), elastic=elastic)
        self.task = make_task(config, size=comm.size, first_copies=self.run.first_copies(config))
        self.open(self.run, self.task, device=device, gpu=gpu, onednn=onednn)
        self.step, checkpoint = self.run.step, self.run.checkpoint
        self.done = checkpoint.epoch if checkpoint else 0
        self.batches = FakeBatches(self.task)
        self.strategy = strategy or FakeStrategy(random_weights(self.task, seed=98))
        self.run.restore(self.strategy, self.batches)
        self.epochs = self.run.epochs()
        self.epoch = next(self.epochs, None)

    @staticmethod
    def open(run, task, *, device="cpu", gpu=None, onednn=True):
        run.open(task, device_of(name=device, gpu=gpu, onednn=onednn))

    def train(self):
        """Train the epoch; return after how many updates each time the run stood still."""
        return [len(images) for images, _ in self.epoch.take(self.batches)]

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
        assert self.epoch.number == epoch
        self.strategy.own_weights = random_weights(self.task, seed=epoch) if weights is None else weights
        self.strategy.measured = training
        self.epoch.done, self.epoch.seconds, self.epoch._waiting.seconds = (
            self.epoch.updates,
            training_seconds,
            data_wait_seconds,
        )
        self.run.evaluated = Measured(sums=validation, seconds=validation_seconds)
        self.run.end_epoch(self.epoch)
        self.epoch = next(self.epochs, None)
        return self.epoch is not None

    def finish(
        self,
        test=Sums(8.0, 15, 20),  # noqa: B008 - frozen
        *,
        seconds=0.5,
        sharing=None,
    ):
        """End the run with its test."""
        self.strategy.own_weights = random_weights(self.task, seed=99)
        self.strategy.exchanges = sharing
        self.run.evaluated = Measured(sums=test, seconds=seconds)
        self.run.finish()

    def end(self, state):
        self.run.recorder.end(state, message="by the test")


def play(config, script, *, size=1, device=None, gpu=None, onednn=None):
    """Start a run on every rank and run the script of a trainer with it; return what the ranks returned."""

    def work(comm):
        of_rank = {"device": device or f"cpu {comm.rank}", "gpu": gpu, "onednn": onednn[comm.rank] if onednn else True}
        return script(Played(config, comm, **of_rank))

    return [work(alone())] if size == 1 else run_ranks(size, work)
