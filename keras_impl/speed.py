"""How fast a rank alone trains, for `--shares auto`: a few updates of a copy that is thrown away."""

from common.distributed.communicator import Communicator
from common.measurement.timing import Phases
from common.strategies.balance import LEFT_OUT_STEPS, MEASURED_STEPS
from common.training.run_setup import RunSetup
from keras_impl.data import ShardedData
from keras_impl.loop import Trainer
from keras_impl.models import build_model, set_precision_and_layout
from keras_impl.optimizers import build_optimizer
from keras_impl.state import TrainingState


def speed_alone(setup: RunSetup, *, comm: Communicator, device: str) -> float:
    """Return the images per second of this rank in training, without any exchange."""
    set_precision_and_layout(setup.config)
    model = build_model(setup.spec, setup.config.model)
    optimizer = build_optimizer(model, setup.config, learning_rates=setup.scaled_learning_rates())
    state = TrainingState(model, optimizer, spec=setup.spec, config=setup.config)
    state.restore(setup.first_weights)
    data = ShardedData(setup, comm=comm, device=device)
    trainer = Trainer(state, data, phases=Phases())
    for steps in (LEFT_OUT_STEPS, MEASURED_STEPS):
        trainer.start_epoch(1)
        trainer.train_segment(min(steps, trainer.steps_left))
    result = trainer.result()
    return result.sums.samples / result.seconds
