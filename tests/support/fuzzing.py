"""Damaged and hostile input for every reader: an answer or one line for people, in bounded time, nothing written.

Hypothesis changes valid input at random, as often as its profile says (`conftest.py`).
"""

import json
import resource
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common.errors import UserError

MOST_SECONDS = 10.0  # for one file, on a busy machine
MOST_MEMORY = 2 * 2**30  # bytes that a reader may take; of a file that is larger it says so

# Text that readers have stumbled over elsewhere.
ODD_TEXT = [
    b"",
    b"\x00",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"NaN",
    b"Infinity",
    b"1e999",
    b"-1",
    b"9" * 5000,
    b"[" * 10_000,
]
ODD_TEXT += [b'{"a":' * 10_000, b"\\ud800", b"null", b"true", b'""', b"[]", b"{}", b"../../etc", b"\r\n", b"'"]
ODD_TEXT += [b"%s{0}$HOME"]
ODD_VALUES = [None, True, -1, 0, 1e308, float("nan"), "", "x" * 10_000, [], {}, [[]], {"a": None}, 10**400]

ODD_NAMES = ("zero\0byte.toml", "n" * 300 + ".toml", "half\ud800.toml")  # that no file can have

PLACES = st.integers(0, 1 << 20)
CHANGES = st.one_of(
    st.tuples(st.just("flip"), PLACES, st.integers(1, 255)),
    st.tuples(st.just("cut"), PLACES, st.just(0)),
    st.tuples(st.just("drop"), PLACES, st.integers(1, 200)),
    st.tuples(st.just("insert"), PLACES, st.sampled_from(ODD_TEXT)),
    st.tuples(st.just("value"), PLACES, st.sampled_from(ODD_VALUES)),
)


@dataclass(frozen=True)
class Reader:
    """A reader of files.

    Attributes:
        write: puts a valid file into a folder and returns its path.
        read: what reads it, or the folder that `given` names.
        allowed: exceptions that callers turn into a line.
        given: function of the file's path that returns what the reader is given.
        cost: examples are divided by it, for a slow reader.
        zeros_follow: whether zero bytes after the file belong to it.
        odd_names: of files that do not exist.
    """

    name: str
    write: Callable[[Path], Path]
    read: Callable[[Path], Any]
    allowed: tuple[type[Exception], ...] = (UserError,)
    given: Callable[[Path], Path] = Path
    cost: int = 1
    zeros_follow: bool = False
    odd_names: tuple[str, ...] = ODD_NAMES


def changed(content, changes):
    """Return a file's content after some changes, at places modulo its length."""
    for what, place, how in changes:
        at = place % (len(content) + 1)
        if what == "flip" and content:
            at %= len(content)
            content = content[:at] + bytes([content[at] ^ how]) + content[at + 1 :]
        elif what == "cut":
            content = content[:at]
        elif what == "drop":
            content = content[:at] + content[at + how :]
        elif what == "insert":
            content = content[:at] + how + content[at:]
        elif what == "value":
            content = with_other_value(content, place, how)
    return content


def with_other_value(content, place, value):
    """Return JSON, or lines of it, with one of its values replaced; other content as it is."""
    spots = []

    def collect(node):
        for key, inner in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
            spots.append((node, key))
            collect(inner)

    try:
        lines = [json.loads(line) for line in content.splitlines()] if content.count(b"\n{") else [json.loads(content)]
        collect(lines)
        node, key = spots[place % len(spots)]
        node[key] = value
        return b"\n".join(json.dumps(line).encode() for line in lines) + b"\n"
    except (RecursionError, ValueError):
        return content


@contextmanager
def one_line(allowed=(UserError,)):
    """Fail if what is done meanwhile takes long, or ends in anything but success or a line."""
    began = time.monotonic()
    try:
        yield
    except allowed as error:
        assert "\n" not in str(error), error
        assert len(str(error)) < 5000, str(error)[:300]
    assert time.monotonic() - began < MOST_SECONDS


@contextmanager
def in_bounds():
    """Fail if what is done meanwhile takes long, or ask for much memory and get none."""
    limits = resource.getrlimit(resource.RLIMIT_DATA)
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + MOST_MEMORY, limits[1]))
    began = time.monotonic()
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, limits)
    assert time.monotonic() - began < MOST_SECONDS


def try_each(values, function, *, times=1, cost=1):
    """Call a function with drawn values, so many times as often as the profile says, or of a slow one fewer times."""

    @settings(
        max_examples=max(1, times * settings().max_examples // cost),
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(values)
    def try_them(value):
        function(value)

    try_them()


def try_damaged(valid, function, *, cost=1):
    """Call a function with odd content, and with valid content that is changed at random."""
    for content in ODD_TEXT:
        function(content)
    changes = st.lists(CHANGES, min_size=1, max_size=4)
    try_each(changes, lambda drawn: function(changed(valid, drawn)), cost=cost)


def check_reader(reader, folder):
    """Read the valid file, which is an answer; then damaged ones, one of 10 GB, and names that no file can have.

    Nothing else than an answer or a line may come of them, no file and no change of one.
    """
    file = reader.write(folder)
    given_path, valid = reader.given(file), file.read_bytes()
    files = sorted(folder.rglob("*"))

    def check(content, allowed=reader.allowed):
        file.write_bytes(content)
        with one_line(allowed):
            reader.read(given_path)
        assert sorted(folder.rglob("*")) == files
        assert file.read_bytes() == content

    check(valid, allowed=())
    try_damaged(valid, check, cost=reader.cost)
    file.write_bytes(valid)
    with file.open("r+b") as enlarged:
        enlarged.truncate(10 * 2**30)  # it takes no place on the disk
    refused = suppress(*reader.allowed) if reader.zeros_follow else pytest.raises(reader.allowed, match=r"^[^\n]+\Z")
    with in_bounds(), refused:
        reader.read(given_path)
    for name in reader.odd_names:
        with one_line((*reader.allowed, OSError)):  # of which `run_command` makes a line, too
            reader.read(folder / name)
