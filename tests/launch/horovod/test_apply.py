"""The patches of Horovod: applied to the hash, once, or not at all."""

import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from launch.horovod import apply, build
from launch.installation.environment import Environment

BEFORE = {
    "core.cc": "".join(f"line {number}\n" for number in range(40)) + "a form feed \f in a line\nend\n",
    "cmake/list.txt": "one\ntwo\n",
    "untouched.txt": "as it was\n",
}
AFTER = BEFORE | {
    "core.cc": BEFORE["core.cc"].replace("line 3\n", "").replace("line 30\n", "line 30\nadded é\n") + "more\n",
    "cmake/list.txt": "two\nthree\n",
    "common/new.py": "print()\n",
}


def write(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8", newline="")


def read(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes().decode()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def git(folder, *words):
    settings = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "core.autocrlf=false")
    done = subprocess.run(["git", *settings, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture
def patches(tmp_path):
    """Two patches made by git, of which the second changes a file again; the source is in `source`."""
    made, folder = tmp_path / "made", tmp_path / "patches"
    folder.mkdir()
    git(tmp_path, "init", "-q", "made")
    for number, files in enumerate([BEFORE, AFTER, AFTER | {"core.cc": AFTER["core.cc"].replace("line 9\n", "")}]):
        write(made, files)
        git(made, "add", "-A")
        git(made, "commit", "-qm", "step")
        if number:
            patch = git(made, "diff", "--full-index", "HEAD~1", "HEAD")
            (folder / f"{number}.patch").write_text(f"Why it is needed\n\nUpstream: no.\n\n{patch}", encoding="utf-8")
    write(tmp_path / "source", BEFORE)
    shutil.rmtree(made / ".git")
    return folder


def test_patches_make_what_git_makes_and_are_applied_once(patches, tmp_path):
    assert sorted(apply.apply(tmp_path / "source", patches)) == ["cmake/list.txt", "common/new.py", "core.cc"]
    assert read(tmp_path / "source") == read(tmp_path / "made")
    with pytest.raises(apply.PatchError, match=r"not the file that 1\.patch is for.*Received: [0-9a-f]{40}"):
        apply.apply(tmp_path / "source", patches)
    assert read(tmp_path / "source") == read(tmp_path / "made")


@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        ("source/core.cc", "line 20\n", "line 20 \n", "core.cc is not the file"),  # far from all that is changed
        ("source/cmake/list.txt", "", None, "Received: no file"),
        ("patches/1.patch", "+three\n", "+four\n", "makes another file"),
        ("patches/2.patch", " line 8\n", " line 7\n", "2.patch makes another file"),
        ("patches/2.patch", "index ", "index 12..34\n", "lacks full hashes"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_written(file, old, new, words, patches, tmp_path):
    path = tmp_path / file
    if new is None:
        path.unlink()
    else:
        text = path.read_bytes().decode()
        assert old in text
        path.write_text(text.replace(old, new, 1), encoding="utf-8", newline="")
    before = read(tmp_path / "source")
    with pytest.raises(apply.PatchError, match=words):
        apply.apply(tmp_path / "source", patches)
    assert read(tmp_path / "source") == before


def test_the_program_says_what_is_wrong_in_one_line(tmp_path):
    for words, said in (([], "name the source folder"), ([tmp_path], "is not the file that 0001")):
        done = subprocess.run([sys.executable, apply.__file__, *words], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert done.stderr.startswith("apply.py: error: ") and said in done.stderr


@pytest.mark.ci
def test_the_published_source_can_be_patched_and_needs_only_what_is_pinned(tmp_path):
    command = [sys.executable, "-m", "pip", *build.download(tmp_path)]
    subprocess.run(command, capture_output=True, check=True, timeout=120)
    with tarfile.open(tmp_path / build.SDIST) as archive:
        archive.extractall(tmp_path, filter="data")
    source = tmp_path / f"horovod-{build.VERSION}"
    apply.apply(source)
    operations = (source / "horovod" / "tensorflow" / "mpi_ops.cc").read_text(encoding="utf-8")
    assert operations.index("inline GpuStreamHandle AsGpuStreamValue") < operations.index('stream_executor/stream.h"')
    lists = re.findall(r"^ *require_list(?: = |\.append)(.*)", (source / "setup.py").read_text(), flags=re.MULTILINE)
    needed = {name for text in lists for name in re.findall(r"'([a-z]+)[>=0-9.]*'", text)}
    assert needed, "what setuptools would fetch in the middle of a build, without pip's settings"
    assert needed <= Environment(root=Path(__file__).resolve().parents[3]).pins("base").keys()
    texts = (path.read_text(encoding="utf-8") for path in Path(source, "horovod").rglob("*.py"))
    assert not any("distutils" in text for text in texts), "Python 3.12 has none"
