"""What ranks that hold the pieces of a layer exchange, forward and backward (`--strategy split`).

Horovod's own gradients would be wrong here: they sum once more, as if each rank had a loss of its own.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from common.config import Config
from common.distributed.communicator import Communicator
from common.measurement.exchange_meter import ExchangeMeter
from torch_impl.distributed import hvd


class GroupExchange:
    """The exchanges among the ranks of one copy of the model.

    Args:
        meter: counts what is exchanged in training.
    """

    def __init__(self, comm: Communicator, *, config: Config, meter: ExchangeMeter) -> None:
        self._comm = comm
        self._meter = meter
        self._through_host = config.device.share_gpu  # as NCCL refuses two ranks on one GPU

    def copy(self, tensor: Tensor, *, name: str) -> Tensor:
        """Return the tensor; backward, the sum of the gradients of all ranks (Megatron-LM's f)."""
        copied: Tensor = _Copy.apply(tensor, partial(self._sum, name=f"{name}.gradient", meter=self._meter))
        return copied

    def sum(self, tensor: Tensor, *, name: str) -> Tensor:
        """Return the sum over ranks; backward, its gradient, which all ranks have (Megatron-LM's g)."""
        total: Tensor = _Sum.apply(tensor, partial(self._sum, name=name, meter=self._meter_now()))
        return total

    def gather(self, tensor: Tensor, *, name: str) -> Tensor:
        """Return the channels of all ranks; backward, the gradient of this rank's channels."""
        concatenate = partial(self._gather, name=name, meter=self._meter_now())
        gathered: Tensor = _Gather.apply(tensor, concatenate, self._comm.part)
        return gathered

    def _meter_now(self) -> ExchangeMeter:
        """Return the meter in training, where gradients are asked for; another one in an evaluation."""
        return self._meter if torch.is_grad_enabled() else ExchangeMeter()

    def _sum(self, tensor: Tensor, *, name: str, meter: ExchangeMeter) -> Tensor:
        def add_up(own: Tensor) -> Tensor:
            total: Tensor = hvd.allreduce(own, op=hvd.Sum, name=name, process_set=self._comm.copy_group)
            return total

        return self._exchange(tensor, add_up, meter=meter)

    def _gather(self, tensor: Tensor, *, name: str, meter: ExchangeMeter) -> Tensor:
        def concatenate(own: Tensor) -> Tensor:  # along the first axis, the only one that Horovod knows
            channels = own.transpose(0, 1).contiguous()
            gathered: Tensor = hvd.allgather(channels, name=name, process_set=self._comm.copy_group)
            return gathered.transpose(0, 1)

        return self._exchange(tensor, concatenate, meter=meter)

    def _exchange(self, tensor: Tensor, exchange: Callable[[Tensor], Tensor], *, meter: ExchangeMeter) -> Tensor:
        # Horovod gives the result its size later, which a tensor of inference mode does not allow.
        with torch.inference_mode(False), meter.timed():
            own = tensor.cpu() if self._through_host else tensor
            exchanged = exchange(own.contiguous())
        meter.send(own.nbytes)
        meter.received_bytes += exchanged.nbytes
        return exchanged.to(tensor.device)


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, tensor: Tensor, sum_gradients: Callable[[Tensor], Tensor]) -> Tensor:
        context.sum_gradients = sum_gradients
        return tensor.view_as(tensor)

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        return context.sum_gradients(gradients[0]), None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, tensor: Tensor, add_up: Callable[[Tensor], Tensor]) -> Tensor:
        return add_up(tensor)

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        return gradients[0], None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, tensor: Tensor, concatenate: Callable[[Tensor], Tensor], part: int) -> Tensor:
        context.channels = slice(part * tensor.shape[1], (part + 1) * tensor.shape[1])
        return concatenate(tensor)

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        return gradients[0][:, context.channels].contiguous(), None, None
