"""Train a model with tf.keras on Horovod.

    horovodrun -np 4 python keras_impl/train.py            four ranks on this host
    python keras_impl/train.py --help                      all settings
    python keras_impl/train.py --model mlp --epochs 2      one process

`torch_impl/train.py` is its twin: the same settings, weights, samples and record.
"""

from collections.abc import Sequence

import keras_impl  # isort: skip
import common.watchdog.startup  # isort: skip  # noqa: F401 - before the framework, whose import is watched
import keras_impl.quiet_tensorflow  # isort: skip  # noqa: F401 - before Keras: TensorFlow as `--onednn` says

from common.config import Config
from common.distributed.communicator import Communicator
from common.run.program import exit_rank, read_settings, run_program
from common.run.run import Run
from common.strategies.balance import prepare_on_all_ranks
from common.utils.command_line import program_name
from keras_impl import distributed
from keras_impl.data import ShardedData
from keras_impl.models import build_model, set_precision_and_layout
from keras_impl.optimizers import build_optimizer
from keras_impl.strategies import build_strategy, trial

PROGRAM = program_name(__file__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    settings = read_settings(arguments, program=PROGRAM)
    # Horovod 1/7 - init: the processes that the launcher started find each other.
    comm = distributed.init(settings)
    return run_program(train, settings, comm=comm, hooks=distributed.HOOKS, framework="keras", program=PROGRAM)


def train(config: Config, comm: Communicator, run: Run) -> None:
    """Train, validate and test as the settings say."""
    # Horovod 2/7 - pin: one GPU per local rank, or a share of the cores, so that ranks do not compete for one device.
    device, threads = distributed.pin_device(config.device, comm, onednn=config.model.onednn)
    task = prepare_on_all_ranks(config, comm=comm, device=device, build=trial, first_copies=run.first_copies(config))
    run.open(task, distributed.rank_device(device, threads=threads))
    strategy = build_strategy(task, comm=comm, device=device, step=run.step, folder=run.folder)
    # Horovod 3/7 - shard: each rank reads its own part of every global batch.
    batches = ShardedData(task, comm=comm, device=device)

    set_precision_and_layout(config)
    with strategy.scope():
        model = build_model(strategy.spec, config.model, exchange=strategy.exchange)
        # Horovod 4/7 - scale: more ranks make larger batches, which allow larger steps; a warm-up leads there.
        learning_rates = task.scaled_learning_rates()
        optimizer = build_optimizer(model, config, learning_rates=learning_rates)
    # Horovod 5/7 - wrap: gradients are averaged over the ranks before each update; or weights after it (`--strategy`).
    strategy.wrap(model, optimizer)
    # Horovod 6/7 - broadcast: all ranks start from rank 0's weights and optimizer state; then they compare them.
    run.restore(strategy, batches)

    for epoch in run.epochs():
        for images, labels in epoch.take(batches):
            strategy.step(images, labels)
        # Horovod 7/7 - rank 0 only: one rank prints and writes; the recorder of every other rank does nothing.
        run.end_epoch(epoch)
    run.finish()


if __name__ == "__main__":
    exit_rank(main())
