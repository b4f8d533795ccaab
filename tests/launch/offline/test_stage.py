"""Nodes without internet: a bundle is packed, checked and set up from, with no network and nothing of the project.

Most bundles here are of a checkout of a few files. What a command line refuses is in `tests/refusals/launch.toml`.
"""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from safetensors.numpy import save_file

from common.__main__ import main as common_main
from common.data.loading import load_dataset
from common.errors import EXIT_CODE_USER_ERROR
from common.run_folder import revision
from common.utils import cache_folder as cache
from launch import __main__ as launch_program
from launch.horovod import build as horovod_build
from launch.installation.environment import PACKED, Environment, pack, remembered
from launch.offline import bundle as bundle_format
from launch.offline import stage, unstage

ROOT = Path(__file__).resolve().parents[3]
BASE_PYTHON = getattr(sys, "_base_executable", sys.executable)
LISTS = tomllib.loads(Path(__file__).with_name("lists.toml").read_text())["refused"]
HANG_SECONDS = 300
# Root makes a network namespace as it is; others need one of users around it.
WITHOUT_NETWORK = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--map-root-user"])]
FEW = (".ci/run", ".gitignore", "LICENSE", "README.md", "common/utils/cache_folder.py", "launch/offline/unstage.py",
       "launch/installation/lock.txt")  # fmt: skip


def copy_project(folder, wanted):
    """Copy the files of the working tree whose names are wanted."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    for name in names:
        if name and wanted(name) and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)


def commit(folder):
    """Make a folder a checkout of git, all committed; return it."""
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "all of it")
    return folder


def git(folder, *arguments):
    """Run git as some user; return what it printed."""
    somebody = ["-c", "user.name=Somebody", "-c", "user.email=somebody@localhost"]
    done = subprocess.run(["git", *somebody, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A checkout of a few files, one of them larger than `small_disk`."""
    folder = tmp_path_factory.mktemp("checkout") / "project"
    copy_project(folder, lambda name: name.startswith(FEW))
    (folder / "large").write_bytes(bytes(400_000))
    return commit(folder)


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    file = tmp_path_factory.mktemp("weights") / "weights.safetensors"
    save_file({"weight": np.arange(6.0)}, file)
    return file


@pytest.fixture
def project(checkout, monkeypatch):
    """The same checkout as the one from which `stage` packs."""
    monkeypatch.setattr(stage, "ROOT", checkout)
    return checkout


@pytest.fixture
def whole_project(tmp_path_factory, monkeypatch):
    """All of the project but analysis and tests, half of the files, as the checkout from which `stage` packs."""
    folder = tmp_path_factory.mktemp("whole") / "project"
    copy_project(folder, lambda name: not name.startswith(("analysis/", "tests/")))
    monkeypatch.setattr(stage, "ROOT", folder)
    return commit(folder)


@pytest.fixture(scope="module")
def bundle(checkout, weights, tmp_path_factory):
    """A bundle of those few files and weights, as a folder."""
    out = tmp_path_factory.mktemp("bundle") / "bundle"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage, "ROOT", checkout)
        staged(out, "--weights", weights)
    return out


@pytest.fixture
def own(bundle, tmp_path):
    """A copy of it, to be damaged."""
    return Path(shutil.copytree(bundle, tmp_path / "own" / "bundle"))


def run_launch(*arguments, code=0):
    """Run a command of `python -m launch` in this process; assert its exit code."""
    assert launch_program.main([str(argument) for argument in arguments]) == code


def staged(out, *words):
    """Pack a bundle without wheels; return its manifest."""
    run_launch("stage", "-o", out, "--no-wheels", *words)
    return bundle_format.read_manifest(out)


def unstaged(bundle, folder):
    """Set up from a bundle in a new folder, with a cache of its own beside it; return the folder."""
    run_launch("unstage", bundle, "--folder", folder, "--cache-folder", folder.parent / "cache")
    return folder


def refused(capsys, *arguments):
    """Run a command that has to be refused; return the one line that says why."""
    capsys.readouterr()
    run_launch(*arguments, code=EXIT_CODE_USER_ERROR)
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1, printed
    assert "Received: " in printed
    return printed


