"""Train a model with PyTorch on Horovod.

    horovodrun -np 4 python torch_impl/train.py            four ranks on this host
    python torch_impl/train.py --help                      all settings
    python torch_impl/train.py --model mlp --epochs 2      one process

`keras_impl/train.py` is its twin: the same settings, weights, samples and record.
"""

import sys
from collections.abc import Sequence
from typing import Literal

from common.config import Config
from common.distributed.communicator import Communicator
from common.measurement.metrics import Sums
from common.model.weights import Weights
from common.run_folder.checkpoints import EpochProgress
from common.training.entry_point import exit_rank, program_name, read_settings, run_program, wants_timeline
from common.training.journal import EpochResult, Journal
from common.training.run_setup import prepare_run
from torch_impl import distributed
from torch_impl.data import evaluation_data, training_data
from torch_impl.loop import Trainer, seed_dropout
from torch_impl.models import build_model
from torch_impl.optimizers import build_optimizer, export_state, import_state
from torch_impl.profiled import ProfiledTrainer
from torch_impl.weights import get_weights, load_weights

PROGRAM = program_name(__file__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    settings = read_settings(arguments, program=PROGRAM)
    # Horovod 1/7 - init: the processes that the launcher started find each other.
    comm = distributed.init(timeline=wants_timeline(settings))
    return run_program(train, settings, comm=comm, framework="torch", program=PROGRAM)


def train(config: Config, comm: Communicator, journal: Journal) -> None:
    """Train, validate and test as the settings say."""
    # Horovod 2/7 - pin: one GPU per local rank, or a share of the cores, so that ranks do not fight over one device.
    device, threads = distributed.pin_device(config.device, comm)

    # Horovod 3/7 - shard: each rank takes its part of every global batch; data.py asks for it by rank and size.
    with comm.propagate_errors("preparing the data"):
        setup = prepare_run(config, size=comm.size, progress=journal.console.bars)
    checkpoint = journal.start(setup, device=str(device), threads=threads)

    model = build_model(setup.spec, config.model)
    load_weights(model, checkpoint.weights if checkpoint else setup.first_weights, spec=setup.spec)
    model.to(device)

    # Horovod 4/7 - scale: more ranks make larger batches, which bear larger steps; a warm-up leads there.
    learning_rates = setup.learning_rates
    optimizer = build_optimizer(model, config.optimizer, learning_rate=config.optimizer.learning_rate)

    # Horovod 5/7 - wrap: gradients are averaged over the ranks before each update.
    if config.record.profile:  # averages them itself, to take the time of it
        trainer: Trainer = ProfiledTrainer(
            model, optimizer, config=config, device=device, phases=journal.phases, comm=comm
        )
    else:
        optimizer = distributed.wrap_optimizer(optimizer, model=model, config=config.device, comm=comm)
        trainer = Trainer(model, optimizer, config=config, device=device, phases=journal.phases)
    if checkpoint:
        import_state(model, optimizer, checkpoint.optimizer_state, scaler=trainer.scaler)

    def weights() -> Weights:
        return get_weights(model, spec=setup.spec)

    def optimizer_state() -> Weights:
        return export_state(model, optimizer, scaler=trainer.scaler)

    # Horovod 6/7 - broadcast: all ranks start from rank 0's weights and optimizer state; then they prove it.
    distributed.broadcast_state(model, optimizer, comm=comm)
    journal.check_weights(weights(), when="after the broadcast")
    begun = EpochProgress()
    if checkpoint and checkpoint.ranks:
        begun = checkpoint.ranks[comm.rank]
        # Inside an epoch each rank has BatchNorm statistics of its own.
        load_weights(model, {**checkpoint.weights, **begun.statistics}, spec=setup.spec)

    def evaluate(part: Literal["validation", "test"], *, replicated: bool = False) -> tuple[Sums, float]:
        split, indices = setup.evaluation_samples(part)
        rank, size = (0, 1) if replicated else (comm.rank, comm.size)
        batches = evaluation_data(setup, split, indices, rank=rank, size=size, device=device)
        return trainer.evaluate(batches, phase=part)

    if config.training.evaluate_first and not checkpoint:
        journal.evaluated_first(evaluate("test")[0])
    epoch, step = (checkpoint.epoch, checkpoint.step) if checkpoint else (0, 0)
    goes_on = journal.goes_on(step=step)
    # Horovod 7/7 - rank 0 only: the journal prints and writes on rank 0; every rank calls it, for the sums over ranks.
    timeline = journal.timeline_file()
    if timeline:
        distributed.start_timeline(timeline)
    journal.training_starts()
    while goes_on:
        epoch += 1
        seed_dropout(seed=config.training.seed, epoch=epoch, rank=comm.rank)
        if setup.freezes_batch_norm_in(epoch):
            trainer.freeze_batch_norm()
        steps = setup.steps_of_epoch(epoch)
        first = (epoch - 1) * setup.steps_per_epoch
        training, seconds, waiting = trainer.train_epoch(
            training_data(setup, epoch=epoch, comm=comm, device=device, first_step=begun.steps),
            learning_rates=learning_rates[first + begun.steps : first + steps],
            advance=journal.console.steps(steps, title=f"epoch {epoch}/{setup.epochs}", done=begun.steps),
            parts=journal.parts(
                epoch, begun=begun, weights=weights, optimizer_state=optimizer_state, progress=trainer.progress
            ),
            begun=begun,
        )
        distributed.average_batch_norm(model, comm=comm)
        validation, validation_seconds = Sums(), 0.0
        if setup.validates_after(epoch):
            validation, validation_seconds = evaluate(
                "validation", replicated=config.training.validation == "replicated"
            )
        goes_on = journal.epoch_ended(
            epoch,
            EpochResult(
                training=training,
                training_seconds=seconds,
                data_wait_seconds=waiting,
                validation=validation,
                validation_seconds=validation_seconds,
            ),
            weights=weights(),
            optimizer_state=optimizer_state,
        )
        begun = EpochProgress()
    if timeline:
        distributed.stop_timeline()
    test, test_seconds = evaluate("test")
    journal.finish(
        test,
        test_seconds=test_seconds,
        weights=weights(),
        peak_device_memory_bytes=distributed.peak_device_memory(device),
        profiler=trainer.profiler,
    )


if __name__ == "__main__":
    code = main()
    exit_rank(code)
    sys.exit(code)
