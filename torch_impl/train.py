"""Train a model with PyTorch on Horovod.

    horovodrun -np 4 python torch_impl/train.py            four ranks on this host
    python torch_impl/train.py --help                      all settings
    python torch_impl/train.py --model mlp --epochs 2      one process

`keras_impl/train.py` is its twin: the same settings, weights, samples and record.
"""

from collections.abc import Sequence

import torch_impl  # isort: skip  # noqa: F401 - before PyTorch: switches to the environment that has it
import common.watchdog.startup  # isort: skip  # noqa: F401 - before the framework, whose import is watched

from common.config import Config
from common.distributed.communicator import Communicator
from common.run.program import exit_rank, read_settings, run_program
from common.run.run import Run
from common.strategies.balance import prepare_on_all_ranks
from common.utils.command_line import program_name
from torch_impl import distributed
from torch_impl.data import ShardedData
from torch_impl.models import build_model
from torch_impl.optimizers import build_optimizer
from torch_impl.strategies import build_strategy, trial

PROGRAM = program_name(__file__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    settings = read_settings(arguments, program=PROGRAM)
    # Horovod 1/7 - init: the processes that the launcher started find each other.
    comm = distributed.init(settings)
    return run_program(train, settings, comm=comm, hooks=distributed.HOOKS, framework="torch", program=PROGRAM)


def train(config: Config, comm: Communicator, run: Run) -> None:
    """Train, validate and test as the settings say."""
    # Horovod 2/7 - pin: one GPU per local rank, or a share of the cores, so that ranks do not compete for one device.
    device, threads = distributed.pin_device(config.device, comm, onednn=config.model.onednn)
    task = prepare_on_all_ranks(config, comm=comm, device=device, build=trial, first_copies=run.first_copies(config))
    run.open(task, distributed.rank_device(device, threads=threads))
    strategy = build_strategy(task, comm=comm, device=device, step=run.step, folder=run.folder)
    # Horovod 3/7 - shard: each rank reads its own part of every global batch.
    batches = ShardedData(task, comm=comm, device=device)

    model = build_model(strategy.spec, config.model, exchange=strategy.exchange).to(device)
    # Horovod 4/7 - scale: more ranks make larger batches, which allow larger steps; a warm-up leads there.
    learning_rates = task.scaled_learning_rates()
    optimizer = build_optimizer(model, config, learning_rates=learning_rates)
    # Horovod 5/7 - wrap: gradients are averaged over the ranks before each update; or weights after it (`--strategy`).
    strategy.wrap(model, optimizer, learning_rates=learning_rates)
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
