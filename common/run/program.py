"""The frame of both trainers: user errors become one line and exit code 2; the record shows how each run ended."""

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence

from common.config import Config
from common.distributed.communicator import Communicator
from common.distributed.console import Console
from common.distributed.launchers import check_controller, check_tasks
from common.errors import EXIT_CODE_STALLED, EXIT_CODE_USER_ERROR, UserError, as_user_error
from common.parameter_server.client import say_goodbye
from common.parameter_server.server import serve
from common.run.elastic import Elastic, Hooks
from common.run.resume import AlreadyFinished, settings_of
from common.run.run import Run
from common.run_folder.checkpoints import checkpoint_folders
from common.utils.garbage import resume_garbage_collection
from common.watchdog.board import announce
from common.watchdog.watch import stop_watch, take_settings, watch_startup


def read_settings(arguments: Sequence[str] | None, *, program: str) -> Config | UserError:
    """Return the settings of the command line; an error is returned, and raised once all ranks can receive it."""
    resume_garbage_collection()  # all is imported
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        config = settings_of(arguments, program=program)
        check_tasks(os.environ)
        check_controller(config.strategy, os.environ)
        config.strategy.check_framework(program)
        take_settings(config.faults)
        return config
    except UserError as error:
        return error


def run_program(
    train: Callable[[Config, Communicator, Run], None],
    settings: Config | UserError,
    *,
    comm: Communicator,
    hooks: Hooks,
    framework: str,
    program: str,
) -> int:
    """Train, or serve workers that train, and return the exit code: 0, or 2 on every rank for a user error.

    Args:
        hooks: Horovod's part.
    """
    progress, elastic = "lines", None
    if isinstance(settings, Config):
        progress = settings.record.progress
        if settings.faults.elastic:
            # Of the start, also if a rank ended before all had met: what Horovod changes then is not seen here.
            elastic = Elastic(size=int(os.environ.get("HOROVOD_SIZE", comm.size)))
    console = Console(comm, progress=progress)
    run = Run(framework=framework, comm=comm, console=console, horovod=hooks.horovod, elastic=elastic)
    _watch_signals(run)
    if comm.is_server:
        announce("serving")
        return serve(comm.world, workers=comm.size)
    code = _train(train, settings, run=run, hooks=hooks, program=program)
    say_goodbye(comm, code=code)
    return code


def _train(
    train: Callable[[Config, Communicator, Run], None],
    settings: Config | UserError,
    *,
    run: Run,
    hooks: Hooks,
    program: str,
) -> int:
    comm = run.comm
    announce("preparing data")
    try:
        if isinstance(settings, UserError):
            # The other ranks receive the error in their first collective, when they pin their device. A collective here
            # would be too early for TensorFlow, which accepts the number of threads only before its first operation.
            with comm.propagate_errors("reading the settings"):
                raise settings
        settings.check_ranks(comm.size + comm.servers)
        if run.elastic:
            _train_elastically(train, settings, run=run, elastic=run.elastic, hooks=hooks)
        else:
            train(settings, comm, run)
    except AlreadyFinished as done:
        run.console.line(str(done))
    except (UserError, MemoryError) as caught:
        error = as_user_error(caught)
        run.recorder.end("failed", message=str(error))
        run.console.error(f"{program}: error: {error}", of_this_rank=isinstance(caught, MemoryError))
        return EXIT_CODE_USER_ERROR
    except BaseException as error:
        if hooks.is_lost_rank(error):
            run.recorder.end("interrupted", message="another rank has ended")
            run.console.error(f"another rank has ended{how_to_go_on(run)}")
            return EXIT_CODE_STALLED
        run.recorder.end("failed", message="".join(traceback.format_exception_only(error)).splitlines()[0])
        raise
    return 0


def _train_elastically(
    train: Callable[[Config, Communicator, Run], None],
    settings: Config,
    *,
    run: Run,
    elastic: Elastic,
    hooks: Hooks,
) -> None:
    if "HOROVOD_ELASTIC" not in os.environ:
        with run.comm.propagate_errors("starting"):
            raise UserError(
                "ranks can end and join only under a launcher that supports this. Received: --elastic without a host "
                "discovery script. Start them with `python -m launch train --elastic`, or with horovodrun --min-np 1 "
                "--host-discovery-script"
            )

    def leave() -> None:
        """Watch this process alone, as at its start: which ranks there will be is not known yet."""
        run.leave()
        stop_watch()
        watch_startup(settings.faults)
        announce("joining the others")

    def join() -> None:
        run.rejoined(hooks.rejoin(settings))

    elastic.run(lambda: train(settings, run.comm, run), hooks=hooks, leave=leave, join=join)


def how_to_go_on(run: Run) -> str:
    """Return what the message of a run that ends early adds: nothing where there is nothing to resume."""
    if run.folder is None or run.task.config.energy.energy or not checkpoint_folders(run.folder):
        return ""
    return "; finished epochs are kept, continue with --resume"


def exit_rank(code: int) -> None:
    """End this rank now if it failed: a launcher kills the ranks that are still exiting after the first failure."""
    sys.stdout.flush()
    sys.stderr.flush()
    if code:
        os._exit(code)


def _watch_signals(run: Run) -> None:
    """On SIGINT or SIGTERM write the status and exit, at once.

    A Python signal handler runs between two byte codes of the main thread, which may be in a collective that waits for
    a rank already killed; a thread that reads the wake-up pipe need not wait for it.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(writer)

    def watch() -> None:
        number = signal.Signals(os.read(reader, 1)[0])
        try:
            run.recorder.end("interrupted", message=f"received {number.name}")
            run.console.error(f"interrupted by {number.name}{how_to_go_on(run)}")
        finally:
            os._exit(128 + number)

    threading.Thread(target=watch, name="signals", daemon=True).start()
