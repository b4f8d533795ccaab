"""`--topk`: only the largest gradients are averaged, and each rank adds the others to its next ones."""

from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from common.run_folder.sharing import SharingRecord
from common.strategies.sharing import kept_entries, sparse_record
from keras_impl.distributed import gather
from keras_impl.strategies.strategy import Strategy
from keras_impl.weights import trainable_maps


class TopK(Strategy):
    """Error feedback (Stich et al., arXiv 1809.07599); gradients are one vector, tensor by tensor as in the file."""

    def wrap(self, model: keras.Model, optimizer: keras.optimizers.Optimizer) -> None:
        """Take model and optimizer; nothing is left of gradients yet."""
        maps = trainable_maps(model, self.spec).values()
        self._sizes = [int(np.prod(one.variable.shape)) for one in maps]
        self._starts = np.cumsum([0, *self._sizes[:-1]]).tolist()
        # Of equal entries the first is sent, as in PyTorch, whose layout is that of the file.
        order = np.concatenate(
            [
                start + one.to_file(np.arange(size, dtype=np.int32).reshape(one.variable.shape)).ravel()
                for start, size, one in zip(self._starts, self._sizes, maps, strict=True)
            ]
        )
        self._to_file, self._from_file = tf.constant(order), tf.constant(np.argsort(order))
        self._residual = tf.Variable(tf.zeros(len(order), self.task.config.model.dtype), trainable=False)
        super().wrap(model, optimizer)

    def kept(self) -> dict[str, tf.Variable]:
        """Return what is left of gradients."""
        return {"residual": self._residual}

    def before_update(self, gradients: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        """Return averages of the largest entries of each gradient, which has this rank's weight in the mean already."""
        flat = tf.concat([tf.reshape(gradient, [-1]) for gradient in gradients], 0)
        total = self._residual + tf.gather(flat, self._to_file)
        parts = zip(self._starts, tf.split(total, self._sizes), strict=True)
        indices = tf.concat([start + self._largest(part) for start, part in parts], 0)
        values = tf.gather(total, indices)
        residual = tf.tensor_scatter_nd_update(total, indices[:, None], tf.zeros_like(values))
        self._residual.assign(residual)
        average = total - residual  # of one rank
        if self.comm.size > 1:
            average = self._average(values, indices)
        averages = tf.split(tf.gather(average, self._from_file), self._sizes)
        return [tf.reshape(part, one.shape) for part, one in zip(averages, gradients, strict=True)]

    def _average(self, values: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
        """Return the average of vectors of which each rank has only these entries: values, int32 indices."""
        own = {"sparse_values": values, "sparse_indices": indices}
        gathered = gather(own, config=self.task.config.device, meter=self.meter)
        average = tf.zeros(sum(self._sizes), values.dtype)
        # One after the other: the same sums on all ranks.
        for of_rank, places in zip(*(tf.split(entries, self.comm.size) for entries in gathered), strict=True):
            average = tf.tensor_scatter_nd_add(average, places[:, None], of_rank / self.comm.size)
        return average

    def _largest(self, part: tf.Tensor) -> tf.Tensor:
        """Return the places of the entries of one tensor that are sent; of equal ones, the first."""
        return tf.math.top_k(tf.abs(part), kept_entries(self.task.config.strategy, part.shape[0])).indices

    def exchanged(self) -> SharingRecord | None:
        """Return what this rank exchanged in its updates."""
        return sparse_record(self.task, self.meter.read(), rank=self.comm.rank)
