"""What PyTorch's strategies do here: each is tried on two processes, over Gloo.

    python torch_impl/support.py        prints the table of README.md

A strategy works if it trains a small model to the weights of one process. `keras_impl/support.py` is its twin.
"""

from collections.abc import Callable
from typing import Any

import torch_impl  # isort: skip  # noqa: F401 - before PyTorch: switches to the environment that has it
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from common.checks.support import BATCH, MOMENTUM, RATE, STEPS, Case, compared, data, first_weights, main

WORKERS = 2
CASES = [
    Case("DataParallel", "loop"),
    Case("DistributedDataParallel", "loop", processes=WORKERS),
    Case("FSDP2 (fully_shard)", "loop", processes=WORKERS),
    Case("ZeRO-1 (ZeroRedundancyOptimizer)", "loop", processes=WORKERS),
    Case("PostLocalSGD, an average after every update", "loop", processes=WORKERS),
]


def try_case(case: Case, number: int, addresses: list[str]) -> str:
    """Train as one process of a case; return what came of it."""
    torch.set_num_threads(1)
    if case.processes > 1:
        dist.init_process_group("gloo", init_method=f"tcp://{addresses[0]}", rank=number, world_size=case.processes)
    layer = nn.Linear(8, 4, dtype=torch.float64)
    kernel, bias = map(torch.from_numpy, first_weights())
    layer.load_state_dict({"weight": kernel.T, "bias": bias})
    model, optimizer = _BUILD[case.strategy](layer)
    _loop(model, optimizer, number=number, size=case.processes)
    if case.strategy == "DataParallel" and not model.device_ids:
        return "without GPUs a plain model"
    kernel, bias = (_full(layer.get_parameter(name)) for name in ("weight", "bias"))
    return compared([kernel.T.numpy(), bias.numpy()])


def _loop(model: nn.Module, optimizer: Any, *, number: int, size: int) -> None:
    """Train an epoch, as process `number` of `size`."""
    inputs, labels = map(torch.from_numpy, data())
    part = BATCH // size
    for start in range(number * part, STEPS * BATCH, BATCH):
        optimizer.zero_grad()
        F.mse_loss(model(inputs[start : start + part]), labels[start : start + part]).backward()
        optimizer.step()


def _full(weight: Any) -> torch.Tensor:
    """Return all of a weight that may be sharded over the processes."""
    tensor: torch.Tensor = (weight.full_tensor() if hasattr(weight, "full_tensor") else weight).detach()
    return tensor


def _sgd(model: nn.Module, *, momentum: float = MOMENTUM) -> torch.optim.Optimizer:
    """Return the optimizer of all cases."""
    return torch.optim.SGD(model.parameters(), RATE, momentum=momentum)


def _data_parallel(layer: nn.Module) -> tuple[nn.Module, Any]:
    """Return `DataParallel`, one process with all GPUs."""
    return nn.DataParallel(layer), _sgd(layer)


def _distributed_data_parallel(layer: nn.Module) -> tuple[nn.Module, Any]:
    """Return `DistributedDataParallel`."""
    return DistributedDataParallel(layer), _sgd(layer)


def _fully_sharded(layer: nn.Module) -> tuple[nn.Module, Any]:
    """Return FSDP2: every process has a part of each weight."""
    fully_shard(layer, mesh=init_device_mesh("cpu", (WORKERS,)))
    return layer, _sgd(layer)


def _zero_redundancy(layer: nn.Module) -> tuple[nn.Module, Any]:
    """Return ZeRO-1: every process has the optimizer's state of a part of the weights."""
    model = DistributedDataParallel(layer)
    return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=RATE, momentum=MOMENTUM)


def _post_local_sgd(layer: nn.Module) -> tuple[nn.Module, Any]:
    """Return post-local SGD that averages after every update."""
    model = DistributedDataParallel(layer)
    group, _ = dist.new_subgroups(1)
    model.register_comm_hook(PostLocalSGDState(None, group, start_localSGD_iter=0), post_localSGD_hook)
    return model, PostLocalSGDOptimizer(_sgd(layer), PeriodicModelAverager(period=1, warmup_steps=0))


_BUILDERS: list[Callable[[nn.Module], tuple[nn.Module, Any]]] = [
    _data_parallel, _distributed_data_parallel, _fully_sharded, _zero_redundancy, _post_local_sgd
]  # fmt: skip
_BUILD = {case.strategy: build for case, build in zip(CASES, _BUILDERS, strict=True)}

if __name__ == "__main__":
    main(CASES, try_case, versions=f"PyTorch {torch.__version__.split('+')[0]}")
