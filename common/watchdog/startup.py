"""Starts the watcher of a rank as this is imported: before the rank's framework, whose import takes long.

    import common.watchdog.startup  # isort: skip  # noqa: F401

The settings have not been read then. Flags count; what a recipe or a resumed run says counts once it is read. The
garbage collector pauses until they are read. Help and the errors in the command line of one process come before
the framework is imported.
"""

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

from common.utils.command_line import is_trainer, program_name, run_command
from common.utils.garbage import pause_garbage_collection

if is_trainer():
    pause_garbage_collection()

from common.config import HELP, FaultConfig, config_from_dict, parse_command_line, requested
from common.distributed.launchers import under_launcher
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


def answer_without_framework(arguments: Sequence[str]) -> None:
    """Print a page of help, or the error in a command line, and end the program.

    Ranks read their settings once they have met: all of them end with the same exit code then, and the first one alone
    prints. Those of a run that is resumed are its own.
    """
    is_page = bool((HELP | {"--version"}) & {*arguments})
    if not is_page and (under_launcher(os.environ) or any(word.startswith("--resume") for word in arguments)):
        return
    program = program_name(sys.argv[0])

    def read() -> None:
        parse_command_line(arguments, program=program)

    code = run_command(read, program=program)
    if code or is_page:
        raise SystemExit(code)


if is_trainer():
    answer_without_framework(sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback of an import, until `run_program` writes the status
watch_startup(flags(sys.argv[1:]))