def unstage_refused(capsys, bundle, folder):
    """Let a bundle be refused; assert that nothing was left anywhere."""
    beside = sorted(folder.parent.iterdir())
    printed = refused(capsys, "unstage", bundle, "--folder", folder, "--cache-folder", folder.parent / "cache")
    assert sorted(folder.parent.iterdir()) == beside
    return printed


def as_tar(bundle, tar):
    """Pack a folder into a tar file, as a user might."""
    with tarfile.open(tar, "w") as archive:
        archive.add(bundle, bundle_format.TOP)
    return tar


def committed(folder):
    names = git(folder, "ls-tree", "-r", "-z", "--name-only", "HEAD").split("\0")
    return {name: (folder / name).read_bytes() for name in names if name}


# There and back


def without_network(command, *, folder, home, **variables):
    """Run a program where there is no network but the loopback, as a user with an empty home; return its output."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("no unshare or no ip here: a network cannot be left out")
    home.mkdir(exist_ok=True)
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    script = 'ip link set lo up && test "$(ip -o link | wc -l)" = 1 && exec "$@"'
    done = subprocess.run(
        [*WITHOUT_NETWORK, "sh", "-c", script, "sh", *map(str, command)], cwd=folder, capture_output=True, text=True,
        env=kept | as_root | {"HOME": str(home), "PIP_CONFIG_FILE": os.devnull} | variables, timeout=4 * HANG_SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("kind", ["folder", pytest.param("tar", marks=[pytest.mark.ranks, pytest.mark.ci])])
def test_a_bundle_sets_up_where_nothing_is_and_ranks_train_there(whole_project, weights, tmp_path, kind):
    out = tmp_path / ("bundle.tar" if kind == "tar" else "bundle")
    run_launch("stage", "-o", out, "--no-wheels", "--dataset", "mnist", "--weights", weights)
    assert [path.name for path in tmp_path.iterdir()] == [out.name]
    if kind == "tar":
        subprocess.run(["tar", "xf", str(out)], cwd=tmp_path, check=True, timeout=HANG_SECONDS)
    home, target = tmp_path / "home", tmp_path / "there"
    # -I: nothing of the project is found, wherever this is called.
    printed = without_network([BASE_PYTHON, "-I", "bundle/unstage.py", "--folder", target], folder=tmp_path, home=home)
    assert f"cd {target}" in printed
    assert "--dataset mnist" in printed
    run_launch("unstage", tmp_path / "bundle", "--check")  # it is still whole

    code = committed(whole_project)
    assert {name: (target / name).read_bytes() for name in code} == code
    assert os.access(target / ".ci" / "run", os.X_OK)
    assert (target / "inputs" / weights.name).read_bytes() == weights.read_bytes()
    assert revision.source_revision(target) == git(whole_project, "rev-parse", "HEAD")
    verify = [sys.executable, "-m", "common", "datasets", "verify", "mnist"]
    assert "mnist: all checksums match" in without_network(verify, folder=target, home=home, PYTHONPATH=str(target))
    assert {path.name for path in tmp_path.iterdir()} == {out.name, "bundle", "home", "there"}
    if kind == "tar":  # with this environment's packages; with those of the bundle: the long test below
        train(Path(sys.executable), "torch", target, tmp_path, PYTHONPATH=str(target))


def train(python, framework, target, folder, **variables):
    """Train an epoch of MNIST with 2 ranks, offline; assert that it learned and knows its source."""
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    program = ["-m", "launch", "train", "--framework", framework, "--np", "2"]
    settings = ["--", "--epochs", "1", "--model", "mlp", "--dataset", "mnist", "--name", framework]
    without_network([python, *program, *settings], folder=target, home=folder / "home", PATH=path, **variables)
    record = json.loads((target / "runs" / framework / "run.json").read_bytes())
    assert record["status"]["state"] == "finished"
    assert record["totals"]["test_accuracy"] > 0.8
    assert record["environment"]["source_revision"] == revision.source_revision(target)


@pytest.mark.long
def test_a_full_bundle_sets_up_and_trains_without_network(tmp_path):
    """All of it: the wheels of this clone's set-up, an empty home, both frameworks."""
    run_launch("stage", "-o", tmp_path / "bundle", "--uncommitted", "--dataset", "mnist")
    target, home = tmp_path / "there", tmp_path / "home"
    unstage_it = [BASE_PYTHON, "-I", "bundle/unstage.py", "--folder", target]
    printed = without_network(unstage_it, folder=tmp_path, home=home)
    assert "building Horovod" not in printed
    for framework in remembered(ROOT)[0].frameworks:
        train(target / ".venv" / "bin" / "python", framework, target, tmp_path)


