"""`--compile`: forward and backward pass by XLA; Horovod's exchange, which it refuses, and evaluation are as ever."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from common.distributed.communicator import Communicator
from common.errors import UserError


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that compiles itself in its first call, for batches of one size."""
    compiled: Callable[..., Any] = tf.function(function, jit_compile=True, autograph=False)
    return compiled


@contextmanager
def compile_errors(comm: Communicator) -> Iterator[None]:
    """Report what keeps a rank from compiling in one line, on all ranks, which call this together.

    Raises:
        UserError: in place of an error of XLA.
    """
    with comm.propagate_errors("compiling the model"):
        try:
            yield
        except tf.errors.OpError as error:
            line = error.message.splitlines()[0]
            raise UserError(
                f"XLA cannot compile the model. Received: --compile, {line}. Leave it out, or fix this cause"
            ) from error
