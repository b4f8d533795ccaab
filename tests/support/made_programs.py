"""Programs that would be there on another machine, made for a test: calls are written down and answered from a list."""

import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psutil

_PROGRAM = """#!{python} -S
import json, os, sys, time
from pathlib import Path
here = Path({folder!r})
call = {{"words": [{name!r}, *sys.argv[1:]], "folder": os.getcwd(), "variables": dict(os.environ)}}
with (here / "calls.jsonl").open("a") as calls:
    calls.write(json.dumps(call) + "\\n")
for answer in json.loads((here / {name!r}).with_suffix(".answers").read_text()):
    if set(answer["to"]) <= set(sys.argv[1:]):
        time.sleep(answer["seconds"])
        sys.stdout.write(answer["out"])
        sys.stderr.write(answer["err"])
        sys.stdout.flush()
        if answer["then"]:
            os.execvp("bash", ["bash", "-c", answer["then"], str(here / {name!r}), *sys.argv[1:]])
        sys.exit(answer["code"])
"""


def add_script(path, script):
    """Write an executable shell script; return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def is_running(process):
    """Return whether a process of this number still runs; one that ended and was not waited for does not."""
    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextmanager
def ended_with_the_test(process):
    """Kill what was started in a session of its own, with all of that session, where a test has not ended it."""
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a program prints, and its exit code, if all words of `to` are in the call, after `seconds`.

    `then`: a script of bash that takes its place; "$0" is the program's path, and the words are its arguments.
    """

    to: Sequence[str] = ()
    out: str = ""
    err: str = ""
    code: int = 0
    seconds: float = 0.0
    then: str = ""


class MadePrograms:
    """Programs in a folder, to be put first on PATH."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, name, *answers):
        """Make a program, or give it other answers: the first that fits counts; without one it is silent."""
        path = self.folder / name
        path.with_suffix(".answers").write_text(json.dumps([vars(answer) for answer in answers]))
        path.write_text(_PROGRAM.format(python=sys.executable, folder=str(self.folder), name=name))
        path.chmod(0o755)

    def first_on_path(self, monkeypatch):
        """Let the programs be found before all others."""
        monkeypatch.setenv("PATH", f"{self.folder}:{os.environ['PATH']}")

    def calls(self):
        """Return all calls so far, the program's name first."""
        return [call["words"] for call in self.records()]

    def records(self):
        """Return all calls so far: `words`, `folder`, `variables`."""
        path = self.folder / "calls.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
