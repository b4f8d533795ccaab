"""Imports TensorFlow with oneDNN on or off, as a trainer's settings say: TensorFlow reads its variable only then.

    import keras_impl.onednn  # isort: skip  # noqa: F401

goes before whatever else imports TensorFlow or Keras.
"""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from common.distributed.console import Console
from common.errors import UserError
from common.training.resume import settings_of
from common.utils.command_line import is_trainer

VARIABLE = "TF_ENABLE_ONEDNN_OPTS"


def asked_for(arguments: Sequence[str]) -> str:
    """Return the value of `--onednn` that a command line, its recipe or the run it resumes has.

    It is "auto" if they are wrong, which is said later.
    """
    if any(argument.startswith(("--onednn", "--recipe", "--resume")) for argument in arguments):
        with suppress(UserError):
            return settings_of(arguments, program="keras_impl/train.py").model.onednn
    return "auto"


def onednn_is_on() -> bool:
    """Return whether oneDNN computes in this process."""
    from tensorflow.python.util import _pywrap_util_port  # the only place that says it

    return bool(_pywrap_util_port.IsMklEnabled())


def say_without_onednn(console: Console, *, asked: str, device: str) -> None:
    """Print a note where TensorFlow leaves oneDNN out of its own accord, as PyTorch never does."""
    if asked == "auto" and device == "cpu" and not onednn_is_on():
        console.line(
            "note: TensorFlow does not use oneDNN on this processor by default, PyTorch does: for times that compare, "
            "try --onednn on"
        )


def import_tensorflow(onednn: str) -> None:
    """Import TensorFlow; afterwards the variable is as it was, for the record of a run has what its user has set."""
    before = os.environ.get(VARIABLE)
    if onednn != "auto":
        os.environ[VARIABLE] = "1" if onednn == "on" else "0"
    import keras_impl.quiet_tensorflow  # noqa: F401

    if before is None:
        os.environ.pop(VARIABLE, None)
    else:
        os.environ[VARIABLE] = before


if is_trainer():
    import_tensorflow(asked_for(sys.argv[1:]))
