"""Files and folders are written whole or not at all, with the permissions that the umask leaves."""

import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from subprocess import PIPE

import pytest

from common.errors import UserError, user_errors
from common.utils.atomic import atomic_file, atomic_folder, make_executable, temporary_folder_beside, write_atomically
from common.utils.paths import ROOT


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o002, 0o664), (0o027, 0o640), (0o077, 0o600)])
def test_permissions_are_those_that_the_umask_leaves(tmp_path, mask, mode):
    path, before = tmp_path / "file", os.umask(mask)
    try:
        write_atomically(path, "text")
        assert path.stat().st_mode & 0o777 == mode
        with atomic_file(path) as temporary:  # as safetensors does, which replaces it by a file of `tempfile`
            private, name = tempfile.mkstemp(dir=tmp_path)
            os.close(private)
            Path(name).replace(temporary)
        assert path.stat().st_mode & 0o777 == mode
    finally:
        os.umask(before)
    make_executable(path)
    assert path.stat().st_mode & 0o777 == mode | (mode & 0o444) >> 2


def test_a_file_appears_whole_under_its_name_or_the_old_one_is_unchanged(tmp_path):
    path = tmp_path / "file"
    with atomic_file(path) as temporary:
        temporary.write_bytes(b"whole")
        assert not path.exists() and temporary.parent == tmp_path
    assert path.read_bytes() == b"whole"
    write_atomically(path, "n\u00e4chster\n")
    with pytest.raises(KeyboardInterrupt), atomic_file(path) as temporary:
        temporary.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text(encoding="utf-8") == "n\u00e4chster\n" and list(tmp_path.iterdir()) == [path]


def test_what_another_host_may_still_be_filling_is_left_to_it(tmp_path, monkeypatch):
    """Its lock is not seen here where a file system's locks are of a host alone."""
    path = tmp_path / "data"
    monkeypatch.setattr("platform.node", lambda: "other")
    with temporary_folder_beside(path) as theirs:
        pass
    theirs.mkdir()
    monkeypatch.setattr("platform.node", lambda: "here")
    with temporary_folder_beside(path):
        assert theirs.exists()
    monkeypatch.setattr("platform.node", lambda: "other")
    with temporary_folder_beside(path):
        assert not theirs.exists()


def test_a_folder_appears_whole_with_usual_permissions_or_not_at_all(tmp_path):
    usual = tmp_path / "usual"
    usual.mkdir()
    path = tmp_path / ("x" * 250)  # a temporary name longer than this one would not be allowed
    with atomic_folder(path) as temporary:
        (temporary / "file").touch()
        assert not path.exists()
    assert (path / "file").exists() and path.stat().st_mode == usual.stat().st_mode
    for make in (atomic_folder, temporary_folder_beside):
        with pytest.raises(KeyboardInterrupt), make(tmp_path / "folder") as temporary:
            (temporary / "file").touch()
            raise KeyboardInterrupt
    assert sorted(tmp_path.iterdir()) == sorted([usual, path])


LEAVES_A_FOLDER = """
import os, pathlib, signal, sys
from common.utils.atomic import temporary_folder_beside
with temporary_folder_beside(pathlib.Path(sys.argv[1])) as folder:
    (folder / "file").touch()
    if sys.argv[2] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    print("there", flush=True)
    sys.stdin.read()
"""


def test_the_folder_of_a_killed_process_is_removed_and_that_of_a_living_one_is_not(tmp_path):
    path = tmp_path / "made[1]"
    command = [sys.executable, "-c", LEAVES_A_FOLDER]
    assert subprocess.run([*command, str(tmp_path / "made"), "killed"], cwd=ROOT, timeout=120).returncode == -9
    with subprocess.Popen([*command, str(path), ""], cwd=ROOT, stdin=PIPE, stdout=PIPE, text=True) as living:
        assert living.stdout and living.stdout.readline() == "there\n"
        assert subprocess.run([*command, str(path), "killed"], cwd=ROOT, timeout=120).returncode == -9
        assert len(list(tmp_path.glob(".*/file"))) == 3
        with temporary_folder_beside(path) as folder:
            assert len(list(tmp_path.glob(".*/file"))) == 2  # of "made" and of the living one
            assert not list(folder.iterdir())
        living.communicate("")
    assert [left.name.partition(".partial")[0] for left in tmp_path.iterdir()] == [".made"]


@pytest.mark.parametrize(
    ("make", "number", "is_named", "remedy"),
    [
        (atomic_file, errno.ENOSPC, True, "Free some space"),
        (atomic_file, errno.ENOSPC, False, "Free some space"),  # as a failed write is
        (atomic_folder, errno.EROFS, True, "Name a folder that can be written"),
    ],
)
def test_an_error_names_the_file_that_users_know(make, number, is_named, remedy, tmp_path):
    with pytest.raises(UserError) as error, user_errors("writing"), make(tmp_path / "weights") as temporary:
        raise OSError(number, os.strerror(number), str(temporary) if is_named else None)
    assert f"Received: {tmp_path}/weights. {remedy}" in str(error.value)


def test_an_error_names_a_file_of_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    named = pytest.raises(UserError, match=r"Received: weights\. ")
    with named, user_errors("writing"), atomic_file(Path("weights")) as temporary:
        raise OSError(errno.EACCES, "Permission denied", str(temporary))
