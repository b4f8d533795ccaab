"""The process beside a rank that watches it. The standard library alone.

It gets its orders from standard input and ends with it, which is when its rank ends. To standard output it writes its
port, and why its rank must end.

Every tick each watcher sends its report to all others, in a datagram. The lowest that lives judges, speaks on standard
error, and adds to its reports which ranks must end.
"""

import json
import os
import select
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from common.utils.process_state import ENDED, GONE, STOPPED, parent_of, process_state
from common.watchdog.board import board_in
from common.watchdog.verdict import SILENT_SECONDS, Report, hanging_ranks, is_stuck, words

GRACE_TICKS = 5  # for a stack to come, and for a rank to end by itself
MOST_BYTES = 60_000  # of a datagram, of which a stack takes half at most
LONGEST_REASON = 1000  # characters of what is recorded; the line that is printed has all
LAUNCHERS = ("mpirun", "mpiexec", "orterun")  # which wait for their daemons on all hosts, also on a dead one
LAUNCHER_SECONDS = 30.0  # for a launcher to end by itself


@dataclass(kw_only=True)
class Watcher:
    """Watches one rank, and judges all of them if no lower one is heard.

    Attributes:
        port: at which it hears other watchers.
        process: of the rank; its `program` is named in messages.
        peers: addresses and port of each rank's watcher, in the order of ranks; empty: they have not met.
        secret: of the run; who does not know it is not listened to.
        action: wait, end or drop.
        elastic: whether the others go on without a rank that has ended.
        board, stack: descriptors of files in memory: the rank's board, and what it writes its stack to.
    """

    port: socket.socket
    rank: int
    process: int
    program: str
    peers: list[tuple[list[str], int]]
    secret: str
    action: str
    elastic: bool
    stall_seconds: float | None
    board: int
    stack: int
    tick_seconds: float

    def __post_init__(self) -> None:
        self._board = board_in(self.board)
        self._grace_seconds = GRACE_TICKS * self.tick_seconds
        self._addresses = {rank: [(one, at) for one in ones] for rank, (ones, at) in enumerate(self.peers)}
        self._reports: dict[int, tuple[float, Report]] = {}  # rank -> the tick in which it was heard, and what
        self._own_stack = ""
        # The time of this tick, by which all is judged: this process may be suspended between any two lines.
        self._now = time.monotonic()
        # No rank hung as far as this one judges; its rank was not stopped; all began anew.
        self._fine_at = self._ran_at = self._moved_at = self._now
        self._hanging: list[int] = []  # as was said
        self._verdict: tuple[str, list[int]] = "", []  # why ranks must end, and which
        self.has_successor = threading.Event()
        self.ends_run = False

    def run(self) -> None:
        """Watch until the rank ends, or another watcher goes on."""
        while not self.has_successor.is_set():
            self._look_at_clock()
            self._send(self._own_report())
            self._end_if_listed(*self._verdict)
            if self._is_lowest():
                self._judge()
            else:
                self._fine_at = self._now
            self._listen()

    def _look_at_clock(self) -> None:
        """Begin anew if this process did not run for a while: its job was suspended, perhaps with all others."""
        before, self._now = self._now, time.monotonic()
        if self._now - before > SILENT_SECONDS:
            self._ran_at = self._now
            self._begin_anew()

    def _begin_anew(self) -> None:
        """Let all ranks have moved just now."""
        self._fine_at = self._moved_at = self._now
        self._reports = {rank: (self._now, replace(one, idle_seconds=0.0)) for rank, (_, one) in self._reports.items()}
        self._verdict = "", []

    def say_goodbye(self) -> None:
        """Tell the others that the rank has ended."""
        self._send(replace(self._own_report(), state=GONE))

    def _send(self, own: Report) -> None:
        self._reports[self.rank] = self._now, own
        content = {"rank": self.rank, "report": asdict(own), "verdict": self._verdict}
        message = (self.secret + json.dumps(content)).encode()
        for rank, addresses in self._addresses.items():
            for address in addresses if rank != self.rank else ():
                with suppress(OSError):  # no way to this address
                    self.port.sendto(message, address)

    def _listen(self) -> None:
        """Hear the other watchers until the next tick."""
        last = time.monotonic() + self.tick_seconds
        while (left := last - time.monotonic()) > 0 and select.select([self.port], [], [], left)[0]:
            with suppress(BlockingIOError):  # the watcher before this one has read it
                message, sender = self.port.recvfrom(MOST_BYTES, socket.MSG_DONTWAIT)
                secret = self.secret.encode()
                if message.startswith(secret):
                    self._hear(json.loads(message[len(secret) :]), sender)

    def _hear(self, content: dict[str, Any], sender: tuple[str, int]) -> None:
        rank, report = content["rank"], Report(**content["report"])
        self._addresses[rank] = [sender]  # of all that its host has, one that leads there
        self._reports[rank] = self._now, report
        if report.state == GONE and self.elastic:
            del self._reports[rank]
            self._begin_anew()  # the others, which may have waited for it, have to find out first
        if report.failure and self.rank == 0:
            _tell_rank("fail", report.failure)
        self._end_if_listed(*content["verdict"])

    def _is_lowest(self) -> bool:
        heard = [at for rank, (at, _) in self._reports.items() if rank < self.rank]
        return self._now - max(heard, default=0.0) > SILENT_SECONDS

    def _judge(self) -> None:
        reports = {
            rank: replace(report, silent_seconds=max(0.0, self._now - at - self.tick_seconds))
            for rank, (at, report) in sorted(self._reports.items())
        }
        hanging = hanging_ranks(reports, stall_seconds=self.stall_seconds)
        if not hanging:
            self._fine_at, self._hanging, self._verdict = self._now, [], ("", [])
        has_stacks = all(reports[rank].stack for rank in hanging)
        if hanging == self._hanging or not (has_stacks or self._now - self._fine_at > self._grace_seconds):
            return
        self._hanging = hanging
        action, ending = self.action, "killed, the others continue"
        if action == "drop" and len(hanging) == len(reports) > 1:
            action = "wait"  # nobody would be left that is heard
        if all(reports[rank].is_silent for rank in hanging):
            ending = "cannot be killed from here; remove its host from the list of hosts"
        what = {"wait": "waiting on", "end": "ending the run", "drop": ending}[action]
        reason = words(hanging, reports)
        lines = [f"{self.program}: {reason}: {what}"]
        lines += [f"  rank {rank}: {line}" for rank in hanging for line in reports[rank].stack.splitlines()]
        print("\n".join(lines), file=sys.stderr, flush=True)
        self._verdict = reason[:LONGEST_REASON], {"wait": [], "end": list(reports), "drop": hanging}[action]

    def _end_if_listed(self, reason: str, ranks: list[int]) -> None:
        """Let the rank end if it must, by force if it does not; with it ends this process."""
        if self.rank not in ranks:
            return
        if self.action == "end":
            self.ends_run = True
            _tell_rank("end", reason)
            time.sleep(self._grace_seconds)
        with suppress(OSError):  # it has ended
            os.kill(self.process, signal.SIGKILL)

    def _own_report(self) -> Report:
        board, state = self._board, process_state(self.process)
        is_stopped = state in STOPPED
        if not is_stopped:
            self._ran_at = self._now
        since = self._ran_at if is_stopped else max(board.moved_at, self._moved_at)
        report = Report(
            host=os.uname().nodename,
            process=self.process,
            activity=board.activity,
            updates=board.updates,
            idle_seconds=max(0.0, self._now - since),  # it may have moved since the tick began
            slowest_seconds=board.slowest_seconds,
            state=state,
            failure=board.failure.decode(),
        )
        if not is_stopped and not is_stuck(report, stall_seconds=self.stall_seconds):
            self._own_stack = ""
        elif not self._own_stack:
            self._own_stack = (not is_stopped and self._python_stack()) or self._place_in_kernel(state)
        return replace(report, stack=self._own_stack)

    def _python_stack(self) -> str:
        """Return where the rank is in its program; empty: it does not answer."""
        with suppress(OSError):
            os.ftruncate(self.stack, 0)
            os.lseek(self.stack, 0, os.SEEK_SET)
            os.kill(self.process, signal.SIGUSR2)  # the rank's faulthandler writes it
            time.sleep(self.tick_seconds / 2)
        lines = os.pread(self.stack, MOST_BYTES // 2, 0).decode(errors="replace").splitlines()
        return "\n".join(line.strip() for line in lines if line.strip().startswith("File"))

    def _place_in_kernel(self, state: str) -> str:
        function = ""
        with suppress(OSError):
            function = Path(f"/proc/{self.process}/wchan").read_text().strip("0\n")
        return f"in the kernel: state {state}" + (f", {function}" if function else "")


def _tell_rank(what: str, reason: str) -> None:
    with suppress(BrokenPipeError):  # it has ended
        print(json.dumps({what: reason}), flush=True)


def end_launcher(process: int, *, patience_seconds: float = LAUNCHER_SECONDS) -> None:
    """End a process by force, if it is `mpirun` and does not end by itself: it waits for its daemon on a dead host."""
    try:
        program = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
    except OSError:
        return
    if Path(program).name not in LAUNCHERS:
        return
    last = time.monotonic() + patience_seconds
    while process_state(process) not in ENDED:
        if time.monotonic() > last:
            # With what it has started to reach other hosts, which would keep its output open.
            children = [int(path.name) for path in Path("/proc").glob("[0-9]*") if parent_of(int(path.name)) == process]
            for number in (process, *children):
                with suppress(OSError):
                    os.kill(number, signal.SIGKILL)
            return
        time.sleep(0.2)


def main() -> None:
    """Watch as the standard input says, until it ends."""
    launcher, watcher = parent_of(os.getppid()), None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a launcher's, for the rank
    port = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    port.bind(("", 0))
    try:
        print(port.getsockname()[1], flush=True)
    except BrokenPipeError:  # its rank has ended meanwhile
        os._exit(0)
    for line in sys.stdin:
        if watcher:
            watcher.has_successor.set()
        watcher = Watcher(port=port, **json.loads(line))
        threading.Thread(target=watcher.run, daemon=True).start()
    if watcher:
        watcher.say_goodbye()
        if watcher.ends_run:
            end_launcher(launcher)
    os._exit(0)
