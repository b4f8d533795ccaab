"""Imports TensorFlow with oneDNN as a trainer's settings ask for: TensorFlow reads its variable only then.

    import keras_impl.onednn  # isort: skip  # noqa: F401

goes before whatever else imports TensorFlow or Keras.
"""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from common.errors import UserError
from common.training.resume import settings_of

VARIABLE = "TF_ENABLE_ONEDNN_OPTS"


def asked_for(arguments: Sequence[str]) -> str:
    """Return the value of `--onednn` that a command line, its recipe or the run it resumes has.

    It is "auto" if they are wrong, which is said later.
    """
    if any(argument.startswith(("--onednn", "--recipe", "--resume")) for argument in arguments):
        with suppress(UserError):
            return settings_of(arguments, program="keras_impl/train.py").device.onednn
    return "auto"


def is_on() -> bool:
    """Return whether oneDNN computes in this process."""
    from tensorflow.python.util import _pywrap_util_port  # the only place that says it

    return bool(_pywrap_util_port.IsMklEnabled())


def import_tensorflow(onednn: str) -> None:
    """Import TensorFlow; the variable is as before afterwards, as the record of a run has those of its user."""
    before = os.environ.get(VARIABLE)
    if onednn != "auto":
        os.environ[VARIABLE] = "1" if onednn == "on" else "0"
    import keras_impl.quiet_tensorflow  # noqa: F401

    os.environ.pop(VARIABLE, None)
    os.environ |= {VARIABLE: before} if before is not None else {}


if Path(sys.argv[0]).name == "train.py":  # not where something else imports a trainer
    import_tensorflow(asked_for(sys.argv[1:]))
