"""What ranks that hold the pieces of a layer exchange, forward and backward (`--strategy split`).

Horovod's own gradients would be wrong here: they sum or average once more, as if each rank had a loss of its own.
"""

from typing import Any

import tensorflow as tf

from common.config import DeviceConfig
from common.distributed.communicator import Communicator
from keras_impl.distributed import exchange_device, gather, gradient_exchange, hvd
from keras_impl.exchange_meter import ExchangeMeter


class GroupExchange:
    """The exchanges among the ranks of one copy of the model.

    Args:
        meter: counts what is exchanged in training.
    """

    def __init__(self, comm: Communicator, *, config: DeviceConfig, meter: ExchangeMeter) -> None:
        self._comm = comm
        self._config = config
        self._meter = meter

    def copy(self, tensor: tf.Tensor, *, name: str) -> tf.Tensor:
        """Return the tensor; backward, the sum of the gradients of all ranks (Megatron-LM's f)."""

        @tf.custom_gradient
        def copied(tensor: tf.Tensor) -> Any:
            return tf.identity(tensor), lambda gradient: self._sum(gradient, name=f"{name}.gradient")

        return copied(tensor)

    def sum(self, tensor: tf.Tensor, *, name: str) -> tf.Tensor:
        """Return the sum over ranks; backward, its gradient, which all ranks have (Megatron-LM's g)."""

        @tf.custom_gradient
        def total(tensor: tf.Tensor) -> Any:
            return self._sum(tensor, name=name), lambda gradient: gradient

        return total(tensor)

    def gather(self, tensor: tf.Tensor, *, name: str) -> tf.Tensor:
        """Return the channels of all ranks; backward, the gradient of this rank's channels."""
        channels = tensor.shape[-1]

        @tf.custom_gradient
        def gathered(tensor: tf.Tensor) -> Any:
            start = self._comm.part * channels
            return self._gather(tensor, name=name), lambda gradient: gradient[..., start : start + channels]

        return gathered(tensor)

    def _sum(self, tensor: tf.Tensor, *, name: str) -> tf.Tensor:
        exchange = gradient_exchange.GradientExchange(
            name=name,
            op=hvd.Sum,
            process_set=self._comm.copy_group,
            device=exchange_device(self._config),
            meter=self._meter_for(tensor),
        )
        return exchange([tensor], [tensor])[0]

    def _gather(self, tensor: tf.Tensor, *, name: str) -> tf.Tensor:
        own = {name: tf.transpose(tensor, (3, 0, 1, 2))}
        meter = self._meter_for(tensor)
        (channels,) = gather(own, config=self._config, group=self._comm.copy_group, meter=meter)
        return tf.transpose(channels, (1, 2, 3, 0))

    def _meter_for(self, tensor: tf.Tensor) -> ExchangeMeter | None:
        """Return the meter for a tensor of training, whose batches have one size; None in an evaluation."""
        return self._meter if tensor.shape.is_fully_defined() else None
