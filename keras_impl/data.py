"""Batches of `common.batches` as a `tf.data.Dataset`."""

from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from common.batches import evaluation_batches, training_batches
from common.datasets import Split
from common.experiment import Experiment
from common.ranks import Ranks
from common.sharding import evaluation_range

Batches = Iterator[tuple[np.ndarray, np.ndarray]]


def training_data(experiment: Experiment, *, epoch: int, ranks: Ranks) -> tf.data.Dataset:
    """Return the batches of one epoch of this rank: images (batch, height, width, channels), labels (batch,) int64."""
    steps, batch_size = experiment.steps_of_epoch(epoch), experiment.config.training.batch_size

    def batches() -> Batches:
        return training_batches(
            experiment.dataset.train,
            experiment.training_indices,
            seed=experiment.config.training.seed,
            epoch=epoch,
            batch_size=batch_size,
            rank=ranks.rank,
            size=ranks.size,
            table=experiment.table,
            steps=steps,
        )

    return _dataset(experiment, batches, batch_size=batch_size, steps=steps)


def evaluation_data(
    experiment: Experiment, split: Split, indices: np.ndarray, *, rank: int, size: int
) -> tf.data.Dataset:
    """Return this rank's part of some samples, each sample once over all ranks."""

    def batches() -> Batches:
        return evaluation_batches(
            split,
            indices,
            batch_size=experiment.config.training.eval_batch_size,
            rank=rank,
            size=size,
            table=experiment.table,
        )

    eval_batch_size = experiment.config.training.eval_batch_size
    steps = -(-len(evaluation_range(len(indices), rank=rank, size=size)) // eval_batch_size)
    return _dataset(experiment, batches, batch_size=None, steps=steps)


def _dataset(
    experiment: Experiment, batches: Callable[[], Batches], *, batch_size: int | None, steps: int
) -> tf.data.Dataset:
    signature = (
        tf.TensorSpec((batch_size, *experiment.dataset.image_shape), experiment.table.dtype),
        tf.TensorSpec((batch_size,), tf.int64),
    )
    dataset = tf.data.Dataset.from_generator(batches, output_signature=signature)
    return dataset.apply(tf.data.experimental.assert_cardinality(steps)).prefetch(4)
