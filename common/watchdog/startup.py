"""Starts the watcher of a rank as this is imported: before the rank's framework, whose import takes long.

    import common.watchdog.startup  # isort: skip  # noqa: F401

The settings have not been read then. Flags count; what a recipe or a resumed run says counts once it is read. The
garbage collector pauses until they are read.
"""

import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

from common.utils.command_line import is_trainer
from common.utils.garbage import pause_garbage_collection

if is_trainer():
    pause_garbage_collection()

from common.config import FaultConfig, config_from_dict, requested
from common.watchdog.watch import watch_startup


def flags(arguments: Sequence[str]) -> FaultConfig:
    """Return the settings that are given as flags; the defaults if they are wrong, which is said later."""
    with suppress(ValueError):
        seconds = requested("--stall-seconds", arguments)
        given = {
            "elastic": "--elastic" in arguments,
            "stall_seconds": seconds and float(seconds),
            "on_stall": requested("--on-stall", arguments),
        }
        return config_from_dict({"faults": given}, source="flags").faults
    return FaultConfig()


if is_trainer():
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback of an import, until `run_program` writes the status
watch_startup(flags(sys.argv[1:]))
