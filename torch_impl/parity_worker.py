"""The ranks of `python -m launch parity` in PyTorch.

`keras_impl/parity_worker.py` is its twin.
"""

import sys
from collections.abc import Sequence

import torch_impl  # isort: skip  # noqa: F401 - before PyTorch: switches to the environment that has it
import numpy as np
import torch

from common.checks.parity_cases import LOSSES, Dtype, random_batch
from common.checks.parity_worker import Arrays, do_jobs, read_worker_settings
from common.config import DeviceConfig, ModelConfig
from common.distributed.communicator import Communicator
from common.measurement.metrics import Sums
from common.measurement.timing import Phases
from common.model.specs import ModelSpec
from common.model.weights import Weights
from common.run.program import exit_rank
from common.run_folder.checkpoints import PartialEpoch
from common.task.task import Task
from torch_impl import distributed
from torch_impl.data import ShardedData
from torch_impl.loop import Trainer
from torch_impl.models import build_model
from torch_impl.optimizers import build_optimizer, loss_per_sample
from torch_impl.state import TrainingState
from torch_impl.strategies import build_strategy
from torch_impl.weights import get_weights, load_weights


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    settings = read_worker_settings(arguments)
    comm = distributed.init()
    distributed.pin_device(DeviceConfig(device="cpu", threads=1), comm, onednn=settings.onednn)
    return do_jobs(settings, comm=comm, build_twin=Twin, outputs=outputs, leads=True)


class Twin:
    """PyTorch's training, update by update."""

    def __init__(self, task: Task, learning_rates: np.ndarray, comm: Communicator) -> None:
        self.strategy = build_strategy(task, comm=comm, step=0)
        self._own = PartialEpoch()  # what this rank alone starts the next update with
        model = build_model(task.spec, task.config.model)
        optimizer = build_optimizer(model, task.config, learning_rates=learning_rates)
        optimizer = self.strategy.wrap_optimizer(optimizer, model=model)
        self.state = TrainingState(model, optimizer, spec=task.spec, config=task.config)
        self.state.restore(task.first_weights)
        distributed.broadcast_state(self.state, comm=comm)
        data = ShardedData(task, comm=comm, device=torch.device("cpu"))
        self.trainer = Trainer(self.state, data, learning_rates=learning_rates, phases=Phases())

    def update(self, number: int) -> Sums:
        """Make an update, counted from 1; return this rank's sums over its batch, as the weights were before."""
        self.trainer.start_epoch(number, self._own)
        self.trainer.train_segment(1)
        self._own = self.strategy.end_epoch(self.state, number)
        return self.trainer.result().sums


def outputs(spec: ModelSpec, weights: Weights, dtype: Dtype, training: bool) -> Arrays:
    """Return outputs, every loss, the gradients of their sum, and the running statistics afterwards.

    Args:
        training: training mode, without dropout.
    """
    model = build_model(spec, ModelConfig(model=spec.name, dtype=dtype, dropout=False))
    load_weights(model, weights, spec=spec)
    model.train(training)
    images, labels = random_batch(spec)
    logits = model(torch.from_numpy(images.astype(dtype)).permute(0, 3, 1, 2))
    losses = [
        loss_per_sample(logits, torch.from_numpy(labels), config=optimizer, model_config=end).mean()
        for optimizer, end in LOSSES.values()
    ]
    torch.stack(losses).sum().backward()
    arrays = {"outputs": logits.detach().numpy()}
    arrays |= {f"loss/{name}": np.array([loss.item()]) for name, loss in zip(LOSSES, losses, strict=True)}
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        arrays[f"gradient/{name}"] = parameter.grad.numpy()
    after = get_weights(model, spec=spec)
    return arrays | {f"statistics/{one.name}": after[one.name] for one in spec.weights if not one.trainable}


if __name__ == "__main__":
    code = main()
    exit_rank(code)
    sys.exit(code)
