"""A trainer whose weights are thrown away, by which ranks measure how fast they train before they do."""

from common.distributed.communicator import Communicator
from common.measurement.timing import Phases
from common.task.task import Task
from keras_impl.data import ShardedData
from keras_impl.distributed import wrap_optimizer
from keras_impl.loop import Trainer
from keras_impl.models import build_model, set_precision_and_layout
from keras_impl.optimizers import build_optimizer
from keras_impl.state import TrainingState


def trial_trainer(task: Task, *, comm: Communicator, device: str, exchanges: bool) -> Trainer:
    """Return a trainer of a copy of the model.

    Args:
        exchanges: whether the ranks average their gradients; otherwise each trains alone.
    """
    set_precision_and_layout(task.config)
    model = build_model(task.spec, task.config.model)
    optimizer = build_optimizer(model, task.config, learning_rates=task.scaled_learning_rates())
    if exchanges:
        optimizer = wrap_optimizer(optimizer, model=model, config=task.measured_config, comm=comm)
    state = TrainingState(model, optimizer, spec=task.spec, config=task.config)
    state.restore(task.first_weights)
    trainer = Trainer(state, ShardedData(task, comm=comm, device=device), phases=Phases())
    trainer.rehearse(1)
    return trainer