def test_prepared_images_come_along(project, tmp_path, capsys):
    drawn, prepared = str(tmp_path / "fish"), str(tmp_path / "fish.safetensors")
    assert common_main(["images", "draw", drawn, "--images", "30", "--image-size", "32x32"]) == 0
    prepare = ["images", "prepare", drawn, "--image-size", "20x20", "--gray", "--split", "60/20/20"]
    assert common_main([*prepare, "--output", prepared]) == 0
    staged(tmp_path / "bundle", "--dataset", f"prepared:{prepared}")
    there = unstaged(tmp_path / "bundle", tmp_path / "there")
    assert "--dataset prepared:inputs/fish.safetensors" in capsys.readouterr().out
    assert load_dataset(f"prepared:{there / 'inputs' / 'fish.safetensors'}").image_shape == (20, 20, 1)


# What is packed


def test_the_manifest_names_machine_versions_and_every_file(project, bundle, tmp_path):
    manifest = bundle_format.read_manifest(bundle)
    here = {"architecture": os.uname().machine, "python": f"3.{sys.version_info.minor}"}
    assert manifest["target"] | here == manifest["target"]
    assert manifest["setup"] == {"wheels": "none", "frameworks": ["torch", "keras"], "gpu": False}
    assert manifest["versions"]["torch"] == Environment(root=ROOT).pins()["torch"]
    assert {file["path"] for file in manifest["files"]} == {*bundle_format.files_of(bundle)} - {bundle_format.MANIFEST}
    script = next(file for file in manifest["files"] if file["path"] == "unstage.py")
    assert script["sha256"] == bundle_format.sha256_of_file(ROOT / "launch" / "offline" / "bundle_script.py")
    manifest = staged(tmp_path / "bundle", "--site", "cte-power")
    assert manifest["target"]["architecture"] == "ppc64le"
    assert manifest["setup"]["frameworks"] == ["torch"], "the site refuses Keras"


def test_changes_are_refused_or_packed_when_asked_for(checkout, tmp_path, monkeypatch, capsys):
    changed = tmp_path / "changed"
    git(tmp_path, "clone", "--quiet", str(checkout), str(changed))
    monkeypatch.setattr(stage, "ROOT", changed)
    (changed / "LICENSE").write_text("mine\n")
    (changed / "new.txt").write_text("new\n")
    (changed / "README.md").unlink()
    printed = refused(capsys, "stage", "-o", tmp_path / "bundle", "--no-wheels")
    assert "LICENSE" in printed and "new.txt" in printed and "--uncommitted" in printed
    code = tmp_path / "bundle" / "code"
    assert staged(code.parent, "--uncommitted")["revision"].endswith("+changes")
    assert (code / "LICENSE").read_text() == "mine\n"
    assert (code / "new.txt").exists() and not (code / "README.md").exists()


def test_an_unstaged_folder_is_staged_again_without_what_tools_and_runs_leave(bundle, tmp_path, checkout, monkeypatch):
    there = unstaged(bundle, tmp_path / "there")
    for name in (".venv/bin/python", "runs/one/run.json", "common/__pycache__/x.pyc", "report.html"):
        (there / name).parent.mkdir(parents=True, exist_ok=True)
        (there / name).touch()
    monkeypatch.setattr(stage, "ROOT", there)
    assert staged(tmp_path / "again")["revision"] == git(checkout, "rev-parse", "HEAD")
    assert set(bundle_format.files_of(tmp_path / "again" / "code")) == set(committed(checkout))
    (there / "LICENSE").write_text("mine\n")
    assert staged(tmp_path / "changed")["revision"].endswith("+changes")


def wheel_names(*groups):
    """Return the names that wheels of all pins in these groups of the lock might have."""
    pins = Environment(root=ROOT).pins(*groups)
    return [f"{name.replace('-', '_')}-{version}-py3-none-any.whl" for name, version in pins.items()]


