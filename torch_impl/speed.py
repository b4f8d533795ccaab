"""A trainer whose weights are thrown away, by which ranks measure how fast they train before they do."""

import torch

from common.distributed.communicator import Communicator
from common.measurement.timing import Phases
from common.task.task import Task
from torch_impl.data import ShardedData
from torch_impl.distributed import wrap_optimizer
from torch_impl.loop import Trainer
from torch_impl.models import build_model
from torch_impl.optimizers import build_optimizer
from torch_impl.state import TrainingState


def trial_trainer(task: Task, *, comm: Communicator, device: torch.device, exchanges: bool) -> Trainer:
    """Return a trainer of a copy of the model.

    Args:
        exchanges: whether the ranks average their gradients; otherwise each trains alone.
    """
    model = build_model(task.spec, task.config.model).to(device)
    learning_rates = task.scaled_learning_rates()
    optimizer = build_optimizer(model, task.config, learning_rates=learning_rates)
    if exchanges:
        optimizer = wrap_optimizer(optimizer, model=model, config=task.measured_config, comm=comm)
    state = TrainingState(model, optimizer, spec=task.spec, config=task.config)
    state.restore(task.first_weights)
    data = ShardedData(task, comm=comm, device=device)
    trainer = Trainer(state, data, learning_rates=learning_rates, phases=Phases())
    trainer.rehearse(1)
    return trainer
