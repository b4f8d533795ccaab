"""How a rank starts its watcher, and what it does on its word."""

import faulthandler
import json
import os
import platform
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import psutil

from common.config import FaultConfig
from common.distributed.communicator import Communicator, launcher_rank, under_launcher
from common.errors import EXIT_CODE_STALLED
from common.utils.paths import ROOT
from common.watchdog.board import Board, announce, use_board
from common.watchdog.watcher import Orders

TICK_SECONDS = 1.0  # from one look of a watcher at its rank to the next
# Without the packages of this environment, whose paths take most of the start of Python.
_PROGRAM = "import sys; sys.path.insert(0, {root!r}); from common.watchdog.watcher import main; main()"


# The watcher of this process. It ends with it: a finished rank that cannot end hangs, too.
_current: "Watch | None" = None
_has_warned = False


class Watch:
    """The watcher of this rank, from its start to `stop`. It knows no other ranks before `meet`.

    Attributes:
        port: at which it listens to the watchers of other ranks.
        has_met: whether it knows the other ranks.

    Raises:
        OSError, RuntimeError: there is no process, file or thread left for it, or it has ended at once.
    """

    def __init__(self) -> None:
        self.board = Board()
        self.has_met = False
        self._end: Callable[[str], None] = lambda reason: os._exit(EXIT_CODE_STALLED)
        self._stack = stack = os.memfd_create("stack")
        self._watcher = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _PROGRAM.format(root=str(ROOT)), str(self.board.descriptor)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=(self.board.descriptor, stack),
            start_new_session=True,  # what stops or ends the processes of a rank does not stop its watcher
        )
        assert self._watcher.stdin
        assert self._watcher.stdout
        with suppress(RuntimeError, ValueError):  # not where standard error is no file
            faulthandler.register(signal.SIGUSR2, file=stack, all_threads=False)
        line = self._watcher.stdout.readline()
        if not line:
            raise ChildProcessError("it has ended at once")
        self.port: int = json.loads(line)["port"]
        use_board(self.board)
        threading.Thread(target=self._listen, name="watchdog", daemon=True).start()

    def meet(
        self,
        config: FaultConfig,
        *,
        rank: int,
        peers: list[tuple[list[str], int]],
        secret: str,
        end: Callable[[str], None],
    ) -> None:
        """Watch together with the watchers of the other ranks.

        Args:
            peers: addresses and port of each.
            end: ends this rank with a reason.
        """
        self._end, self.has_met = end, True
        self.board.set_activity("startup")
        self.order(config, rank=rank, peers=peers, secret=secret)

    def order(
        self, config: FaultConfig, *, rank: int, peers: list[tuple[list[str], int]] | None = None, secret: str = ""
    ) -> None:
        """Tell the watcher what to do."""
        orders = Orders(
            rank=rank,
            process=os.getpid(),
            peers=peers or [],
            secret=secret,
            action=config.stall_action,
            elastic=config.elastic,
            stall_seconds=config.stall_seconds,
            stack=self._stack,
            program="/".join(Path(sys.argv[0]).absolute().parts[-2:]),
            tick_seconds=TICK_SECONDS,
        )
        assert self._watcher.stdin
        try:
            self._watcher.stdin.write(json.dumps(asdict(orders)) + "\n")
            self._watcher.stdin.flush()
        except OSError as error:
            _warn(error)

    def stop(self) -> None:
        """End the watcher: from now on this rank may take its time."""
        use_board(None)
        assert self._watcher.stdin
        with suppress(OSError):
            self._watcher.stdin.close()
        self._watcher.wait()

    def _listen(self) -> None:
        assert self._watcher.stdout
        for line in self._watcher.stdout:
            self._end(json.loads(line)["end"])


def watch_startup(config: FaultConfig) -> None:
    """Watch this process, if a launcher has started it, before the ranks have met: each for itself."""
    global _current
    if under_launcher(os.environ) and (new := _new_watch()):
        _current = new
        _current.order(config, rank=launcher_rank(os.environ))


def take_settings(config: FaultConfig) -> None:
    """Tell the watcher of this process, if there is one, what the settings are; now the process joins the others."""
    if _current:
        _current.order(config, rank=launcher_rank(os.environ))
        announce("joining the others")


def start_watch(config: FaultConfig, *, comm: Communicator, end: Callable[[str], None]) -> Watch | None:
    """Return the watcher of this rank; None: it is alone, or has none. Every rank calls this.

    Args:
        end: ends this rank with a reason.
    """
    global _current
    if _current and (_current.has_met or comm.size == 1):
        stop_watch()  # of the run before
    if comm.size > 1 and under_launcher(os.environ):
        _current = _current or _new_watch()
        here, addresses = platform.node(), _addresses() if _current else []
        of_ranks = comm.allgather((here, addresses, _current.port if _current else 0, secrets.token_hex(16)))
        if _current:
            peers = [(_reachable(one, is_here=host == here) if port else [], port) for host, one, port, _ in of_ranks]
            _current.meet(config, rank=comm.rank, peers=peers, secret=of_ranks[0][-1], end=end)
    return _current


def stop_watch() -> None:
    """End the watcher of this process, if there is one."""
    global _current
    if _current:
        _current.stop()
        _current = None


def _new_watch() -> Watch | None:
    """Return a new watcher of this process; None: it cannot start."""
    try:
        return Watch()
    except (OSError, RuntimeError) as error:
        _warn(error)
        return None


def _warn(error: Exception) -> None:
    global _has_warned
    if not _has_warned:
        _has_warned = True
        rank = launcher_rank(os.environ)
        print(
            f"warning: rank {rank} trains without its watcher process. Received: {error}. Check the limits of "
            "`ulimit -n` and `ulimit -u`",
            file=sys.stderr,
            flush=True,
        )


def _addresses() -> list[str]:
    found = [one.address for of_one in psutil.net_if_addrs().values() for one in of_one if one.family == socket.AF_INET]
    return sorted(set(found))


def _reachable(addresses: list[str], *, is_here: bool) -> list[str]:
    """Return the addresses at which a host may be reached: its loopback from itself alone."""
    others = [address for address in addresses if not address.startswith("127.")]
    return ["127.0.0.1", *others] if is_here else others