@pytest.mark.parametrize("gpu", [False, True])
def test_a_folder_of_wheels_is_packed_if_it_is_complete(gpu, project, tmp_path, capsys):
    wheels = tmp_path / "wheels"
    (wheels / "horovod" / "key").mkdir(parents=True)
    out, words = tmp_path / "bundle", ["--frameworks", "torch", "--wheels", wheels, *(["--gpu"] if gpu else [])]
    if gpu:  # PyTorch's build names the packages of CUDA; Horovod is compiled there
        pack(wheels, [Environment(root=ROOT, frameworks=("torch",), cuda=13, capabilities=("9.0",))])
        of_torch = [name for name in wheel_names("torch-cuda13") if name.startswith("torch-")]
        horovod = horovod_build.SDIST
    else:
        of_torch = [re.sub(r"^(torch-[^-]+)", r"\1+cpu", name) for name in wheel_names("torch", "torch-cpu")]
        horovod = f"horovod/key/horovod-{horovod_build.VERSION}-cp311.whl"
    names = [*of_torch, *wheel_names("base"), horovod]
    for name in names:
        (wheels / name).touch()
    for missing in (names[0], names[-3], horovod):
        (wheels / missing).unlink()
        assert "not complete" in refused(capsys, "stage", "-o", out, *words)
        (wheels / missing).touch()
    both = refused(capsys, "stage", "-o", out, *words, "--frameworks", "torch", "keras")
    assert ("lacks a framework" in both and "GPU=1" in both) if gpu else "==" in both
    run_launch("stage", "-o", out, *words)
    assert ("no Horovod for torch alone was built here" in capsys.readouterr().out) == gpu
    assert bundle_format.read_manifest(out)["setup"] == {"wheels": "all", "frameworks": ["torch"], "gpu": gpu}
    assert (out / "wheels" / PACKED).is_file() == gpu


# Damage


