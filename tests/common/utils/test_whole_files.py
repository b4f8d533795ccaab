"""Files that are read whole: also those that grow, and those without a size."""

import os
from pathlib import Path

import pytest

from common.utils import whole_files
from common.utils.whole_files import read_bytes


def test_a_file_that_grows_while_it_is_read_is_read_to_its_end(tmp_path, monkeypatch):
    """Else a run that trains would have half a line at the end of its epochs."""
    file = tmp_path / "epochs.jsonl"
    file.write_bytes(b"one\n")
    look = os.fstat

    def looked_at(descriptor):
        state = look(descriptor)
        with file.open("ab") as more:
            more.write(b"two\n")
        return state

    monkeypatch.setattr(whole_files.os, "fstat", looked_at)
    assert read_bytes(file) == b"one\ntwo\n"


def test_a_file_without_a_size_is_read_up_to_the_limit(tmp_path, monkeypatch):
    assert read_bytes(Path("/proc/self/cmdline")) != b""
    monkeypatch.setattr(whole_files, "MOST_BYTES", 1000)
    with pytest.raises(OSError, match="File too large"):
        read_bytes(Path("/dev/zero"))
    large = tmp_path / "large"
    large.write_bytes(bytes(1001))
    with pytest.raises(OSError, match="File too large"):
        read_bytes(large)
