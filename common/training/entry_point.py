"""The frame of both trainers: one line and exit code 2 for what the user can mend, else a status in the record."""

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from common.config import Config, parse_command_line, requested_resume
from common.distributed.communicator import Communicator
from common.distributed.console import Console
from common.errors import EXIT_CODE_USER_ERROR, UserError, as_user_error
from common.training.journal import Journal
from common.training.resume import AlreadyFinished, resumed_settings


def read_settings(arguments: Sequence[str] | None, *, program: str) -> Config | UserError:
    """Return the settings of the command line; an error is returned, not raised, until all ranks can hear of it."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        folder = requested_resume(arguments)
        if folder is None:
            return parse_command_line(arguments, program=program)
        return resumed_settings(arguments, folder=folder, program=program)
    except UserError as error:
        return error


def run_program(
    train: Callable[[Config, Communicator, Journal], None],
    settings: Config | UserError,
    *,
    comm: Communicator,
    framework: str,
    program: str,
) -> int:
    """Train, and return the exit code: 0, or 2 on every rank for an error that the user can mend."""
    progress = settings.record.progress if isinstance(settings, Config) else "lines"
    console = Console(comm, progress=progress)
    journal = Journal(framework=framework, comm=comm, console=console)
    _watch_signals(journal, console)
    try:
        if isinstance(settings, UserError):
            # Ranks without the error hear of it where they first ask each other, when they pin their device; asking
            # here would be too early for TensorFlow, which takes the number of threads only before it has done a thing.
            with comm.propagate_errors("reading the settings"):
                raise settings
        train(settings, comm, journal)
    except AlreadyFinished as done:
        console.line(str(done))
    except (UserError, MemoryError) as caught:
        error = as_user_error(caught)
        journal.end("failed", message=str(error))
        console.error(f"{program}: error: {error}")
        return EXIT_CODE_USER_ERROR
    except BaseException:
        journal.end("failed", message=traceback.format_exc(limit=-1).strip().splitlines()[-1])
        raise
    return 0


def wants_timeline(settings: Config | UserError) -> bool:
    """Return whether a run of these settings keeps Horovod's timeline."""
    return isinstance(settings, Config) and settings.record.horovod_timeline


def exit_rank(code: int) -> None:
    """End this rank now: a launcher kills the ranks that are still leaving when the first has left with an error."""
    sys.stdout.flush()
    sys.stderr.flush()
    if code:
        os._exit(code)


def _watch_signals(journal: Journal, console: Console) -> None:
    """On SIGINT or SIGTERM write the status and leave, at once.

    A Python signal handler runs between two byte codes of the main thread, which may sit in a collective that waits for
    a rank already killed; a thread that reads the wake-up pipe does not have to wait for it.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(writer)

    def watch() -> None:
        number = signal.Signals(os.read(reader, 1)[0])
        try:
            journal.end("interrupted", message=f"received {number.name}")
            console.error(f"interrupted by {number.name}; finished epochs are kept, go on with --resume")
        finally:
            os._exit(128 + number)

    threading.Thread(target=watch, name="signals", daemon=True).start()


def program_name(file: str) -> str:
    """Return `torch_impl/train.py` for the path of that file."""
    path = Path(file)
    return f"{path.parent.name}/{path.name}"
