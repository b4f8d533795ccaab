"""One setup, ready to be trained: what both frameworks are given, and every setting checked against the data."""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np

from common.config import Config
from common.data.batches import Draw, normalization_table
from common.data.loading import Dataset, Split, load_dataset
from common.data.sharding import dropped_samples, epoch_order, share_out, split_validation, steps_per_epoch
from common.distributed.averaging import AveragingPlan
from common.distributed.console import counted
from common.errors import UserError, expanded
from common.measurement.step_profile import LEFT_OUT_STEPS
from common.model.layers import BatchNorm
from common.model.partition import Partition
from common.model.specs import ModelSpec, model_spec
from common.model.weights import Weights, draw_initial_weights, load_weights
from common.pipeline.forecast import forecast_bytes, partition_of
from common.run_folder.checkpoints import Checkpoint
from common.run_folder.records import WEIGHTS_FILE
from common.run_folder.sharing import MeasuredGroups, with_measured
from common.run_folder.tensorboard_events import require_tensorboard
from common.training.schedule import learning_rates


@dataclass(frozen=True)
class RunSetup:
    """The samples, the model and the steps of a run.

    Attributes:
        batch_sizes: images of each rank in an update, in the order of ranks.
        table: (values, channels) of the model's dtype, the float of every pixel value.
        training_indices, validation_indices: sorted rows of `dataset.train`, disjoint.
        steps_per_epoch: updates of an epoch; the incomplete last global batch is dropped.
        total_steps: updates of the whole run, limited by `--max-steps`.
        first_size: data ranks that the run was first started with, where others have taken their place (`--elastic`).
        groups: what was measured for `--gradient-groups auto`; None: other settings, or not yet.
    """

    config: Config
    batch_sizes: tuple[int, ...]
    dataset: Dataset
    spec: ModelSpec
    table: np.ndarray
    training_indices: np.ndarray
    validation_indices: np.ndarray
    steps_per_epoch: int
    total_steps: int
    first_size: int | None = None
    groups: MeasuredGroups | None = None

    @property
    def measured_config(self) -> Config:
        """The settings with what was measured in place of `--gradient-groups auto`."""
        return with_measured(self.config, self.groups)

    @property
    def size(self) -> int:
        """Number of data ranks, which share a global batch: the ranks that train, or the replicas of one."""
        return len(self.batch_sizes) * (self.config.strategy.replicas or 1)

    @property
    def processes(self) -> int:
        """Number of processes: the ranks of all copies of the model, and the servers."""
        return len(self.batch_sizes) * self.config.parts.count + (self.config.strategy.servers or 0)

    @cached_property
    def partition(self) -> Partition:
        """The parts of the model that the ranks of a copy hold: all of it, but for `layers` and `split`.

        Raises:
            UserError: the model cannot be divided in this way.
        """
        return partition_of(self.spec, self.config)

    @property
    def forecast_bytes(self) -> list[int]:
        """The memory that training takes of each rank of a copy of the model, the framework's own not included."""
        return forecast_bytes(self.partition, self.config, images=max(self.batch_sizes) // self.passes)

    @property
    def passes(self) -> int:
        """Backward passes of an update, each with an equal part of a rank's images."""
        return self.config.device.backward_passes_per_step

    @property
    def global_batch_size(self) -> int:
        """Images of one update, over all ranks."""
        return sum(self.batch_sizes)

    @property
    def dropped_samples(self) -> int:
        """Training samples that an epoch does not use; each epoch drops other ones, as the order changes."""
        return len(self.training_indices) - self.steps_per_epoch * self.global_batch_size

    @property
    def epochs(self) -> int:
        """Epochs of the run; `--max-steps` may cut the last one short."""
        return -(-self.total_steps // self.steps_per_epoch)

    def batch_sizes_of(self, ranks: int) -> tuple[int, ...]:
        """Return the images of each of so many ranks in an update of this run, in equal parts (`--elastic`)."""
        return shared_batch(self.config, parts=(1.0,) * ranks, first_size=self.first_size or self.size)

    def weight_of(self, rank: int) -> float:
        """Return the images of a rank relative to their mean over ranks: 1 where all have as many.

        The mean over ranks of (weight x mean over the rank's images) is the mean over all images of an update.
        """
        return self.batch_sizes[rank] * len(self.batch_sizes) / self.global_batch_size

    def loss_weight(self, rank: int) -> float:
        """Return the factor of a rank's mean loss with which the gradients of the ranks average to the global batch's.

        The gradients of the passes of an update are added up. With `averaging` a rank learns from its own mean, and
        `weight_of` is for the average of weights.
        """
        of_rank = 1.0 if self.config.strategy.strategy == "averaging" else self.weight_of(rank)
        return of_rank / self.passes

    def steps_of_epoch(self, epoch: int) -> int:
        """Return the updates of an epoch, counted from 1."""
        return min(self.steps_per_epoch, self.total_steps - (epoch - 1) * self.steps_per_epoch)

    def steps_after(self, epoch: int) -> int:
        """Return the updates of the run up to the end of an epoch, counted from 1."""
        return min(epoch * self.steps_per_epoch, self.total_steps)

    def drawn_items(self, draw: Draw, epoch: int, *, first_step: int, steps: int) -> Iterator[int]:
        """Yield what a rank draws of some steps of an epoch, an item of the epoch for each batch."""
        before, first = self.steps_after(epoch - 1) * self.size, first_step * self.size
        for item in draw(before + first, before + first + steps * self.size):
            yield item - before

    def scaled_learning_rates(self) -> np.ndarray:
        """Return (total_steps,) float64: the learning rate of every update, scaled for the ranks and their passes."""
        config = self.config
        planned = config.training.epochs * self.steps_per_epoch
        return learning_rates(
            config.schedule,
            base=config.optimizer.learning_rate,
            size=(self.first_size or self.size) * self.passes,
            steps=planned,
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
        return AveragingPlan(self.config.strategy, self.size, self.steps_per_epoch)

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
        """Hash, in hex, of the samples of the first epoch in their order, the same for every number of ranks."""
        order = epoch_order(len(self.training_indices), seed=self.config.training.seed, epoch=1)
        return hashlib.blake2b(self.training_indices[order].astype("<i8").tobytes(), digest_size=16).hexdigest()


def prepare_run(config: Config, *, size: int, first_size: int | None = None) -> RunSetup:
    """Fetch the data if needed and check every setting against it.

    Args:
        size: number of ranks.
        first_size: that the run was first started with, whose global batch and learning rates it keeps (`--elastic`).

    Raises:
        UserError: settings or data do not fit together.
    """
    if config.record.tensorboard:
        require_tensorboard()
    if config.record.horovod_timeline and size == 1:
        raise UserError(
            "a timeline shows what ranks exchange, and there is only one rank. Received: --horovod-timeline. "
            "Start two ranks or more, or leave it out"
        )
    config.check_ranks(size + (config.strategy.servers or 0))
    copies = size // config.parts.count
    dataset = load_dataset(
        config.data.dataset,
        source_folder=Path(config.data.data_folder) if config.data.data_folder else None,
        image_size=config.data.image_size,
        gray=config.data.gray,
    )
    height, width, channels = dataset.image_shape
    spec = model_spec(config.model.model, input_shape=(channels, height, width), outputs=_outputs(config, dataset))
    batch_sizes = _batch_sizes(config, size=copies, first_size=first_size)
    check_batch_norm(spec, config, batch_sizes=batch_sizes)
    training, validation = _split_training(config, dataset)
    steps = _steps(config, samples=len(training), batch_sizes=batch_sizes)
    total = config.training.epochs * steps
    if config.training.max_steps is not None:
        total = min(total, config.training.max_steps)
    if config.record.profile and total <= LEFT_OUT_STEPS:
        raise UserError(
            f"a profile skips the first {LEFT_OUT_STEPS} updates. Received: --profile and {total} updates. "
            "Train for more updates"
        )
    warmup = config.strategy.warmup_allreduce
    if warmup >= max(total, 1):
        raise UserError(
            f"the warm-up is not shorter than the run, which has {total} updates. Received: --warmup-allreduce "
            f"{warmup}. Give fewer, or --strategy allreduce"
        )
    table = normalization_table(
        dataset,
        pixels=dataset.train.images.dtype,
        normalization=config.data.normalization,
        dtype=np.dtype(config.model.dtype),
    )
    setup = RunSetup(config, batch_sizes, dataset, spec, table, training, validation, steps, total, first_size)
    _ = setup.partition  # a model that cannot be divided is found now
    if config.training.start_weights is not None and config.record.resume is None:
        _ = setup.first_weights  # and a run of another model
    return setup


def _batch_sizes(config: Config, *, size: int, first_size: int | None) -> tuple[int, ...]:
    """Return the images of each rank in an update; equal numbers where their parts are yet to be measured."""
    of_replica = shared_batch(config, parts=config.balance.parts or (1.0,) * size, first_size=first_size)
    return tuple(images * (config.strategy.replicas or 1) for images in of_replica)


def shared_batch(config: Config, *, parts: Sequence[float], first_size: int | None = None) -> tuple[int, ...]:
    """Return the images of each rank in an update, in proportion to `parts`; each backward pass has as many.

    Args:
        first_size: ranks whose global batch is shared; None: as many as there are parts.

    Raises:
        UserError: there are more ranks than images.
    """
    images = config.training.batch_size * (first_size or len(parts))
    if images < len(parts):
        raise UserError(
            f"every rank needs an image in each update. Received: {len(parts)} ranks for {images} images. "
            "Start fewer ranks, or give a larger --batch-size"
        )
    of_pass = share_out(images, parts=parts)
    return tuple(images * config.device.backward_passes_per_step for images in of_pass)


def _split_training(config: Config, dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Return sorted rows of `dataset.train` for training and for validation: the data set's own split, or one cut."""
    samples, share = len(dataset.train), config.data.validation_share
    if dataset.validation_samples is None:
        training, validation = split_validation(samples, share=share, seed=config.training.seed)
    elif share > 0:
        raise UserError(
            f"the data set has its own validation split ({dataset.validation_samples} samples). Received: "
            f"--validation-share {share}. Leave it out"
        )
    else:
        training, validation = np.split(np.arange(samples), [samples - dataset.validation_samples])
    for flag, value in (
        ("--early-stop", config.training.early_stop),
        ("--target-accuracy", config.training.target_accuracy),
    ):
        if value is not None and not len(validation):
            raise UserError(
                f"{flag} needs validation samples. Received: {flag} {value} --validation-share {share}. "
                "Give --validation-share, such as 0.1"
            )
    return training, validation


def _outputs(config: Config, dataset: Dataset) -> int:
    outputs = config.model.outputs or dataset.class_count
    if outputs < dataset.class_count:
        raise UserError(
            f"the model has fewer outputs than {dataset.name} has classes ({dataset.class_count}). "
            f"Received: --outputs {outputs}. Leave --outputs out or give {dataset.class_count} or more"
        )
    return outputs


def check_batch_norm(spec: ModelSpec, config: Config, *, batch_sizes: Sequence[int]) -> None:
    """Raise UserError if a BatchNorm layer sees a single value per channel in a pass of some rank."""
    microbatches = config.parts.microbatches if config.parts.stages else 1
    passes = config.device.backward_passes_per_step * microbatches
    batch_size = min(batch_sizes) // (passes * (config.strategy.replicas or 1))
    for row in spec.rows:
        if isinstance(row.layer, BatchNorm) and batch_size * math.prod(row.output_shape[1:]) == 1:
            raise UserError(
                f"{spec.name} normalizes over the batch, and its layer {row.layer.name} sees only one value per channel"
                f". Received: a batch of {counted(batch_size, 'image')} on a rank. Give 2 or more, or larger images"
            )


def _steps(config: Config, *, samples: int, batch_sizes: Sequence[int]) -> int:
    size, passes = len(batch_sizes) * (config.strategy.replicas or 1), config.device.backward_passes_per_step
    batch_size = config.training.batch_size
    steps = steps_per_epoch(samples, batch_sizes=batch_sizes)
    if steps == 0:
        raise UserError(
            f"the batch is larger than each rank's shard ({samples // size} of {samples} training samples on {size} "
            f"ranks). Received: --batch-size {batch_size}. Give {max(1, samples // (size * passes))} or less"
        )
    wanted = config.training.steps_per_epoch
    if wanted is not None and wanted > steps:
        raise UserError(
            f"an epoch has {steps} complete global batches of {sum(batch_sizes)} images. "
            f"Received: --steps-per-epoch {wanted}. Give {steps} or less"
        )
    assert steps * sum(batch_sizes) + dropped_samples(samples, batch_sizes=batch_sizes) == samples
    return wanted or steps
