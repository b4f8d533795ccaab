"""The PyTorch process of `python -m common twins`.

Writes down in float64 what a model computes: in inference, in training, its gradients, its statistics, and its arrays
after updates. `keras_impl/twins/worker.py` reads it.
"""

import sys
from collections.abc import Sequence

import torch

from common.measurement.interference import peak_memory_bytes
from common.twins.contract import load_pair
from common.twins.processes import Task, process_seconds, run_worker, updates_for
from common.twins.records import TorchTrace
from torch_impl.twins.model import Run, checked_model
from torch_impl.twins.recorder import named_arrays
from torch_impl.vision import declare_missing_operators


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    return run_worker(work, side="torch", arguments=arguments)


def work(task: Task) -> None:
    """Run the model, and write down what it computes."""
    torch.set_num_threads(task.threads)
    torch.set_default_dtype(torch.float64)
    torch.backends.mha.set_fastpath_enabled(False)  # a call that would hide its parts
    declare_missing_operators()
    torch.manual_seed(0)
    pair = load_pair(task.source)
    model = checked_model(pair)
    run = Run(model, pair=pair, arrays=task.open_arrays())
    for mode in ("inference", "training"):
        run.forward(mode)
    multiply_adds = sum(event.multiply_adds for event in run.recorders["inference"].events)
    losses = run.train(updates=updates_for(multiply_adds))
    trace = TorchTrace(
        events={mode: recorder.events for mode, recorder in run.recorders.items()},
        results={mode: recorder.result for mode, recorder in run.recorders.items()},
        arrays={name: list(tensor.shape) for name, tensor in named_arrays(model)},
        buffers=[name for name, _ in model.named_buffers()],
        trainable=[name for name, parameter in model.named_parameters() if parameter.requires_grad],
        dropouts=run.dropouts(),
        losses=losses,
        seconds=process_seconds(),
        memory_bytes=peak_memory_bytes(),
    )
    task.write_result("torch", trace)


if __name__ == "__main__":
    sys.exit(main())
