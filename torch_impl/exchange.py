"""What ranks that hold the pieces of a layer exchange, forward and backward (`--strategy split`).

Horovod's own gradients would be wrong here: they sum once more, as if each rank had a loss of its own.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from common.config import DeviceConfig
from common.distributed.communicator import Communicator
from common.measurement.exchange_meter import ExchangeMeter
from torch_impl.data import layout_of
from torch_impl.distributed import gather, hvd

_Function = Callable[[Tensor], Tensor]


class GroupExchange:
    """The exchanges among the ranks of one copy of the model.

    Not in inference mode: Horovod gives a result its size later, which a tensor of that mode does not allow.

    Args:
        meter: counts what is exchanged in training.
    """

    def __init__(self, comm: Communicator, *, config: DeviceConfig, meter: ExchangeMeter) -> None:
        self._comm, self._config, self._meter = comm, config, meter
        self._layout = layout_of(config)

    def copy(self, tensor: Tensor, *, name: str) -> Tensor:
        """Return the tensor; backward, the sum of the gradients of all ranks (Megatron-LM's f)."""
        sum_gradients = partial(self._sum, name=f"{name}.gradient", meter=self._meter)
        copied: Tensor = _Exchanged.apply(tensor, lambda own: own.view_as(own), sum_gradients)
        return copied

    def sum(self, tensor: Tensor, *, name: str) -> Tensor:
        """Return the sum over ranks; backward, its gradient, which all ranks have (Megatron-LM's g)."""
        add_up = partial(self._sum, name=name, meter=self._meter_now())
        total: Tensor = _Exchanged.apply(tensor, add_up, lambda gradient: gradient)
        return total

    def gather(self, tensor: Tensor, *, name: str) -> Tensor:
        """Return the channels of all ranks; backward, the gradient of this rank's channels."""
        channels = tensor.shape[1]
        own = slice(self._comm.part * channels, (self._comm.part + 1) * channels)
        concatenate = partial(self._gather, name=name, meter=self._meter_now())
        gathered: Tensor = _Exchanged.apply(tensor, concatenate, lambda gradient: self._laid_out(gradient[:, own]))
        return gathered

    def _meter_now(self) -> ExchangeMeter:
        """Return the meter in training, where gradients are asked for; another one in an evaluation."""
        return self._meter if torch.is_grad_enabled() else ExchangeMeter()

    def _sum(self, tensor: Tensor, *, name: str, meter: ExchangeMeter) -> Tensor:
        with torch.inference_mode(False), meter.timed():
            own = (tensor.cpu() if self._config.share_gpu else tensor).contiguous()  # NCCL refuses a shared GPU
            total: Tensor = hvd.allreduce(own, op=hvd.Sum, name=name, process_set=self._comm.copy_group)
        meter.send(own.nbytes)
        meter.received_bytes += total.nbytes
        return total.to(tensor.device)

    def _gather(self, tensor: Tensor, *, name: str, meter: ExchangeMeter) -> Tensor:
        with torch.inference_mode(False):
            own = {name: tensor.transpose(0, 1).contiguous()}
            (channels,) = gather(own, config=self._config, group=self._comm.copy_group, meter=meter)
            return self._laid_out(channels.transpose(0, 1))

    def _laid_out(self, tensor: Tensor) -> Tensor:
        """Return a tensor in memory as the next layer computes it; of images as `--channels-last` says."""
        return tensor.contiguous(memory_format=self._layout) if tensor.dim() == 4 else tensor.contiguous()


class _Exchanged(torch.autograd.Function):
    """What `exchange` makes of a tensor, whose gradient `exchange_gradient` makes of that of the result."""

    @staticmethod
    def forward(context: Any, tensor: Tensor, exchange: _Function, exchange_gradient: _Function) -> Tensor:
        context.exchange_gradient = exchange_gradient
        return exchange(tensor)

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        return context.exchange_gradient(gradients[0]), None, None