def flip(path):
    """Change one bit, and nothing of the size."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def link_away(path):
    path.rename(path.parent.parent.parent / "elsewhere")
    path.symlink_to(path.parent.parent.parent / "elsewhere")


@pytest.mark.parametrize(
    ("path", "damage"),
    [
        ("code/common/utils/cache_folder.py", flip),
        ("inputs/weights.safetensors", flip),
        ("unstage.py", flip),
        ("manifest.json", flip),
        ("code/LICENSE", Path.unlink),
        ("manifest.json", Path.unlink),
        ("code/common/evil.py", Path.touch),
        ("code/common/__pycache__", Path.touch),
        ("inputs/weights.safetensors", link_away),
        ("code/linked", lambda path: path.symlink_to(path.parent / "common")),
        ("code/LICENSE", lambda path: path.write_text("short")),
        *[("manifest.json", partial(Path.write_text, data=text)) for text in ("[]", "3", "null", '"text"')],
    ],
)
@pytest.mark.parametrize("kind", ["folder", "tar"])
def test_a_bundle_that_is_not_as_it_was_packed_is_refused_and_the_file_named(own, tmp_path, capsys, path, damage, kind):
    run_launch("unstage", own, "--check")
    damage(own / path)
    (tmp_path / "place").mkdir()
    received = as_tar(own, tmp_path / "bundle.tar") if kind == "tar" else own
    assert path in unstage_refused(capsys, received, tmp_path / "place" / "there")
    assert path in refused(capsys, "unstage", received, "--check")


NAMES_OF_FILES = (
    "bundle/../../evil", "../evil", "/tmp/evil-of-test-stage", "bundle/code/./evil", "bundle/code\\evil",
    "bundle/code/ev\nil", "elsewhere/evil", "bundle/code/LICENSE",
)  # fmt: skip
NO_FILES = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE)


@pytest.mark.parametrize(
    ("name", "kind"),
    [*((name, tarfile.REGTYPE) for name in NAMES_OF_FILES), *(("bundle/code/evil", kind) for kind in NO_FILES)],
)
def test_a_tar_file_that_would_write_elsewhere_is_refused(bundle, tmp_path, capsys, name, kind):
    """Also where a later member would be written through a link."""
    tar = as_tar(bundle, tmp_path / "bundle.tar")
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, str(tmp_path / "outside")
    (tmp_path / "outside").mkdir()
    with tarfile.open(tar, "a") as archive:
        archive.addfile(member)
        archive.addfile(tarfile.TarInfo(f"{name}/evil"))
    (tmp_path / "place").mkdir()
    assert repr(name) in unstage_refused(capsys, tar, tmp_path / "place" / "there")
    assert not Path("/tmp/evil-of-test-stage").exists()
    assert list((tmp_path / "outside").iterdir()) == []


def write_manifest(bundle, manifest):
    """Write the list of a bundle with its right checksum."""
    written = {"manifest": manifest, "sha256": bundle_format.sha256_of_manifest(manifest)}
    (bundle / bundle_format.MANIFEST).write_text(json.dumps(written))


@pytest.mark.parametrize("row", LISTS, ids=lambda row: row["words"])
def test_a_list_that_is_none_of_stage_is_refused_though_its_checksum_is_right(row, own, tmp_path, capsys):
    manifest = row.get("whole", bundle_format.read_manifest(own) | row.get("list", {}))
    if "without" in row:
        del manifest[row["without"]]
    write_manifest(own, manifest)
    assert row["words"] in unstage_refused(capsys, own, tmp_path / "there")
    assert row["words"] in refused(capsys, "unstage", own, "--check")


@pytest.mark.parametrize("length", [0, 700, 300_000])
def test_a_tar_file_that_is_cut_off_is_refused(bundle, tmp_path, capsys, length):
    tar = as_tar(bundle, tmp_path / "bundle.tar")
    assert tar.stat().st_size > length
    tar.write_bytes(tar.read_bytes()[:length])
    unstage_refused(capsys, tar, tmp_path / "there")


# Places that are taken, and machines that do not fit


def test_an_interrupted_set_up_is_resumed_from_the_same_bundle_only(project, bundle, tmp_path, monkeypatch, capsys):
    there = tmp_path / "there"

    with monkeypatch.context() as patch:
        patch.setattr(unstage, "set_up", Mock(side_effect=KeyboardInterrupt))
        run_launch("unstage", bundle, "--folder", there, "--cache-folder", tmp_path / "cache", code=130)
    assert (there / unstage.UNFINISHED).exists()
    staged(tmp_path / "other")
    assert "another bundle" in unstage_refused(capsys, tmp_path / "other", there)
    unstaged(bundle, there)
    assert "resuming" in capsys.readouterr().out
    assert not (there / unstage.UNFINISHED).exists()


def test_a_set_up_that_fails_is_one_line_and_can_be_resumed(own, tmp_path, capfd):
    there, manifest = tmp_path / "there", bundle_format.read_manifest(own)
    manifest["setup"]["wheels"] = stage.ALL  # though there are none, and no set-up
    write_manifest(own, manifest)
    (own / "wheels").mkdir()
    run_launch("unstage", own, "--folder", there, "--cache-folder", tmp_path / "cache", code=2)
    printed = capfd.readouterr().err
    assert "unstage: error: set-up failed" in printed.splitlines()[-1] and "Traceback" not in printed
    assert (there / unstage.UNFINISHED).exists()


def test_a_data_set_in_the_cache_stays_and_another_of_its_name_is_refused(project, tmp_path, capsys):
    staged(tmp_path / "bundle", "--dataset", "mnist")
    mnist = tmp_path / "cache" / "datasets" / "mnist"
    shutil.copytree(cache.cache_folder() / "datasets" / "mnist", mnist)
    (mnist / "meta.json").write_text("mine")
    unstaged(tmp_path / "bundle", tmp_path / "there")
    assert "in the cache already" in capsys.readouterr().out
    assert (mnist / "meta.json").read_text() == "mine"
    flip(mnist / "test_labels.npy")
    assert str(mnist) in unstage_refused(capsys, tmp_path / "bundle", tmp_path / "other")


def test_another_architecture_is_refused(bundle, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("platform.machine", lambda: "ppc64le")
    assert "ppc64le here" in unstage_refused(capsys, bundle, tmp_path / "there")


@pytest.mark.parametrize("script", ["launch/setup.py", "launch/offline/bundle_script.py"])
def test_older_pythons_can_read_what_hands_over(script):
    folder = "launch/installation"
    for path in (script, f"{folder}/needed_python.py", f"{folder}/__init__.py", "launch/__init__.py"):
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"), feature_version=(3, 6))
        assert all(type(node) is not ast.AnnAssign for node in ast.walk(tree))
    first = ast.parse((ROOT / script).read_text(encoding="utf-8"))
    modules = [node.module for node in ast.walk(first) if isinstance(node, ast.ImportFrom)]
    assert modules[0] == "launch.installation.needed_python", "before anything that only newer ones can read"


def test_code_that_is_damaged_is_one_line(own, tmp_path):
    code = own / "code" / "launch"
    shutil.copytree(ROOT / "launch" / "installation", code / "installation", dirs_exist_ok=True)
    (code / "offline" / "unstage.py").write_text("damaged (")
    command = [BASE_PYTHON, "-I", str(own / "unstage.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=HANG_SECONDS)
    assert done.returncode == EXIT_CODE_USER_ERROR
    assert done.stderr.startswith("unstage: error: the bundle is damaged: its code cannot be loaded. Received: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"manifest": {"revision": "abc"}}', '{"manifest": {"files": [1]}}'])
def test_an_unreadable_record_of_the_source_is_an_unknown_one(tmp_path, text):
    (tmp_path / revision.STAGED_FILE).write_text(text)
    assert revision.source_revision(tmp_path) == "unknown"


# Another architecture


@pytest.mark.ci
def test_for_ppc64le_pure_wheels_go_on_top_of_modules(tmp_path, monkeypatch, capfd):
    """All but the processor is real: the wheels, the environment on top of another Python's packages, their install."""
    if not Environment(root=ROOT, frameworks=("torch",)).is_complete():
        pytest.skip("wheels are taken from a clone that is set up: make setup")
    run_launch("stage", "-o", tmp_path / "bundle", "--site", "cte-power", "--frameworks", "torch", "--uncommitted")
    assert "only pure-Python wheels run on ppc64le; from modules come" in capfd.readouterr().out
    names = [path.name for path in (tmp_path / "bundle" / "wheels").iterdir()]
    assert all(name.endswith("-none-any.whl") for name in names)
    assert {name.split("-")[0] for name in names} >= {"pydantic", "setuptools", "tqdm"}
    monkeypatch.setattr("platform.machine", lambda: "ppc64le")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    there = unstaged(tmp_path / "bundle", tmp_path / "there")
    printed = capfd.readouterr().out
    assert "torch==" in printed and "numpy==" in printed and "tensorflow" not in printed
    program = "import tqdm, launch; print(tqdm.__file__, launch.__file__)"
    command = [there / ".venv" / "bin" / "python", "-I", "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=HANG_SECONDS)
    tqdm, launch = done.stdout.split()
    assert tqdm.startswith(str(there / ".venv")) and launch == str(there / "launch" / "__init__.py")
    settings = (there / ".venv" / "pyvenv.cfg").read_text(encoding="utf-8")
    assert "include-system-site-packages = true" in settings


# Full disks


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 200 kB."""
    if os.geteuid() != 0:
        pytest.skip("a small disk is mounted by root only")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", disk], check=True, timeout=HANG_SECONDS)
    try:
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True, timeout=HANG_SECONDS)


@pytest.mark.parametrize("known", [True, False], ids=["known before", "found out while writing"])
@pytest.mark.parametrize("kind", ["folder", "tar"])
def test_a_disk_too_small_is_one_line(project, bundle, small_disk, tmp_path, monkeypatch, capsys, kind, known):
    if not known:
        monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=10**12))
    words = "needed" if known else "No space left on device"
    out = small_disk / ("bundle.tar" if kind == "tar" else "bundle")
    # Uncommitted: the files of the working tree, so that none of them is written before the bundle is.
    assert words in refused(capsys, "stage", "-o", out, "--no-wheels", "--uncommitted")
    assert list(small_disk.iterdir()) == []
    received = as_tar(bundle, tmp_path / "bundle.tar") if kind == "tar" else bundle
    assert words in unstage_refused(capsys, received, small_disk / "there")
