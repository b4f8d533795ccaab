"""`--compile`: forward and backward pass by torch.compile; Horovod's exchange and evaluation are as ever."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from common.distributed.communicator import Communicator
from common.errors import UserError


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that compiles itself in its first call, and its gradient in the first backward pass.

    All batches of training have one size, which the code is made for.
    """
    options: dict[str, Any] = {
        "fallback_random": True,  # the masks of dropout are those of the function itself
        "compile_threads": torch.get_num_threads(),  # else each rank takes all cores of its host
        "deterministic": torch.are_deterministic_algorithms_enabled(),  # as `distributed.pin_device` has set it
    }
    compiled: Callable[..., Any] = torch.compile(function, fullgraph=True, dynamic=False, options=options)
    return compiled


@contextmanager
def compile_errors(comm: Communicator) -> Iterator[None]:
    """Report what keeps a rank from compiling in one line, on all ranks, which call this together.

    Raises:
        UserError: in place of an error of torch.compile.
    """
    with comm.propagate_errors("compiling the model"):
        try:
            yield
        except torch._dynamo.exc.TorchDynamoException as error:  # imported where it is raised: that takes seconds
            lines = str(error).splitlines()
            line = next((line for line in lines if "fatal error" in line), lines[0])
            raise UserError(
                f"PyTorch cannot compile the model. Received: --compile, {line}. Install a C++ compiler and Python's "
                "headers on all hosts (apt-get install g++ python3-dev), or leave it out"
            ) from error
