"""Files and folders are written whole or not at all, with the permissions that the umask leaves."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from common.utils.atomic import atomic_file, atomic_folder, make_executable, temporary_folder_beside, write_atomically


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o002, 0o664), (0o027, 0o640), (0o077, 0o600)])
def test_permissions_are_those_that_the_umask_leaves(tmp_path: Path, mask: int, mode: int) -> None:
    path = tmp_path / "file"
    with umask(mask):
        write_atomically(path, "text")
        assert path.stat().st_mode & 0o777 == mode
        with atomic_file(path) as temporary:  # as safetensors does, which replaces it by a file of `tempfile`
            private, name = tempfile.mkstemp(dir=tmp_path)
            os.close(private)
            Path(name).replace(temporary)
        assert path.stat().st_mode & 0o777 == mode
    make_executable(path)
    assert path.stat().st_mode & 0o777 == mode | (mode & 0o444) >> 2


def test_a_file_appears_whole_under_its_name(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with atomic_file(path) as temporary:
        temporary.write_bytes(b"whole")
        assert not path.exists() and temporary.parent == tmp_path
    assert path.read_bytes() == b"whole"
    write_atomically(path, "n\u00e4chster\n")
    assert path.read_text(encoding="utf-8") == "n\u00e4chster\n" and list(tmp_path.iterdir()) == [path]


def test_after_an_error_the_old_file_is_unchanged_and_nothing_else_remains(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), atomic_file(path) as temporary:
        temporary.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_folder_appears_whole_with_usual_permissions(tmp_path: Path) -> None:
    usual = tmp_path / "usual"
    usual.mkdir()
    path = tmp_path / ("x" * 250)  # a temporary name longer than this one would not be allowed
    with atomic_folder(path) as temporary:
        (temporary / "file").touch()
        assert not path.exists()
    assert (path / "file").exists() and path.stat().st_mode == usual.stat().st_mode
    assert sorted(tmp_path.iterdir()) == sorted([usual, path])


@pytest.mark.parametrize("write", [atomic_folder, temporary_folder_beside])
def test_after_an_error_no_folder_remains(write, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(KeyboardInterrupt), write(tmp_path / "folder") as temporary:
        (temporary / "file").touch()
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())
