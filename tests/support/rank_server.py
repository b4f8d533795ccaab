"""Ranks that stay alive between tests: one start of a framework does the jobs of all test files.

A start of a framework costs more than most of what tests do with it. The broker, threads of the process that runs
pytest, keeps servers: the ranks of one start (`rank_worker.py`), which wait for jobs. Tests, in this process or in
those of xdist, send it jobs over a socket (`do`). A server is started on first use. At most `MOST_LIVE` are live: the
one that has been idle longest makes room. One that dies, or whose job takes too long, is ended; the error names the
job, and the next job has a new server.

This module is a plugin of pytest (`conftest.py`).
"""

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from processes import environment, launcher_command

ADDRESS = "TWINS_RANKS"  # variable with the broker's socket
MOST_LIVE = 4
WAKEFUL_SECONDS = 5.0  # that a server whose ranks never sleep waits for its next job
START_SECONDS = 300.0  # until all ranks of a server have imported the framework, on a busy machine
WORKER = Path(__file__).with_name("rank_worker.py")


@dataclass(frozen=True)
class Start:
    """What a process fixes for life; jobs that agree in it share a server.

    Attributes:
        framework: torch or keras.
        launcher: see `launcher_command`.
        threads: of each rank; None: PyTorch, which can change them.
        onednn: as `--onednn`; TensorFlow reads it once.
        parts: ranks that hold a copy of the model, where there are several copies: Horovod's process sets.
        replicas: of TensorFlow's devices.
        timeline: whether Horovod has to know of a timeline.
        multiworker: whether TensorFlow has to know of its own collective operations.
    """

    framework: str
    launcher: str = "none"
    threads: int | None = None
    onednn: str = "on"
    parts: int = 1
    replicas: int = 1
    timeline: bool = False
    multiworker: bool = False

    @property
    def size(self):
        return 1 if self.launcher == "none" else int(self.launcher[-1])

    @property
    def sleeps(self):
        """Whether idle ranks take no time of a core; with process sets one waits for the other in MPI all the time."""
        return self.parts == 1

    @property
    def variables(self):
        """The environment of the ranks. Horovod's thread looks rarely, so that an idle rank takes no time of a core."""
        looking = {"HOROVOD_TWINS_IDLE_MS": "250"} if self.sleeps else {}
        return environment() | looking | {"PYTHONUNBUFFERED": "1"}


class ServerError(AssertionError):
    """The ranks of a server died or hung in a job."""


def do(start, job, *, seconds):
    """Let the ranks of a start do a job; return what each of them answers, in the order of ranks.

    Args:
        start: of the ranks.
        job: for `rank_worker.py`; its "name" is that in error messages.
        seconds: limit of the job, without the start of a server.

    Raises:
        ServerError: the ranks did not start, died or took too long.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ[ADDRESS])
        answer = _ask(connection, {"start": asdict(start), "job": job, "seconds": seconds})
    if "error" in answer:
        raise ServerError(answer["error"])
    return answer["ranks"]


def _ask(connection, request):
    with connection.makefile("rw") as file:
        file.write(json.dumps(request) + "\n")
        file.flush()
        line = file.readline()
    return json.loads(line) if line else {"error": "the broker of the servers of ranks has ended"}


class Server:
    """The ranks of one start."""

    def __init__(self, number, start, *, broker):
        self.start = start
        self.busy = True
        self.idle_since = time.monotonic()
        self.ranks = {}  # -> its connection and process
        self.output = broker.folder / f"server-{number}"
        command = [*launcher_command(start.launcher), sys.executable, str(WORKER)]
        arguments = [str(broker.address), str(number), json.dumps(asdict(start))]
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                [*command, *arguments],
                cwd=broker.folder,
                env=start.variables | {"TMPDIR": str(broker.folder)},  # ranks are killed, and leave their files
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def is_alive(self):
        return self.process.poll() is None

    def do(self, job, *, seconds):
        """Send a job to all ranks and wait for their answers.

        Raises:
            ServerError: a rank has died, or the job took too long.
        """
        message = json.dumps(job).encode() + b"\n"
        try:
            for connection, _ in self.ranks.values():
                connection.sendall(message)
            return self._answers(deadline=time.monotonic() + seconds)
        except TimeoutError:
            raise ServerError(self._failure(f"hung: the job {job['name']} took more than {seconds:.0f} s")) from None
        except OSError:
            raise ServerError(self._failure(f"died in the job {job['name']}")) from None

    def _answers(self, *, deadline):
        """Wait for the answers of all ranks, or for an error that is no user's: the others may wait for that rank."""
        waiting = {connection: rank for rank, (connection, _) in self.ranks.items()}
        contents, answers = dict.fromkeys(self.ranks, b""), {}
        while waiting:
            ready, _, _ = select.select([*waiting], [], [], max(deadline - time.monotonic(), 0))
            if not ready:
                raise TimeoutError
            for connection in ready:
                rank, part = waiting[connection], connection.recv(2**20)
                if not part:
                    raise ConnectionResetError
                contents[rank] += part
                if contents[rank].endswith(b"\n"):
                    answers[rank] = json.loads(contents[rank])
                    del waiting[connection]
            if any(answer["code"] == 1 for answer in answers.values()):
                break
        return [answers[rank] for rank in sorted(answers)]

    def _failure(self, what):
        tail = self.output.read_text(errors="replace")[-3000:]
        return f"{self.start.framework} on {self.start.launcher}: the server of ranks {what}.\n{tail}"

    def end(self):
        processes = [process for _, process in self.ranks.values()]
        if self.is_alive():
            processes += [child.pid for child in psutil.Process(self.process.pid).children(recursive=True)]
        for connection, _ in self.ranks.values():
            connection.close()  # idle ranks end by themselves
        for process in {self.process.pid, *processes}:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.process.wait()


