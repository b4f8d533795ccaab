"""oneDNN on or off in TensorFlow, which reads its variable only while it is imported.

`keras_impl/quiet_tensorflow.py` imports it so.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from common.config import ModelConfig, requested
from common.distributed.pinning import check_onednn
from common.errors import UserError
from common.run.resume import settings_of
from common.utils.command_line import is_trainer

VARIABLE = "TF_ENABLE_ONEDNN_OPTS"
VALUES = {"0": "off", "false": "off", "1": "on", "true": "on"}  # others, TensorFlow ignores
_imported: list[str] = []  # the setting with which TensorFlow was


def asked_for(arguments: Sequence[str]) -> str:
    """Return the value of `--onednn` of a command line; of a trainer also that of its recipe or the run it resumes.

    It is the default if they are wrong, which is said later.
    """
    with suppress(UserError):
        if is_trainer():
            if any(argument.startswith(("--onednn", "--recipe", "--resume")) for argument in arguments):
                return settings_of(arguments, program="keras_impl/train.py").model.onednn
        elif (value := requested("--onednn", arguments)) is not None:
            return value
    return ModelConfig().onednn


@contextmanager
def onednn_as_asked_for() -> Iterator[None]:
    """Set the variable for the import of TensorFlow; afterwards it is as its user has set it, for the record."""
    asked, before = asked_for(sys.argv[1:]), os.environ.get(VARIABLE)
    _imported[:] = [asked]
    if asked in VALUES.values():
        os.environ[VARIABLE] = "1" if asked == "on" else "0"
    yield
    if before is None:
        os.environ.pop(VARIABLE, None)
    else:
        os.environ[VARIABLE] = before


def use_onednn(asked: str) -> None:
    """See that TensorFlow was imported as `--onednn` says.

    Raises:
        UserError: it was imported otherwise, or its variable says the opposite.
    """
    variable = os.environ.get(VARIABLE, "")
    said = VALUES.get(variable.lower(), asked)
    if asked != "framework" and said != asked:
        raise UserError(
            f"TensorFlow's variable contradicts --onednn {asked}. Received: {VARIABLE}={variable}. "
            f"Unset it, or give --onednn {said}, or framework to leave it to the variable"
        )
    if _imported != [asked]:
        raise UserError(
            f"TensorFlow is already imported, and oneDNN can no longer be turned on or off. Received: "
            f"--onednn {asked} after {' '.join(_imported)}. Start another process"
        )
    check_onednn(asked, is_on=onednn_is_on())


def onednn_is_on() -> bool:
    """Return whether oneDNN computes in this process, as TensorFlow says."""
    from tensorflow.python.util import _pywrap_util_port  # the only place that says it

    return bool(_pywrap_util_port.IsMklEnabled())
