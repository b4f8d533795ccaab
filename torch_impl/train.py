"""Train a model with PyTorch on Horovod.

    horovodrun -np 4 python torch_impl/train.py            four ranks on this host
    python torch_impl/train.py --help                      all settings
    python torch_impl/train.py --model mlp --epochs 2      one process

`keras_impl/train.py` is its twin: the same settings, weights, samples and record.
"""

import sys
from collections.abc import Sequence

import torch_impl  # isort: skip  # noqa: F401 - before PyTorch: switches to the environment that has it
import common.watchdog.startup  # isort: skip  # noqa: F401 - before the framework, whose import is watched

from common.config import Config
from common.distributed.communicator import Communicator
from common.run.measured import NOT_MEASURED
from common.run.program import exit_rank, read_settings, run_program
from common.run.session import Session
from common.run_folder.checkpoints import Checkpoint
from common.strategies.balance import prepare_on_all_ranks
from common.utils.command_line import program_name
from torch_impl import distributed
from torch_impl.data import ShardedData
from torch_impl.elastic import elastic_hooks
from torch_impl.models import build_model
from torch_impl.onednn import onednn_is_on
from torch_impl.optimizers import build_optimizer
from torch_impl.profiled import ProfiledTrainer
from torch_impl.speed import trial_trainer
from torch_impl.state import TrainingState
from torch_impl.strategies import build_strategy

PROGRAM = program_name(__file__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    settings = read_settings(arguments, program=PROGRAM)
    # Horovod 1/7 - init: the processes that the launcher started find each other.
    comm = distributed.init(settings)
    return run_program(train, settings, comm=comm, hooks=elastic_hooks, framework="torch", program=PROGRAM)


def train(config: Config, comm: Communicator, session: Session) -> None:
    """Train, validate and test as the settings say."""
    # Horovod 2/7 - pin: one GPU per local rank, or a share of the cores, so that ranks do not compete for one device.
    device, threads = distributed.pin_device(config.device, comm, onednn=config.model.onednn)

    task = prepare_on_all_ranks(
        config, comm=comm, device=device, build=trial_trainer, first_copies=session.first_copies(config)
    )
    gpu = distributed.gpu_model(device)
    checkpoint = session.start(task, device=str(device), gpu=gpu, threads=threads, onednn=onednn_is_on())
    start = checkpoint or Checkpoint(0, 0, {}, {})
    strategy = build_strategy(task, comm=comm, step=start.step, folder=session.recorder.folder)
    # Horovod 3/7 - shard: each rank reads its own part of every global batch.
    data = ShardedData(task, comm=comm, device=device)

    spec = task.partition.parts[comm.part]  # the whole model, unless ranks share it out (`--strategy`)
    model = strategy.wrap_model(build_model(spec, config.model, exchange=strategy.exchange).to(device))
    # Horovod 4/7 - scale: more ranks make larger batches, which allow larger steps; a warm-up leads there.
    learning_rates = task.scaled_learning_rates()
    optimizer = build_optimizer(model, config, learning_rates=learning_rates)
    # Horovod 5/7 - wrap: gradients are averaged over the ranks before each update; or weights after it (`--strategy`).
    optimizer = strategy.wrap_optimizer(optimizer, model=model)

    state = TrainingState(model, optimizer, spec=spec, config=config, is_shared=checkpoint is not None)
    state.restore(*task.starting_arrays(checkpoint, part=comm.part))
    # Horovod 6/7 - broadcast: all ranks start from rank 0's weights and optimizer state; then they compare them.
    strategy.broadcast_state(state)
    comm.check_same_weights(state.export_weights(), when="after the broadcast", cut=task.partition.axes)

    trainer_class = ProfiledTrainer if config.record.profile else strategy.trainer_class
    trainer = trainer_class(state, data, learning_rates=learning_rates, phases=session.phases, strategy=strategy)
    trainer.rehearse_evaluation()
    if config.training.evaluate_first and not checkpoint:
        session.record_initial_test(trainer.evaluate("test"))
    epoch, partial = start.epoch, start.partial_epoch(comm.rank)
    is_complete = session.is_complete(step=start.step)
    if not is_complete:
        trainer.rehearse(epoch + 1)
    with distributed.timeline(session.timeline_file()):
        checkpointer = session.start_training(trainer, checkpoint)
        while not is_complete:
            epoch += 1
            advance = session.progress_bar(epoch, done=partial.steps)
            trainer.start_epoch(epoch, partial)
            while trainer.steps_left:
                trainer.train_segment(checkpointer.next_segment(trainer.steps_left), advance=advance)
                checkpointer.save_if_due(trainer)
            partial = strategy.end_epoch(state, epoch)
            validation = trainer.evaluate("validation") if task.validates_after(epoch) else NOT_MEASURED
            saved = checkpointer.save_epoch(epoch, state, partial)
            # Horovod 7/7 - rank 0 only: one rank prints and writes; the recorder of every other rank does nothing.
            is_complete = session.record_epoch(epoch, trainer, validation, saved=saved)
            checkpointer.epoch_is_recorded(trainer)
    peak = distributed.peak_device_memory(device)
    session.finish(trainer, trainer.evaluate("test"), strategy.sharing(), peak_memory_bytes=peak)


if __name__ == "__main__":
    code = main()
    exit_rank(code)
    sys.exit(code)
