"""The ranks of `python -m launch parity` in PyTorch.

`keras_impl/parity_worker.py` is its twin.
"""

from collections.abc import Sequence

import torch_impl  # isort: skip  # noqa: F401 - before PyTorch: switches to the environment that has it
import numpy as np
import torch

from common.checks.parity_cases import LOSSES, Dtype, random_batch
from common.checks.parity_worker import Arrays, do_jobs, read_worker_settings
from common.config import DeviceConfig, ModelConfig
from common.distributed.communicator import Communicator
from common.model.specs import ModelSpec
from common.model.weights import Weights
from common.run.epoch import Trial
from common.run.program import exit_rank
from common.task.task import Task
from torch_impl import distributed
from torch_impl.models import build_model
from torch_impl.optimizers import loss_per_sample
from torch_impl.strategies import build_strategy, trial_of
from torch_impl.weights import get_weights, load_weights


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    settings = read_worker_settings(arguments)
    comm = distributed.init()
    distributed.pin_device(DeviceConfig(device="cpu", threads=1), comm, onednn=settings.onednn)
    return do_jobs(settings, comm=comm, build_trial=build_trial, outputs=outputs, leads=True)


def build_trial(task: Task, learning_rates: np.ndarray, comm: Communicator) -> Trial:
    """Return the training of a task from its first weights."""
    strategy = build_strategy(task, comm=comm, device=torch.device("cpu"))
    trial = trial_of(strategy, learning_rates=learning_rates)
    strategy.broadcast(from_checkpoint=False)
    return trial


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
    exit_rank(main())