class Broker:
    """Keeps servers and hands them jobs; one thread for each connection."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="ranks-"))
        self.address = self.folder / "socket"
        self.started = self.done = 0
        self._servers = {}
        self._by_number = {}
        self._changed = threading.Condition()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.address))
        self._listener.listen(64)
        threading.Thread(target=self._accept, name="ranks", daemon=True).start()

    def close(self):
        self._listener.close()
        with self._changed:
            for server in self._servers.values():
                server.end()
            self._servers.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _accept(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        """Take a rank that has started, or do a job for a test."""
        reader = connection.makefile("r")
        line = reader.readline()
        if not line:
            return
        request = json.loads(line)
        if "rank" in request:
            with self._changed:
                server = self._by_number[request["server"]]
                server.ranks[request["rank"]] = (connection, request["process"])
                self._changed.notify_all()
            return
        try:
            answer = {"ranks": self._do(Start(**request["start"]), request["job"], seconds=request["seconds"])}
        except Exception as error:  # the test shows it
            answer = {"error": f"{error}" if isinstance(error, ServerError) else repr(error)}
        with suppress(OSError):  # the test waits no longer
            connection.sendall(json.dumps(answer).encode() + b"\n")
        connection.close()

    def _do(self, start, job, *, seconds):
        server = self._take(start)
        try:
            answers = server.do(job, seconds=seconds)
        except ServerError:
            self._end(server)
            raise
        if any(answer["ends_server"] for answer in answers):
            self._end(server)
        else:
            with self._changed:
                server.busy, server.idle_since = False, time.monotonic()
                self._changed.notify_all()
            if not start.sleeps:
                timer = threading.Timer(WAKEFUL_SECONDS, self._end_if_idle, (server, server.idle_since))
                timer.daemon = True
                timer.start()
        return answers

    def _end_if_idle(self, server, since):
        """End a server that has done nothing since then."""
        with self._changed:
            if not server.busy and server.idle_since == since and self._servers.get(server.start) is server:
                self._drop(server)

    def _take(self, start):
        """Return a server that does nothing, and is now busy; start it if needed."""
        with self._changed:
            while True:
                server = self._servers.get(start)
                if server and not server.busy and not server.is_alive():
                    self._drop(server)
                    continue
                if server and not server.busy:
                    server.busy = True
                    self.done += 1
                    return server
                if not server and self._has_room():
                    break
                self._changed.wait(timeout=1.0)
            self.started += 1
            self.done += 1
            server = self._servers[start] = self._by_number[self.started] = Server(self.started, start, broker=self)
        self._wait_for_ranks(server)
        return server

    def _has_room(self):
        """Return whether one more server may start; end the one that has been idle longest if that makes room."""
        if len(self._servers) < MOST_LIVE:
            return True
        idle = [server for server in self._servers.values() if not server.busy]
        if idle:
            self._drop(min(idle, key=lambda server: server.idle_since))
        return bool(idle)

    def _wait_for_ranks(self, server):
        deadline = time.monotonic() + START_SECONDS
        with self._changed:
            while len(server.ranks) < server.start.size:
                if time.monotonic() > deadline or not server.is_alive():
                    self._drop(server)
                    raise ServerError(server._failure("did not start"))
                self._changed.wait(timeout=0.2)

    def _end(self, server):
        with self._changed:
            self._drop(server)

    def _drop(self, server):
        """End a server; the caller holds the lock."""
        server.end()
        if self._servers.get(server.start) is server:
            del self._servers[server.start]
        self._changed.notify_all()


# The plugin: the broker lives in the process that runs pytest, beside the workers of xdist.

_broker = None


def pytest_configure(config):
    global _broker
    if ADDRESS not in os.environ and not config.option.collectonly:
        _broker = Broker()
        os.environ[ADDRESS] = str(_broker.address)


def pytest_unconfigure():
    global _broker
    if _broker:
        _broker.close()
        _broker = None
        del os.environ[ADDRESS]


def pytest_terminal_summary(terminalreporter):
    if _broker and _broker.done:
        terminalreporter.write_line(f"servers of ranks: {_broker.started} starts for {_broker.done} jobs")
