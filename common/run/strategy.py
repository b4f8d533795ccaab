"""What a strategy of either framework has to do for a run (`torch_impl/strategies`, `keras_impl/strategies`)."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import islice
from typing import Any

from common.data.batches import Draw
from common.distributed.communicator import Communicator
from common.measurement.metrics import Sums
from common.measurement.step_profile import Profiler
from common.model.weights import Weights
from common.run_folder.checkpoints import PartialEpoch
from common.run_folder.sharing import SharingRecord
from common.task.rank_batches import MOST_UPDATES, RankBatches
from common.task.task import Task


class RankStrategy(ABC):
    """The training of one rank: its model, its optimizer, and what it exchanges with other ranks.

    Made before the model. In each framework, `Strategy` is one process alone; the others override what they do
    otherwise.

    Attributes:
        draw: which items this rank computes of a segment of the run; None: its part of each update.
        most_updates: in a stack.
        profiler: the clock of the parts of a step, where they are timed.
        share: what this rank takes of each update; with several replicas, the first of theirs.
        spec: this rank's part of the model.
        meter: counts updates, and what this rank exchanges in them.
        epoch: that `start_epoch` was called for last.
    """

    draw: Draw | None = None
    most_updates = MOST_UPDATES
    profiler: Profiler | None = None
    meter: Any

    def __init__(self, task: Task, *, comm: Communicator) -> None:
        self.task, self.comm = task, comm
        self.share = task.shares[comm.data_rank * comm.replicas]
        self.spec = task.partition.parts[comm.part]
        self.epoch = 0

    @abstractmethod
    def updates_made(self) -> int:
        """Return the updates made since `start_epoch`, also within a stack that fails."""

    @abstractmethod
    def load(self, weights: Weights, optimizer: Weights | None = None) -> None:
        """Load what `weights` and `optimizer_state` returned; without the latter the optimizer stays as it is."""

    @abstractmethod
    def weights(self) -> Weights:
        """Return the weights and BatchNorm statistics under the names of the weights file; copies, on the host."""

    @abstractmethod
    def optimizer_state(self) -> Weights:
        """Return "<parameter>.<slot>" -> array in the layout of the weights file, counts, and the loss scale if any."""

    def kept(self) -> dict[str, Any]:
        """Return what this rank keeps from update to update besides weights and optimizer, by names of its own.

        These tensors or variables, which updates change in place, are in checkpoints, and undone after a rehearsal.
        """
        return {}

    @abstractmethod
    def kept_arrays(self) -> Weights:
        """Return copies of `kept`, on the host."""

    def own_state(self, step: int) -> PartialEpoch:
        """Return what this rank alone has after an update of the run: `kept`, and what differs between ranks."""
        return PartialEpoch(
            state=self.kept_arrays(),
            weights=self.weights() if self.task.averaging.weights_differ_after(step) else {},
            optimizer_state=self.optimizer_state() if self.task.averaging.optimizers_differ_after(step) else {},
        )

    @abstractmethod
    def broadcast(self, *, from_checkpoint: bool) -> None:
        """Give all ranks the weights and the optimizer state of rank 0, unless each has read them."""

    @abstractmethod
    def rehearse(self, batches: Any, epoch: int) -> None:
        """Train on the first batch of an epoch and undo it; all ranks call this, before an update is timed.

        Graphs are built, kernels are chosen, Horovod agrees on tensors: no time of training contains what is done once.

        Raises:
            UserError: with `--compile`, it cannot be compiled; on all ranks.
        """

    def rehearsals(self) -> Iterator[None]:
        """Yield for each update to be rehearsed, then undo what these changed of this strategy."""
        with self.meter.undone():
            yield

    def rehearse_evaluation(self, batches: RankBatches) -> None:
        """Evaluate a batch of each part, before an evaluation is timed."""
        self.evaluate(islice(batches.evaluation("validation"), 1))
        self.evaluate(islice(batches.evaluation("test"), 1))

    @abstractmethod
    def start_epoch(self, epoch: int, own: PartialEpoch) -> None:
        """Prepare an epoch, of which some may be done: sums, dropout masks, BatchNorm, what is this rank's own."""

    @abstractmethod
    def step(self, images: Any, labels: Any) -> None:
        """Make the updates of a stack."""

    @abstractmethod
    def end_epoch(self) -> PartialEpoch:
        """Give all ranks the same weights, for evaluation and record.

        Returns:
            What this rank alone starts the next epoch with.
        """

    @abstractmethod
    def rank_state(self) -> Weights:
        """Return sums and generators of this rank inside an epoch, and what it keeps."""

    @abstractmethod
    def sums(self, samples: int) -> Sums:
        """Return the sums of this rank over so many samples of the epoch, as the weights were at each update."""

    @abstractmethod
    def evaluate(self, batches: Iterator[Any]) -> Sums:
        """Return the sums of this rank over the batches, in inference mode."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until the device has done all its work, before a clock is read."""

    @abstractmethod
    def exchanged(self) -> SharingRecord | None:
        """Return what this rank exchanged in its updates; None: nothing that can be told."""
