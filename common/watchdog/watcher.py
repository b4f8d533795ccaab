"""The process beside a rank that watches it; the watchers of a run tell each other. The standard library alone.

It writes its port to standard output, and reads what it shall do from standard input, in JSON lines: of its rank alone,
until the ranks have met; then of all. It ends with its input, which is when its rank ends.

Each watcher reports to those of all lower ranks every second, and gets their reports as an answer. The lowest that
lives judges, speaks on standard error, and adds to its answers what is to be done.
"""

import json
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from common.utils.process_state import ENDED, STOPPED, process_state
from common.watchdog.board import Board
from common.watchdog.launcher import end_launcher, parent_of
from common.watchdog.verdict import Report, hanging_ranks, words

GRACE_TICKS = 5  # for watchers to find each other, for an answer, and for a rank to end by itself
MOST_BYTES = 1 << 20  # of a line


@dataclass(frozen=True, kw_only=True)
class Orders:
    """What a watcher is told at its start.

    Attributes:
        rank: of the process beside it.
        process: its number.
        peers: addresses and port of each rank's watcher, in the order of ranks; empty: they have not met.
        secret: without which nobody is listened to.
        action: wait, end or drop.
        elastic: whether the others go on without a rank that has ended, each watched anew.
        stack: descriptor of the file that the rank writes its stack to.
        tick_seconds: from one report to the next.
    """

    rank: int
    process: int
    peers: list[tuple[list[str], int]]
    secret: str
    action: str
    elastic: bool
    stall_seconds: float | None
    stack: int
    program: str
    tick_seconds: float

    @property
    def grace_seconds(self) -> float:
        """How long is waited for what should come at once."""
        return GRACE_TICKS * self.tick_seconds


