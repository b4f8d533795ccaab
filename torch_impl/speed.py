"""How fast a rank alone trains, for `--shares auto`: a few updates of a copy that is thrown away."""

import torch

from common.distributed.communicator import Communicator
from common.measurement.timing import Phases
from common.strategies.balance import LEFT_OUT_STEPS, MEASURED_STEPS
from common.training.run_setup import RunSetup
from torch_impl.data import ShardedData
from torch_impl.loop import Trainer
from torch_impl.models import build_model
from torch_impl.optimizers import build_optimizer
from torch_impl.state import TrainingState


def speed_alone(setup: RunSetup, *, comm: Communicator, device: torch.device) -> float:
    """Return the images per second of this rank in training, without any exchange."""
    model = build_model(setup.spec, setup.config.model).to(device)
    learning_rates = setup.scaled_learning_rates()
    optimizer = build_optimizer(model, setup.config, learning_rates=learning_rates)
    state = TrainingState(model, optimizer, spec=setup.spec, config=setup.config)
    state.restore(setup.first_weights)
    data = ShardedData(setup, comm=comm, device=device)
    trainer = Trainer(state, data, learning_rates=learning_rates, phases=Phases())
    trainer.warm_up(1)
    for steps in (LEFT_OUT_STEPS, MEASURED_STEPS):
        trainer.start_epoch(1)
        trainer.train_segment(min(steps, trainer.steps_left))
    result = trainer.result()
    return result.sums.samples / result.seconds
