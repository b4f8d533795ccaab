"""What a run asks of a strategy of either framework (`torch_impl/strategies`, `keras_impl/strategies`)."""

from collections.abc import Iterable, Iterator
from typing import Any, Literal, Protocol

from common.data.batches import Draw
from common.measurement.metrics import Sums
from common.measurement.step_profile import Profiler
from common.model.weights import Weights
from common.run_folder.checkpoints import PartialEpoch
from common.run_folder.sharing import SharingRecord

Stack = tuple[Any, Any]  # images (updates, batch, ...), labels (updates, batch), as the framework takes them


class Batches(Protocol):
    """This rank's part of the samples; see `common.strategies.rank_batches`."""

    samples: int  # of this rank in each update

    def training(self, epoch: int, *, first_step: int = 0, most: int = ...) -> Iterator[Stack]:
        """Yield the batches of an epoch in stacks."""

    def drawn(self, epoch: int, items: Iterable[int]) -> Iterator[Stack]:
        """Yield the batches of items that this rank draws, each in a stack of its own."""

    def evaluation(self, part: Literal["validation", "test"]) -> Iterator[Any]:
        """Yield the batches of an evaluation."""


class Strategy(Protocol):
    """The training of one rank: its model, its optimizer, and what it exchanges with other ranks.

    Attributes:
        draw: which items this rank computes of a segment of the run; None: its part of each update.
        most_updates: in a stack.
        profiler: the clock of the parts of a step, where they are timed.
    """

    draw: Draw | None
    most_updates: int
    profiler: Profiler | None

    @property
    def updates(self) -> int:
        """Updates made since `start_epoch`, also within a stack that fails."""

    def load(self, weights: Weights, optimizer: Weights | None = None) -> None:
        """Load what `weights` and `optimizer_state` returned; without the latter the optimizer stays as it is."""

    def weights(self) -> Weights:
        """Return the weights, with this rank's BatchNorm statistics, under the names of the weights file."""

    def optimizer_state(self) -> Weights:
        """Return "<parameter>.<slot>" -> array."""

    def broadcast(self, *, from_checkpoint: bool) -> None:
        """Give all ranks the weights and the optimizer state of rank 0, unless each has read them."""

    def rehearse(self, batches: Any, epoch: int) -> None:
        """Train on the first batch of an epoch and undo it."""

    def rehearse_evaluation(self, batches: Any) -> None:
        """Evaluate a batch of each part."""

    def start_epoch(self, epoch: int, own: PartialEpoch) -> None:
        """Prepare an epoch, of which some may be done: sums, dropout masks, BatchNorm, what is this rank's own."""

    def step(self, images: Any, labels: Any) -> None:
        """Make the updates of a stack."""

    def end_epoch(self) -> PartialEpoch:
        """Give all ranks the same weights, for evaluation and record.

        Returns:
            What this rank alone starts the next epoch with.
        """

    def own_state(self, step: int) -> PartialEpoch:
        """Return weights and optimizer state of this rank after an update of the run, where other ranks have others."""

    def rank_state(self) -> Weights:
        """Return sums and generators of this rank inside an epoch."""

    def sums(self, samples: int) -> Sums:
        """Return the sums of this rank over the epoch so far, as the weights were at each update.

        Args:
            samples: that this rank has trained on.
        """

    def evaluate(self, batches: Iterator[Any]) -> Sums:
        """Return the sums of this rank over the batches, in inference mode."""

    def synchronize(self) -> None:
        """Wait until the device has done all its work, before a clock is read."""

    def exchanged(self) -> SharingRecord | None:
        """Return what this rank exchanged in its updates; None: nothing that can be told."""
