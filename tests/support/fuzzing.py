"""Damaged and hostile input for every reader: an answer or one line for people, in bounded time, nothing written.

Valid input is changed at random by Hypothesis, from a fixed seed; `make fuzz` tries many more (TWINS_FUZZ_EXAMPLES),
others every day (TWINS_FUZZ_SEED).
"""

import json
import os
import resource
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from common.errors import UserError

EXAMPLES = int(os.environ.get("TWINS_FUZZ_EXAMPLES", "25"))  # of each reader
SEED = int(os.environ.get("TWINS_FUZZ_SEED", "1"))
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
ODD_TEXT += [
    b'{"a":' * 10_000,
    b"\\ud800",
    b"null",
    b"true",
    b'""',
    b"[]",
    b"{}",
    b"../../etc",
    b"\r\n",
    b"%s{0}$HOME",
    b"'",
]
ODD_VALUES = [None, True, -1, 0, 1e308, float("nan"), "", "x" * 10_000, [], {}, [[]], {"a": None}, 10**400]

CHANGES = st.one_of(
    st.tuples(st.just("flip"), st.integers(0, 1 << 20), st.integers(1, 255)),
    st.tuples(st.just("cut"), st.integers(0, 1 << 20), st.just(0)),
    st.tuples(st.just("drop"), st.integers(0, 1 << 20), st.integers(1, 200)),
    st.tuples(st.just("insert"), st.integers(0, 1 << 20), st.sampled_from(range(len(ODD_TEXT)))),
    st.tuples(st.just("value"), st.integers(0, 1 << 20), st.sampled_from(range(len(ODD_VALUES)))),
)


@dataclass(frozen=True)
class Reader:
    """A reader of files.

    Attributes:
        write: puts a valid file into a folder and returns its path, and what the reader is given.
        allowed: exceptions that callers turn into a line.
        cost: EXAMPLES are divided by it, for a slow reader.
    """

    name: str
    write: Callable[[Path], tuple[Path, Path]]
    read: Callable[[Path], Any]
    allowed: tuple[type[Exception], ...] = (UserError,)
    cost: int = 1


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
            content = content[:at] + ODD_TEXT[how] + content[at:]
        elif what == "value":
            content = with_other_value(content, place, ODD_VALUES[how])
    return content


def with_other_value(content, place, value):
    """Return JSON, or lines of it, with one of its values replaced; other content as it is."""
    try:
        lines = [json.loads(line) for line in content.splitlines()] if content.count(b"\n{") else [json.loads(content)]
    except (ValueError, RecursionError):
        return content
    spots = []

    def collect(node):
        for key, inner in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
            spots.append((node, key))
            collect(inner)

    try:
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


def check(reader, folder, content, *, file, given_path):
    """Read the content; fail on anything but an answer or a line, on long waits and on files that appear."""
    file.write_bytes(content)
    before = sorted(folder.rglob("*"))
    with one_line(reader.allowed):
        reader.read(given_path)
    assert sorted(folder.rglob("*")) == before
    assert file.read_bytes() == content


def check_damaged(reader, folder):
    """Read the valid file, which is an answer, then some that are changed at random."""
    file, given_path = reader.write(folder)
    valid = file.read_bytes()
    check(reader, folder, valid, file=file, given_path=given_path)
    reader.read(given_path)
    try_changes(
        valid, lambda content: check(reader, folder, content, file=file, given_path=given_path), cost=reader.cost
    )


def check_odd(reader, folder, contents=tuple(ODD_TEXT)):
    """Read files that hold nothing else."""
    file, given_path = reader.write(folder)
    for content in contents:
        check(reader, folder, content, file=file, given_path=given_path)


def try_each(values, one, *, examples=EXAMPLES):
    """Call a function with drawn values, of the same seed in each run."""

    @seed(SEED)
    @settings(max_examples=examples, database=None, suppress_health_check=list(HealthCheck))
    @given(values)
    def try_them(value):
        one(value)

    try_them()


def try_changes(valid, one, *, cost=1):
    """Call a function with valid content that is changed at random, EXAMPLES times, or of a slow one fewer times."""
    changes = st.lists(CHANGES, min_size=1, max_size=4)
    try_each(changes, lambda chosen: one(changed(valid, chosen)), examples=max(1, EXAMPLES // cost))


def check_sparse(reader, folder):
    """Read a file of 10 GB that takes no place on the disk: one line, in little memory."""
    file, given_path = reader.write(folder)
    with file.open("r+b") as enlarged:
        enlarged.truncate(10 * 2**30)
    with in_bounds(), pytest.raises(reader.allowed, match=r"^[^\n]+\Z"):
        reader.read(given_path)


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
