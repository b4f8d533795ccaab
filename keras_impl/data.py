"""Batches of `common.data.batches` as a `tf.data.Dataset`."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Literal

import numpy as np
import tensorflow as tf

from common.data.batches import evaluation_batches, training_batches
from common.data.sharding import evaluation_range
from common.distributed.communicator import Communicator
from common.run_folder.records import NotRecorded
from common.training.run_setup import RunSetup

NOT_PINNED = NotRecorded("not applicable: TensorFlow copies batches to the GPU in its own way")
PREFETCH_BATCHES = 4  # made ahead by a thread of TensorFlow, for a GPU

Arrays = Iterator[tuple[np.ndarray, np.ndarray]]


class ShardedData:
    """This rank's part of the samples.

    Args:
        device: of this rank; TensorFlow moves the batches there itself.

    Attributes:
        batch_size: images of this rank in each update.
    """

    def __init__(self, setup: RunSetup, *, comm: Communicator, device: str) -> None:
        self.setup = setup
        self.comm = comm
        self.device = device
        self.batch_size = setup.batch_sizes[comm.data_rank]

    def training(self, epoch: int, *, first_step: int = 0) -> tf.data.Dataset:
        """Return this rank's batches of an epoch: images (batch, height, width, channels), labels (batch,) int64.

        Args:
            epoch: its number, from 1; it decides on the order of the samples.
            first_step: the batches of the steps before it are skipped.
        """
        batches = partial(self._training, epoch, first_step=first_step)
        steps = self.setup.steps_of_epoch(epoch) - first_step
        return self._dataset(batches, batch_size=self.batch_size, steps=steps)

    def drawn(self, epoch: int, items: Iterable[int]) -> Arrays:
        """Yield the batches of items that this rank draws of an epoch, as `training` does, each when it is needed."""
        return self._training(epoch, items=items)

    def _training(self, epoch: int, *, first_step: int = 0, items: Iterable[int] | None = None) -> Arrays:
        return training_batches(
            self.setup.dataset.train,
            self.setup.training_indices,
            seed=self.setup.config.training.seed,
            epoch=epoch,
            rank=self.comm.data_rank,
            batch_sizes=self.setup.batch_sizes,
            table=self.setup.table,
            steps=self.setup.steps_of_epoch(epoch),
            first_step=first_step,
            items=items,
        )

    def evaluation(self, part: Literal["validation", "test"]) -> tf.data.Dataset:
        """Return this rank's batches of an evaluation, each sample once over all ranks, or on each if replicated."""
        config = self.setup.config.training
        split, indices = self.setup.evaluation_samples(part)
        is_replicated = part == "validation" and config.validation == "replicated"
        rank, sizes = (0, (1,)) if is_replicated else (self.comm.data_rank, self.setup.batch_sizes)

        def batches() -> Arrays:
            return evaluation_batches(
                split, indices, batch_size=config.eval_batch_size, rank=rank, batch_sizes=sizes, table=self.setup.table
            )

        samples = len(evaluation_range(len(indices), rank=rank, batch_sizes=sizes))
        return self._dataset(batches, batch_size=None, steps=-(-samples // config.eval_batch_size))

    def _dataset(self, batches: Callable[[], Arrays], *, batch_size: int | None, steps: int) -> tf.data.Dataset:
        """Return a dataset that takes the next of `batches` at each step, and starts over whenever it is iterated.

        A map over step numbers costs two thirds of `Dataset.from_generator` per batch and half per epoch. It is no
        pure function, which tf.data detects, and so calls it in order.
        """
        current: list[Arrays] = []

        def batch_of_step(step: int) -> tuple[np.ndarray, np.ndarray]:
            if step == 0:
                current[:] = [batches()]
            return next(current[0])

        def tensors_of_step(step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            images, labels = tf.numpy_function(batch_of_step, [step], (self.setup.table.dtype, tf.int64))
            shape = (batch_size, *self.setup.dataset.image_shape)
            return tf.ensure_shape(images, shape), tf.ensure_shape(labels, (batch_size,))

        # There is nothing to tune here, and the thread that tunes sleeps 10, 20, 40 ... ms and delays the end of an
        # epoch until it wakes: epochs took 1.28, 2.56, 5.12 or 10.24 seconds and nothing between.
        options = tf.data.Options()
        options.autotune.enabled = False
        dataset = tf.data.Dataset.range(steps).map(tensors_of_step).with_options(options)
        # On a CPU all cores compute already: a thread that makes batches ahead would only compete for them.
        return dataset if self.device == "cpu" else dataset.prefetch(PREFETCH_BATCHES)
