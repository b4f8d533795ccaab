"""Batches of `common.data.batches` as a `tf.data.Dataset`."""

from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from common.data.batches import evaluation_batches, training_batches
from common.data.loading import Split
from common.data.sharding import evaluation_range
from common.distributed.communicator import Communicator
from common.training.run_setup import RunSetup

Batches = Iterator[tuple[np.ndarray, np.ndarray]]

PREFETCH_BATCHES = 4  # made ahead by a thread of TensorFlow


def training_data(setup: RunSetup, *, epoch: int, comm: Communicator, first_step: int = 0) -> tf.data.Dataset:
    """Return the batches of one epoch of this rank: images (batch, height, width, channels), labels (batch,) int64.

    Those of the steps before `first_step` are left out.
    """
    steps, batch_size = setup.steps_of_epoch(epoch), setup.config.training.batch_size

    def batches() -> Batches:
        return training_batches(
            setup.dataset.train,
            setup.training_indices,
            seed=setup.config.training.seed,
            epoch=epoch,
            batch_size=batch_size,
            rank=comm.rank,
            size=comm.size,
            table=setup.table,
            steps=steps,
            first_step=first_step,
        )

    return _dataset(setup, batches, batch_size=batch_size, steps=steps - first_step)


def evaluation_data(setup: RunSetup, split: Split, indices: np.ndarray, *, rank: int, size: int) -> tf.data.Dataset:
    """Return this rank's part of some samples, each sample once over all ranks."""

    def batches() -> Batches:
        return evaluation_batches(
            split,
            indices,
            batch_size=setup.config.training.eval_batch_size,
            rank=rank,
            size=size,
            table=setup.table,
        )

    eval_batch_size = setup.config.training.eval_batch_size
    steps = -(-len(evaluation_range(len(indices), rank=rank, size=size)) // eval_batch_size)
    return _dataset(setup, batches, batch_size=None, steps=steps)


def _dataset(setup: RunSetup, batches: Callable[[], Batches], *, batch_size: int | None, steps: int) -> tf.data.Dataset:
    """Return a dataset that asks `batches` for the next batch at each step, and anew for each time it is gone through.

    A map over step numbers costs two thirds of `Dataset.from_generator` for a batch and half for an epoch. It is no
    pure function, which tf.data sees, and so calls it in order.
    """
    under_way: list[Batches] = []

    def batch_of_step(step: int) -> tuple[np.ndarray, np.ndarray]:
        if step == 0:
            under_way[:] = [batches()]
        return next(under_way[0])

    def tensors_of_step(step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        images, labels = tf.numpy_function(batch_of_step, [step], (setup.table.dtype, tf.int64))
        shape = (batch_size, *setup.dataset.image_shape)
        return tf.ensure_shape(images, shape), tf.ensure_shape(labels, (batch_size,))

    # There is nothing to tune here, and the thread that tunes sleeps 10, 20, 40 ... ms and holds up the end of an epoch
    # until it wakes: epochs took 1.28, 2.56, 5.12 or 10.24 seconds and nothing between.
    options = tf.data.Options()
    options.autotune.enabled = False
    return tf.data.Dataset.range(steps).map(tensors_of_step).prefetch(PREFETCH_BATCHES).with_options(options)
