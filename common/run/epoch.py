"""An epoch on one rank: between two stacks of batches it counts, and stands still where a listener needs that."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from common.data.batches import Stacks
from common.measurement.timing import Phases, Timer, timed
from common.run.measured import Measured
from common.run.strategy import RankStrategy
from common.run_folder.checkpoints import PartialEpoch
from common.task.rank_batches import RankBatches, Stack
from common.task.task import Task


class Listener:
    """Hears of a run, on every rank. What exchanges messages is called on all ranks in the same order."""

    def training_starts(self) -> None:
        """Start-up is about to end, and training to start."""

    def epoch_starts(self, epoch: "Epoch") -> None:
        """An epoch begins, or goes on."""

    def most_updates(self, epoch: "Epoch", left: int) -> int:
        """Return after how many more updates, at most `left`, the run is to stand still for this listener."""
        return left

    def updated(self, updates: int) -> None:
        """Updates were made. To be cheap: the clock runs."""

    def paused(self, epoch: "Epoch") -> None:
        """The run stands still inside an epoch, or at its end before anything is averaged or evaluated."""

    def epoch_recorded(self, epoch: "Epoch") -> None:
        """An epoch is over and in the record."""

    def training_ended(self) -> None:
        """The last epoch is over."""


class Epoch:
    """One epoch.

    Args:
        number: from 1.
        own: what was done of it before, and what is this rank's own.
        updates: of the epoch; None: as many as the task says.

    Attributes:
        done: updates that are done, of all ranks.
        taken: batches that this rank has computed: one per update, unless it draws them.
        seconds: of training on this rank.
        listeners: who hears of it.
    """

    def __init__(
        self,
        number: int,
        *,
        task: Task,
        strategy: RankStrategy,
        phases: Phases,
        listeners: Sequence[Listener] = (),
        own: PartialEpoch | None = None,
        updates: int | None = None,
    ) -> None:
        own = own or PartialEpoch()
        self.number, self.task, self.strategy = number, task, strategy
        self.updates = task.steps_of_epoch(number) if updates is None else updates
        self.done, self._first = own.steps, own.steps
        self.taken = own.steps if own.own_steps is None else own.own_steps
        self.seconds = own.training_seconds
        self._waiting = Timer(own.data_wait_seconds)
        self._phases, self.listeners = phases, listeners
        strategy.start_epoch(number, own)

    @property
    def steps_left(self) -> int:
        """Updates that remain."""
        return self.updates - self.done

    @property
    def step(self) -> int:
        """Updates of the run that are done."""
        return self.task.steps_after(self.number - 1) + self.done

    @property
    def updates_made(self) -> int:
        """Updates of the run that this rank has made, also within a stack that failed."""
        return self.task.steps_after(self.number - 1) + self._first + self.strategy.updates_made()

    def take(self, batches: RankBatches) -> Iterator[Stack]:
        """Yield the stacks that are left; whoever takes one has trained on it when asking for the next.

        The clock stands while listeners act. No context manager holds it: an error of the loop leaves a generator where
        it is, whose `finally` would run at some later time.
        """
        strategy, stacks = self.strategy, self._stacks(batches)
        while self.done < self.updates:
            stretch = self.steps_left
            for listener in self.listeners:
                stretch = listener.most_updates(self, stretch)
            first, drawn = self.done, self._drawn(batches, stretch)
            taken = stacks.take(stretch) if drawn is None else drawn
            self._phases.begin("training", synchronize=strategy.synchronize)
            for images, labels in strategy.profiler.steps(taken) if strategy.profiler else taken:
                yield images, labels
                self.taken += len(labels)
                if drawn is None:
                    self.done += len(labels)
                for listener in self.listeners:
                    listener.updated(len(labels))
            strategy.synchronize()
            self.seconds += self._phases.end()
            self.done = first + stretch  # a rank that draws its batches has its own number
            for listener in self.listeners:
                listener.paused(self)

    def _stacks(self, batches: RankBatches) -> Stacks:
        most = min(self.strategy.most_updates, self.steps_left)
        return Stacks(timed(batches.training(self.number, first_step=self.done, most=most), self._waiting))

    def _drawn(self, batches: RankBatches, updates: int) -> Iterator[Stack] | None:
        draw = self.strategy.draw
        if draw is None:
            return None
        items = self.task.drawn_items(draw, self.number, first_step=self.done, steps=updates)
        return timed(batches.drawn(self.number, items), self._waiting)

    def measured(self, batches: RankBatches) -> Measured:
        """Return the sums of this rank over the epoch so far, and its time.

        On a CPU waiting for data includes making the batches, as no thread makes them ahead.
        """
        sums = self.strategy.sums(self.taken * batches.samples)
        return Measured(sums=sums, seconds=self.seconds, data_wait_seconds=self._waiting.seconds)

    def partial(self, own: PartialEpoch) -> PartialEpoch:
        """Return what this rank has of the epoch so far, with those of its own weights and optimizer state."""
        return replace(
            own,
            steps=self.done,
            own_steps=self.taken if self.strategy.draw else None,
            training_seconds=self.seconds,
            data_wait_seconds=self._waiting.seconds,
            state=self.strategy.rank_state(),
        )


@dataclass(frozen=True)
class Trial:
    """Training of which nothing is recorded."""

    task: Task
    strategy: RankStrategy
    batches: RankBatches

    def train(self, updates: int, *, number: int = 1, own: PartialEpoch | None = None) -> Measured:
        """Train on the first batches of an epoch, as many as it has at most; return what this rank measured."""
        updates = min(updates, self.task.steps_of_epoch(number))
        epoch = Epoch(number, task=self.task, strategy=self.strategy, phases=Phases(), own=own, updates=updates)
        for images, labels in epoch.take(self.batches):
            self.strategy.step(images, labels)
        return epoch.measured(self.batches)
