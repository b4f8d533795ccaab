"""The PyTorch process of `python -m common twins`.

Writes down in float64 what a model computes: in inference, in training, its gradients, its statistics, and its arrays
after updates. `keras_impl/twins/worker.py` reads it.
"""

import sys
from collections.abc import Sequence

import torch

from common.measurement.interference import peak_memory_bytes
from common.twins.trace import TorchTrace
from common.twins.worker import TRACE_FILE, Worker, run_worker, updates_for
from torch_impl.twins.model import Run, aliases, checked_model
from torch_impl.twins.recorder import named_arrays
from torch_impl.vision import declare_missing_operators


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    return run_worker(work, side="torch", arguments=arguments)


def work(worker: Worker) -> None:
    """Run the model, and write down what it computes."""
    torch.set_num_threads(worker.threads)
    torch.set_default_dtype(torch.float64)
    torch.backends.mha.set_fastpath_enabled(False)  # a call that would hide its parts
    declare_missing_operators()
    torch.manual_seed(0)
    pair = worker.pair()
    model = checked_model(pair)
    run = Run(model, pair=pair, arrays=worker.arrays())
    calls = {"inference": run.forward("inference"), "training": run.forward("training")}
    multiply_adds = sum(call.multiply_adds for call in calls["inference"])
    losses = run.train(updates=updates_for(multiply_adds))
    TorchTrace(
        calls=calls,
        results=run.results,
        arrays={name: list(one.shape) for name, one in named_arrays(model)},
        buffers=[name for name, _ in model.named_buffers()],
        trainable=[name for name, one in model.named_parameters() if one.requires_grad],
        aliases=aliases(model),
        dropouts=run.dropouts,
        losses=losses,
        multiply_adds=multiply_adds,
        seconds=worker.seconds(),
        memory_bytes=peak_memory_bytes(),
    ).write(worker.folder / TRACE_FILE)


if __name__ == "__main__":
    sys.exit(main())
