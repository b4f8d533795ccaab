"""Train a model with tf.keras on Horovod.

    horovodrun -np 4 python keras_impl/train.py            four ranks on this host
    python keras_impl/train.py --help                      all settings
    python keras_impl/train.py --model mlp --epochs 2      one process

`torch_impl/train.py` is its twin: the same settings, weights, samples and record.
"""

import sys
from collections.abc import Sequence
from typing import Literal

import keras_impl.quiet_tensorflow  # isort: skip  # noqa: F401 - before Keras: TensorFlow without its start-up lines
import keras

from common.config import Config
from common.data.sharding import evaluation_range
from common.distributed.communicator import Communicator
from common.measurement.metrics import Sums
from common.model.weights import Weights
from common.run_folder.checkpoints import EpochProgress
from common.training.entry_point import exit_rank, program_name, read_settings, run_program, wants_timeline
from common.training.journal import EpochResult, Journal
from common.training.run_setup import prepare_run
from keras_impl import distributed
from keras_impl.data import evaluation_data, training_data
from keras_impl.loop import Trainer, seed_dropout
from keras_impl.models import build_model
from keras_impl.optimizers import build_optimizer, export_state, import_state
from keras_impl.profiled import ProfiledTrainer
from keras_impl.weights import get_weights, load_weights

PROGRAM = program_name(__file__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    settings = read_settings(arguments, program=PROGRAM)
    # Horovod 1/7 - init: the processes that the launcher started find each other.
    comm = distributed.init(timeline=wants_timeline(settings))
    return run_program(train, settings, comm=comm, framework="keras", program=PROGRAM)


def train(config: Config, comm: Communicator, journal: Journal) -> None:
    """Train, validate and test as the settings say."""
    # Horovod 2/7 - pin: one GPU per local rank, or a share of the cores, so that ranks do not fight over one device.
    device, threads = distributed.pin_device(config.device, comm)

    # Horovod 3/7 - shard: each rank takes its part of every global batch; data.py asks for it by rank and size.
    with comm.propagate_errors("preparing the data"):
        setup = prepare_run(config, size=comm.size, progress=journal.console.bars)
    checkpoint = journal.start(setup, device=device, threads=threads)
    spec = setup.spec

    keras.config.set_floatx(config.model.dtype)
    if config.device.mixed_precision:
        keras.mixed_precision.set_global_policy("mixed_float16")
    model = build_model(spec, config.model)
    load_weights(model, checkpoint.weights if checkpoint else setup.first_weights, spec=spec)

    # Horovod 4/7 - scale: more ranks make larger batches, which bear larger steps; a warm-up leads there.
    learning_rates = setup.learning_rates
    optimizer = build_optimizer(model, config.optimizer, learning_rates=learning_rates, device=config.device)

    # Horovod 5/7 - wrap: gradients are averaged over the ranks before each update.
    if not config.record.profile:  # which averages them itself, to take the time of it
        optimizer = distributed.wrap_optimizer(optimizer, model=model, config=config.device, comm=comm)
    if checkpoint:
        import_state(model, optimizer, checkpoint.optimizer_state, spec=spec)

    def weights() -> Weights:
        return get_weights(model, spec=spec)

    def optimizer_state() -> Weights:
        return export_state(model, optimizer, spec=spec)

    # Horovod 6/7 - broadcast: all ranks start from rank 0's weights and optimizer state; then they prove it.
    distributed.broadcast_state(model, optimizer, spec=spec, comm=comm)
    journal.check_weights(weights(), when="after the broadcast")
    begun = EpochProgress()
    if checkpoint and checkpoint.ranks:
        begun = checkpoint.ranks[comm.rank]
        # Inside an epoch each rank has BatchNorm statistics of its own.
        load_weights(model, {**checkpoint.weights, **begun.statistics}, spec=spec)

    if config.record.profile:
        trainer: Trainer = ProfiledTrainer(model, optimizer, config=config, phases=journal.phases, comm=comm)
    else:
        trainer = Trainer(model, optimizer, config=config, phases=journal.phases, distributed=comm.size > 1)

    def evaluate(part: Literal["validation", "test"], *, replicated: bool = False) -> tuple[Sums, float]:
        split, indices = setup.evaluation_samples(part)
        rank, size = (0, 1) if replicated else (comm.rank, comm.size)
        samples = len(evaluation_range(len(indices), rank=rank, size=size))
        batches = evaluation_data(setup, split, indices, rank=rank, size=size)
        return trainer.evaluate(batches, phase=part, samples=samples)

    if config.training.evaluate_first and not checkpoint:
        journal.evaluated_first(evaluate("test")[0])
    epoch, step = (checkpoint.epoch, checkpoint.step) if checkpoint else (0, 0)
    goes_on = journal.goes_on(step=step)
    if goes_on:
        trainer.warm_up(training_data(setup, epoch=epoch + 1, comm=comm))
    # Horovod 7/7 - rank 0 only: the journal prints and writes on rank 0; every rank calls it, for the sums over ranks.
    timeline = journal.timeline_file()
    if timeline:
        distributed.start_timeline(timeline)
    journal.training_starts()
    while goes_on:
        epoch += 1
        seed_dropout(model, seed=config.training.seed, epoch=epoch, rank=comm.rank)
        if setup.freezes_batch_norm_in(epoch):
            trainer.freeze_batch_norm(training_data(setup, epoch=epoch, comm=comm))
        steps = setup.steps_of_epoch(epoch)
        training, seconds, waiting = trainer.train_epoch(
            training_data(setup, epoch=epoch, comm=comm, first_step=begun.steps),
            epoch=epoch,
            advance=journal.console.steps(steps, title=f"epoch {epoch}/{setup.epochs}", done=begun.steps),
            parts=journal.parts(
                epoch, begun=begun, weights=weights, optimizer_state=optimizer_state, progress=trainer.progress
            ),
            begun=begun,
        )
        distributed.average_batch_norm(model, spec=spec, comm=comm)
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
