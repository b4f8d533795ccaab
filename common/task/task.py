"""The run as numbers: samples and their order, the model, learning rates, what each copy takes of an update."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from common.config import Config
from common.data.batches import Draw
from common.data.loading import Dataset, Split
from common.data.sharding import epoch_order
from common.distributed.averaging import AveragingPlan
from common.errors import expanded
from common.model.partition import Partition
from common.model.specs import ModelSpec
from common.model.weights import Weights, draw_initial_weights, load_weights
from common.pipeline.forecast import forecast_bytes, partition_of
from common.run_folder.checkpoints import Checkpoint
from common.run_folder.records import WEIGHTS_FILE
from common.run_folder.sharing import MeasuredGroups, with_measured
from common.task.schedule import learning_rates
from common.task.shares import Share, check_batch_norm, divided, shares_of


@dataclass(frozen=True)
class Task:
    """The samples, the model and the updates of a run.

    Attributes:
        shares: of each copy of the model, in their order. A data rank has one copy, or, with `--native mirrored`,
            one for each of its replicas.
        table: (values, channels) of the model's dtype, the float of every pixel value.
        training_indices, validation_indices: sorted rows of `dataset.train`, disjoint.
        steps_per_epoch: updates of an epoch; the incomplete last global batch is dropped.
        total_steps: updates of the whole run, limited by `--max-steps`.
        first_copies: copies that the run was first started with, where others have taken their place (`--elastic`).
        groups: what was measured for `--gradient-groups auto`; None: other settings, or not yet.
    """

    config: Config
    shares: tuple[Share, ...]
    dataset: Dataset
    spec: ModelSpec
    table: np.ndarray
    training_indices: np.ndarray
    validation_indices: np.ndarray
    steps_per_epoch: int
    total_steps: int
    first_copies: int
    groups: MeasuredGroups | None = None

    @property
    def measured_config(self) -> Config:
        """The settings with what was measured in place of `--gradient-groups auto`."""
        return with_measured(self.config, self.groups)

    @property
    def copies(self) -> int:
        """Copies of the model, which share every update."""
        return len(self.shares)

    @property
    def processes(self) -> int:
        """Number of processes: the ranks of all copies of the model, and the servers."""
        replicas, servers = self.config.strategy.replicas or 1, self.config.strategy.servers or 0
        return self.copies // replicas * self.config.parts.count + servers

    @property
    def samples_of_ranks(self) -> tuple[int, ...]:
        """Samples of each data rank in an update."""
        replicas = self.config.strategy.replicas or 1
        samples = [share.samples for share in self.shares]
        return tuple(sum(samples[first : first + replicas]) for first in range(0, self.copies, replicas))

    @property
    def samples_per_update(self) -> int:
        """Samples of one update, over all copies."""
        return sum(share.samples for share in self.shares)

    @cached_property
    def partition(self) -> Partition:
        """The parts of the model that the ranks of a copy hold: all of it, but for `layers` and `split`.

        Raises:
            UserError: the model cannot be divided in this way.
        """
        return partition_of(self.spec, self.config.parts)

    @property
    def forecast_bytes(self) -> list[int]:
        """The memory that training takes of each rank of a copy of the model, the framework's own not included."""
        images = max(self.samples_of_ranks) // self.config.device.backward_passes_per_step
        return forecast_bytes(self.partition, self.config, images=images)

    @property
    def dropped_samples(self) -> int:
        """Training samples that an epoch does not use; each epoch drops other ones, as the order changes."""
        return len(self.training_indices) - self.steps_per_epoch * self.samples_per_update

    @property
    def epochs(self) -> int:
        """Epochs of the run; `--max-steps` may cut the last one short."""
        return -(-self.total_steps // self.steps_per_epoch)

    def shared_by(self, copies: int) -> tuple[Share, ...]:
        """Return the shares of another number of copies, which share an update of this run equally (`--elastic`)."""
        samples = divided(self.config, parts=(1.0,) * copies, first_copies=self.first_copies)
        return shares_of(self.config, samples)

    def with_samples(self, samples: Sequence[int]) -> "Task":
        """Return the task whose copies take so many samples of each update.

        Raises:
            UserError: too few for BatchNorm.
        """
        task = replace(self, shares=shares_of(self.config, samples))
        check_batch_norm(task.spec, task.shares)
        return task

    def steps_of_epoch(self, epoch: int) -> int:
        """Return the updates of an epoch, counted from 1."""
        return min(self.steps_per_epoch, self.total_steps - (epoch - 1) * self.steps_per_epoch)

    def steps_after(self, epoch: int) -> int:
        """Return the updates of the run up to the end of an epoch, counted from 1."""
        return min(epoch * self.steps_per_epoch, self.total_steps)

    def order(self, epoch: int) -> np.ndarray:
        """Return (samples,) the rows of `dataset.train` in the order in which an epoch, counted from 1, uses them."""
        indices = self.training_indices
        return indices[epoch_order(len(indices), seed=self.config.training.seed, epoch=epoch)]

    def drawn_items(self, draw: Draw, epoch: int, *, first_step: int, steps: int) -> Iterator[int]:
        """Yield what a rank draws of some steps of an epoch, an item of the epoch for each batch."""
        before, first = self.steps_after(epoch - 1) * self.copies, first_step * self.copies
        for item in draw(before + first, before + first + steps * self.copies):
            yield item - before

    def scaled_learning_rates(self) -> np.ndarray:
        """Return (total_steps,) float64: the learning rate of every update, scaled for the copies and their passes."""
        config = self.config
        return learning_rates(
            config.schedule,
            base=config.optimizer.learning_rate,
            size=self.first_copies * config.device.backward_passes_per_step,
            steps=config.training.epochs * self.steps_per_epoch,
            steps_per_epoch=self.steps_per_epoch,
            first=self.total_steps,
        )

    def evaluation_samples(self, part: Literal["validation", "test"]) -> tuple[Split, np.ndarray]:
        """Return a split and the rows of it that are evaluated."""
        if part == "validation":
            return self.dataset.train, self.validation_indices
        return self.dataset.test, np.arange(len(self.dataset.test))

    def validates_after(self, epoch: int) -> bool:
        """Return whether an epoch, counted from 1, is followed by a validation."""
        return len(self.validation_indices) > 0 and epoch % self.config.training.validate_every == 0

    def freezes_batch_norm_in(self, epoch: int) -> bool:
        """Return whether BatchNorm is frozen in an epoch, counted from 1: after a validation, where asked for."""
        wanted = self.config.model.batch_norm == "frozen_after_validation"
        return wanted and any(self.validates_after(before) for before in range(1, epoch))

    @cached_property
    def averaging(self) -> AveragingPlan:
        """When weights are averaged over ranks."""
        return AveragingPlan(self.config.strategy, self.copies, self.steps_per_epoch)

    @property
    def first_weights(self) -> Weights:
        """The first weights of the run: drawn from the seed, or those that another run has ended with."""
        return dict(self.first_arrays())

    def first_arrays(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield names and arrays of the first weights, drawn one by one: the others need no memory."""
        source = self.config.training.start_weights
        if source is not None:
            weights = load_weights(expanded(source) / WEIGHTS_FILE, spec=self.spec)
            yield from ((name, array.astype(self.config.model.dtype)) for name, array in weights.items())
            return
        for weight in self.spec.weights:
            yield from self._drawn_weights([weight.name]).items()

    def starting_arrays(self, checkpoint: Checkpoint | None, *, part: int) -> tuple[Weights, Weights]:
        """Return the weights and the optimizer state that a part of the model starts or goes on with."""
        if checkpoint:
            return self.partition.cut(checkpoint.weights, part), self.partition.cut(checkpoint.optimizer_state, part)
        if self.config.training.start_weights is not None:
            return self.partition.cut(self.first_weights, part), {}
        weights: Weights = {}
        for weight in self.partition.parts[part].weights:  # one by one: the others need no memory
            weights |= self.partition.cut(self._drawn_weights([weight.name]), part)
        return weights, {}

    def _drawn_weights(self, names: Sequence[str]) -> Weights:
        return draw_initial_weights(
            self.spec, seed=self.config.training.seed, dtype=self.config.model.dtype, names=names
        )

    @property
    def sample_order_hash(self) -> str:
        """Hash, in hex, of the samples of the first epoch in their order, the same for every number of copies."""
        return hashlib.blake2b(self.order(1).astype("<i8").tobytes(), digest_size=16).hexdigest()
