"""How a rank starts its watcher, and what it does on its word."""

import faulthandler
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

import psutil

from common.config import FaultConfig
from common.distributed.communicator import Communicator
from common.distributed.launchers import launcher_rank, under_launcher
from common.errors import EXIT_CODE_STALLED
from common.utils.command_line import program_name
from common.utils.paths import ROOT
from common.watchdog.board import Board, announce, board_in, use_board

TICK_SECONDS = 1.0  # from one look of a watcher at its rank to the next
# Without the packages of this environment, whose paths take most of the start of Python.
_PROGRAM = "import sys; sys.path.insert(0, {root!r}); from common.watchdog.watcher import main; main()"
Peers = Sequence[tuple[list[str], int]]
End = Callable[[str], None]

# The watcher of this process. It ends with it: a finished rank that cannot end hangs, too.
_current: "Watch | None" = None
_has_warned = False


class Watch:
    """The watcher of this rank, which watches from its first moment, also if the rank is stopped meanwhile.

    Raises:
        OSError, RuntimeError: there is no process, file or thread left for it, or it has ended at once.
    """

    def __init__(self, config: FaultConfig) -> None:
        self.has_met = False  # the other ranks
        self.ends: dict[str, End] = {"end": lambda reason: os._exit(EXIT_CODE_STALLED)}
        self._board, self._stack = os.memfd_create("board"), os.memfd_create("stack")
        use_board(board_in(self._board))
        announce("imports")
        with suppress(RuntimeError, ValueError):  # not where standard error is no file
            faulthandler.register(signal.SIGUSR2, file=self._stack, all_threads=False)
        orders, writing_end = os.pipe()
        self._orders = os.fdopen(writing_end, "w")
        self.order(config, rank=launcher_rank(os.environ))
        with os.fdopen(orders) as standard_input:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _PROGRAM.format(root=str(ROOT))],
                stdin=standard_input,
                stdout=subprocess.PIPE,
                text=True,
                pass_fds=(self._board, self._stack),
                start_new_session=True,  # what stops or ends the processes of a rank does not stop its watcher
            )
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            raise ChildProcessError("it has ended at once")
        self.port = int(line)
        threading.Thread(target=self._listen, name="watchdog", daemon=True).start()

    def order(self, config: FaultConfig, *, rank: int, peers: Peers = (), secret: str = "") -> None:
        """Tell the watcher what to do.

        Args:
            peers: addresses and port of the watchers of all ranks; empty: they have not met.
        """
        orders = {
            "rank": rank,
            "process": os.getpid(),
            "program": program_name(sys.argv[0]),
            "peers": peers,
            "secret": secret or secrets.token_hex(16),
            "action": config.stall_action,
            "elastic": config.elastic,
            "stall_seconds": config.stall_seconds,
            "board": self._board,
            "stack": self._stack,
            "tick_seconds": TICK_SECONDS,
        }
        try:
            print(json.dumps(orders), file=self._orders, flush=True)
        except OSError as error:
            _warn(error)

    def end(self) -> None:
        """End the watcher, which ends with its orders."""
        with suppress(OSError):
            self._orders.close()
        self.process.wait()
        faulthandler.unregister(signal.SIGUSR2)
        os.close(self._board)
        os.close(self._stack)

    def _listen(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            for kind, reason in json.loads(line).items():
                self.ends[kind](reason)


def watch_startup(config: FaultConfig) -> None:
    """Watch this process, if a launcher has started it, before the ranks have met: each for itself."""
    global _current
    if under_launcher(os.environ):
        try:
            _current = Watch(config)
        except (OSError, RuntimeError) as error:
            _warn(error)


def take_settings(config: FaultConfig) -> None:
    """Tell the watcher of this process, if there is one, what the settings are; now the process joins the others."""
    if _current:
        _current.order(config, rank=launcher_rank(os.environ))
        announce("joining the others")


def start_watch(config: FaultConfig, *, comm: Communicator, end: End, fail: End) -> None:
    """Let the watchers of all ranks watch together. Every rank calls this.

    Args:
        end: ends this rank, since ranks hang.
        fail: ends the run on rank 0, since another rank has failed.
    """
    if _current and (_current.has_met or comm.size == 1):
        stop_watch()  # of the run before
    if comm.size == 1 or not under_launcher(os.environ):
        return
    if not _current:
        watch_startup(config)
    interfaces = psutil.net_if_addrs().values()
    addresses = [one.address for interface in interfaces for one in interface if one.family == socket.AF_INET]
    own = (addresses, _current.port) if _current else ([], 0)
    of_ranks = comm.allgather((own, secrets.token_hex(16)))
    if _current:
        _current.has_met, _current.ends = True, {"end": end, "fail": fail}
        announce("startup")
        _current.order(config, rank=comm.rank, peers=[peer for peer, _ in of_ranks], secret=of_ranks[0][1])


def stop_watch() -> None:
    """End the watcher of this process, if there is one: from now on this rank may take its time."""
    global _current
    if _current:
        use_board(Board())
        _current.end()
        _current = None


def _warn(error: Exception) -> None:
    global _has_warned
    if not _has_warned:
        rank = launcher_rank(os.environ)
        print(
            f"warning: rank {rank} trains without its watcher process. Received: {error}. Check the limits of "
            "`ulimit -n` and `ulimit -u`",
            file=sys.stderr,
            flush=True,
        )
    _has_warned = True
