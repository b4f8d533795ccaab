"""`make lock`: what it writes again, and what it refuses."""

import shutil
import sys
from pathlib import Path

import pytest
from made_programs import add_script

from common.errors import UserError
from launch.installation import lock
from launch.installation.packages import Package, as_lock, read_lock


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Copies of both files, which it writes instead."""
    for name in ("FILE", "FOR_TESTS"):
        monkeypatch.setattr(lock, name, Path(shutil.copy(getattr(lock, name), tmp_path / name)))
    monkeypatch.setattr(lock, "ROOT", tmp_path)
    shutil.copy(Path(__file__).resolve().parents[3] / "pyproject.toml", tmp_path)
    monkeypatch.setattr(sys, "argv", ["lock"])
    return lock.FILE, lock.FOR_TESTS


@pytest.mark.ci
def test_the_files_are_those_that_make_lock_writes(files):
    """Versions stay as long as they will do, and so do hashes: also PyTorch's, where no wheel of its own is at hand."""
    if not Path(sys.prefix, "bin", "uv").exists():
        pytest.skip("there is no uv in .venv, as pip could not get one")
    before = [path.read_text(encoding="utf-8") for path in files]
    lock.main()
    assert [path.read_text(encoding="utf-8") for path in files] == before


@pytest.fixture
def uv(tmp_path, monkeypatch):
    """Put a program in uv's place."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    return lambda script: add_script(tmp_path / "bin" / "uv", script)


PLACE = f"python_full_version < '3.14' and {lock.PLACE}"


@pytest.mark.parametrize(
    ("script", "line"),
    [
        (
            "echo error: No solution >&2; echo because >&2; exit 1",
            "uv finds no versions.* Received: error: No solution because$",
        ),
        (
            f"echo \"a==1 ; {PLACE.replace('3.14', '3.12')} \\\\\" > lock.txt; echo '    --hash=x' >> lock.txt",
            "one lock.*a ; ",
        ),
    ],
)
def test_needs_without_one_answer_for_all_pythons_are_one_line_and_change_nothing(script, line, files, uv):
    before = [path.read_text(encoding="utf-8") for path in files]
    uv(script)
    with pytest.raises(UserError, match=line) as error:
        lock.main()
    assert "\n" not in str(error.value)
    assert [path.read_text(encoding="utf-8") for path in files] == before


def test_a_wheel_at_hand_is_hashed_and_without_one_the_entry_stays(tmp_path):
    torch = Package(name="torch", version="2.0", hashes=("sha256:of-pypi",))
    kept = Package(name="torch", version="2.0+cpu", hashes=("sha256:kept",), groups=frozenset({"torch-cpu"}))
    assert lock.cpu_builds([torch], [], [tmp_path]) == []
    assert lock.cpu_builds([torch], [kept], [tmp_path]) == [kept]
    (tmp_path / "torch-2.0+cpu-cp311-cp311-linux_x86_64.whl").write_bytes(b"wheel")
    (tmp_path / "torch-2.1+cpu-cp311-cp311-linux_x86_64.whl").write_bytes(b"another")
    (found,) = lock.cpu_builds([torch], [kept], [tmp_path])
    assert (found.version, len(found.hashes)) == ("2.0+cpu", 2)
    path = tmp_path / "lock.txt"
    path.write_text(as_lock([found]), encoding="utf-8")
    assert read_lock(path) == (found,)
