"""Run several commands at once, one for each host, each to its end or to a limit: never a hang."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

LEFT_SECONDS = 2  # for the last words of a command that was killed


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a command on a host ended.

    Attributes:
        host: as the caller names it.
        code: its exit code; None: it was ended at the limit.
        seconds: how long it took.
    """

    host: str
    code: int | None
    stdout: str
    stderr: str
    seconds: float

    @property
    def last_line(self) -> str:
        """What it said last, mostly the reason of its end."""
        lines = [line.strip() for line in (self.stderr or self.stdout).splitlines() if line.strip()]
        return lines[-1] if lines else "no output"


def run_for_hosts(commands: Mapping[str, Sequence[str]], *, limit_seconds: float) -> dict[str, Outcome]:
    """Run one command for each host, all at once; return host -> how it ended, in the order given.

    Whatever ends this call ends the commands too, with all that they have started on this machine.

    Args:
        commands: host -> words.
        limit_seconds: after which a command is killed.
    """
    running: list[subprocess.Popen[str]] = []
    ended = threading.Event()
    with ThreadPoolExecutor(max(1, len(commands))) as pool:
        try:
            futures = [
                pool.submit(_run, host, words, limit_seconds, running, ended) for host, words in commands.items()
            ]
            return {future.result().host: future.result() for future in futures}
        except BaseException:
            ended.set()
            for process in running:
                _kill(process)
            raise


def _run(
    host: str,
    words: Sequence[str],
    limit_seconds: float,
    running: list[subprocess.Popen[str]],
    ended: threading.Event,
) -> Outcome:
    began = time.monotonic()
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**os.environ, "LC_ALL": "C"},  # messages in the words that are known
            start_new_session=True,  # so that its whole group can be killed
        )
    except OSError as error:
        text = f"{words[0]}: {error.strerror}"
        return Outcome(host=host, code=127, stdout="", stderr=text, seconds=0.0)
    running.append(process)
    if ended.is_set():  # while it was being started, too late to be killed with the others
        _kill(process)
    code: int | None = None
    try:
        stdout, stderr = process.communicate(timeout=limit_seconds)
        code = process.returncode
    except subprocess.TimeoutExpired:
        _kill(process)
        stdout, stderr = _what_is_left(process)
    return Outcome(host=host, code=code, stdout=stdout, stderr=stderr, seconds=time.monotonic() - began)


def _what_is_left(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Return what a killed command has said; a process that left its session may keep the pipes open."""
    try:
        return process.communicate(timeout=LEFT_SECONDS)
    except subprocess.TimeoutExpired:
        return "", "it left processes behind that do not end"


def _kill(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