class Watcher:
    """Watches one rank, reports to the watchers of lower ranks, and judges if it is the lowest."""

    def __init__(self, orders: Orders, board: Board, listener: socket.socket) -> None:
        self._orders = orders
        self._board = board
        self._listener = listener
        self._reports: dict[int, tuple[float, Report]] = {}  # rank -> when it was heard, and what
        self._answered: dict[int, float] = {}  # lower rank -> when its watcher was heard
        self._answer: dict[str, Any] = {}  # to all reports
        self._stack = ""
        self._ran_at = time.monotonic()  # when the rank was last seen not to be stopped
        self.has_successor = threading.Event()
        self.ends_run = False

    def run(self) -> None:
        """Watch until the rank ends, or another one does."""
        if self._orders.peers:
            _in_thread(self._listen)
            for lower in range(self._orders.rank):
                _in_thread(self._report_to, lower)
        began, said, asked_at = time.monotonic(), "", 0.0
        while not self.has_successor.wait(self._orders.tick_seconds):
            now = time.monotonic()
            self._reports[self._orders.rank] = now, self._own_report()
            if now - began < self._orders.grace_seconds or not self._is_lowest():
                continue
            reports = self._all_reports()
            silent = self._orders.grace_seconds
            hanging = hanging_ranks(reports, stall_seconds=self._orders.stall_seconds, silent_seconds=silent)
            unheard = [rank for rank in hanging if reports[rank].silent_seconds > silent]
            key = f"{hanging} {unheard} {[reports[rank].updates for rank in hanging]}"
            if not hanging:
                said, self._answer = "", {}
            elif key == said:
                continue
            elif not self._answer:
                asked_at, self._answer = now, {"stack": True}
                self._stack = self._own_stack()
            elif all(reports[rank].stack for rank in hanging) or now - asked_at > self._orders.grace_seconds:
                said = key
                self._speak_and_act(hanging, reports)

    def _speak_and_act(self, hanging: list[int], reports: dict[int, Report]) -> None:
        reason = words(hanging, reports, silent_seconds=self._orders.grace_seconds)
        line = f"{self._orders.program}: {reason}"
        action = self._orders.action
        if action == "drop" and len(hanging) == len(self._orders.peers):
            action = "wait"  # nobody would be left
        dropped = "killed, the others continue"
        if all(reports[rank].silent_seconds > self._orders.grace_seconds for rank in hanging):
            dropped = "cannot be killed from here; remove its host from the list of hosts"
        what = {"wait": "waiting on", "end": "ending the run", "drop": dropped}
        shown = [f"{line}: {what[action]}"]
        for rank in hanging:
            if reports[rank].stack:
                shown += [f"  rank {rank}: {frame}" for frame in reports[rank].stack.splitlines()]
        print("\n".join(shown), file=sys.stderr, flush=True)
        if action == "wait":
            return
        ranks = sorted(reports) if action == "end" else hanging
        self._answer = {"end": reason, "ranks": ranks}
        if self._orders.rank in ranks:
            time.sleep(2 * self._orders.tick_seconds)  # so that the others hear of it
            self._end(reason)

    def _end(self, reason: str) -> None:
        """Let the rank end, by force if it does not; with it ends this process."""
        if self._orders.action == "end":
            self.ends_run = True
            print(json.dumps({"end": reason}), flush=True)
            time.sleep(self._orders.grace_seconds)
        _kill(self._orders.process)

    def _is_lowest(self) -> bool:
        heard = [time.monotonic() - at for at in self._answered.values()]
        return all(silent > self._orders.grace_seconds for silent in heard)

    def _all_reports(self) -> dict[int, Report]:
        """Return what is known of the ranks that have been heard of, and for how long they have been silent."""
        now = time.monotonic()
        known = {}
        for rank, (at, report) in list(self._reports.items()):
            silent = max(0.0, now - at - self._orders.tick_seconds)
            if report.state == "gone":
                known[rank] = replace(report, idle_seconds=report.idle_seconds + silent)
            else:
                known[rank] = replace(report, silent_seconds=silent)
        return known

    def _has_ended(self, rank: int) -> None:
        """Note that a watcher is no more, and so that its rank has ended, or has left an elastic run."""
        self._answered.pop(rank, None)
        if self._orders.elastic:
            self._reports.pop(rank, None)
        elif rank in self._reports:
            heard, report = self._reports[rank]
            self._reports[rank] = heard, replace(report, state="gone")

    def _own_report(self) -> Report:
        seen, process, now = self._board.read(), self._orders.process, time.monotonic()
        state = process_state(process)
        if state not in STOPPED:
            self._ran_at = now
        return Report(
            host=os.uname().nodename,
            process=process,
            activity=seen.activity,
            updates=seen.updates,
            idle_seconds=now - (self._ran_at if state in STOPPED else seen.moved_at),
            slowest_seconds=seen.slowest_seconds,
            state=state,
            stack=self._stack,
        )

    def _own_stack(self) -> str:
        """Return where the rank is: its Python stack, else what the kernel says."""
        process, state = self._orders.process, process_state(self._orders.process)
        if state not in (*STOPPED, *ENDED):
            try:
                os.ftruncate(self._orders.stack, 0)
                os.lseek(self._orders.stack, 0, os.SEEK_SET)
                os.kill(process, signal.SIGUSR2)  # the rank's faulthandler writes it
            except OSError:
                return ""
            time.sleep(self._orders.tick_seconds / 2)
            text = os.pread(self._orders.stack, 1 << 16, 0).decode(errors="replace")
            if text.strip():
                return "\n".join(line.strip() for line in text.splitlines() if line.strip().startswith("File"))
        try:
            waits = Path(f"/proc/{process}/wchan").read_text().strip("0\n")
        except OSError:
            waits = ""
        return f"in the kernel: state {state}" + (f", {waits}" if waits else "")

    def _report_to(self, lower: int) -> None:
        """Report to the watcher of a lower rank, and do what it answers."""
        while True:
            try:
                with self._connected(lower) as connection, connection.makefile("rw") as lines:
                    while True:
                        self._exchange(lower, lines)
                        time.sleep(self._orders.tick_seconds)
            except ConnectionRefusedError:  # its host answers, and nobody listens there
                self._has_ended(lower)
            except (OSError, ValueError):
                pass
            time.sleep(self._orders.tick_seconds)

    def _exchange(self, lower: int, lines: TextIO) -> None:
        own = asdict(self._own_report())
        lines.write(json.dumps({"secret": self._orders.secret, "rank": self._orders.rank, "report": own}) + "\n")
        lines.flush()
        line = lines.readline(MOST_BYTES)
        if not line:
            raise OSError("closed")
        answer = json.loads(line)
        self._answered[lower] = time.monotonic()
        self._reports[lower] = self._answered[lower], Report(**answer.pop("report"))
        if answer.get("stack") and not self._stack:
            self._stack = self._own_stack()
        elif not answer:
            self._stack = ""
        if self._orders.rank in answer.get("ranks", ()):
            self._end(answer["end"])

    def _connected(self, lower: int) -> socket.socket:
        addresses, port = self._orders.peers[lower]
        error = OSError("no address answers")
        for address in addresses:
            try:
                connection = socket.create_connection((address, port), timeout=self._orders.grace_seconds)
            except ConnectionRefusedError as refused:
                error = refused
            except OSError:
                continue
            else:
                return connection
        raise error

    def _listen(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            _in_thread(self._hear, connection)

    def _hear(self, connection: socket.socket) -> None:
        """Take the reports of a higher rank's watcher."""
        rank: int | None = None
        beginning = json.dumps({"secret": self._orders.secret})[:-1]  # of each report; of a stranger nothing is read
        try:
            with connection, connection.makefile("rw") as lines:
                while line := lines.readline(MOST_BYTES):
                    if not line.startswith(beginning):
                        return
                    message = json.loads(line)
                    rank = int(message["rank"])
                    self._reports[rank] = time.monotonic(), Report(**message["report"])
                    lines.write(json.dumps({**self._answer, "report": asdict(self._own_report())}) + "\n")
                    lines.flush()
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            pass  # no watcher of this run, or an unreachable one
        else:
            if rank is not None:
                self._has_ended(rank)


def _kill(process: int) -> None:
    with suppress(OSError):  # it has ended
        os.kill(process, signal.SIGKILL)


def _in_thread(work: Any, *arguments: Any) -> None:
    threading.Thread(target=work, args=arguments, daemon=True).start()


def main() -> None:
    """Watch as the standard input says, until it ends; the argument is the descriptor of the board."""
    board, launcher, watcher = Board(int(sys.argv[1])), parent_of(os.getppid()), None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a launcher's, for the rank
    with socket.create_server(("", 0)) as listener:
        try:
            print(json.dumps({"port": listener.getsockname()[1]}), flush=True)
        except BrokenPipeError:  # its rank has ended meanwhile
            os._exit(0)
        while line := sys.stdin.readline():
            if watcher:
                watcher.has_successor.set()
            watcher = Watcher(Orders(**json.loads(line)), board, listener)
            _in_thread(watcher.run)
    if watcher and watcher.ends_run:
        end_launcher(launcher)
    os._exit(0)
