"""Set-up for GPUs: what is found on a machine or read of a site, and what is decided, kept and removed.

What each machine gets is in `setup.toml`, what a site file must not say in `tests/refusals/launch.toml`.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from made_programs import add_script
from made_set_up import MadeSetUp, made_node

from common.errors import UserError
from launch.installation import cuda, node
from launch.installation.cuda import Toolkit
from launch.installation.environment import PACKED, Environment, pack, remembered, unpack
from launch.sites.site_files import read_launch_site, shipped_sites

ROOT = Path(__file__).resolve().parents[3]
BOTH = ("torch", "keras")
APART = (
    Environment(root=ROOT, folder=".venv-torch", frameworks=("torch",), cuda=13, capabilities=("12.0",)),
    Environment(root=ROOT, folder=".venv-keras", frameworks=("keras",), cuda=12, capabilities=("12.0",)),
)
BLACKWELL = made_node(capabilities=("12.0",), toolkits=("12.9",))


# What is found


def toolkit(home, version, *, headers="include", library=True):
    """Make what looks like a CUDA toolkit."""
    add_script(home / "bin" / "nvcc", f"echo 'Cuda compilation tools, release {version}, V{version}.88'")
    files = [f"{headers}/cuda_runtime.h"] if headers else []
    for name in [*files, *(["lib64/libcudart.so.12"] if library else [])]:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).touch()
    return home


def test_only_whole_toolkits_that_may_be_read_are_taken(tmp_path, monkeypatch):
    whole = toolkit(tmp_path / "cuda-12.9", "12.9")
    (tmp_path / "cuda").symlink_to(whole)
    add_script(whole / "bin" / "nvcc", r"printf '\377 release 12.9, V12.9.88'")
    of_conda = toolkit(tmp_path / "conda", "12.8", headers="targets/x86_64-linux/include")
    script = toolkit(tmp_path / "wrapper", "13.0", headers="", library=False)
    half = toolkit(tmp_path / "half", "12.8", library=False)
    mute, shut = tmp_path / "mute", tmp_path / "shut"
    add_script(mute / "bin" / "nvcc", "exit 1")
    ask = Path.exists

    def exists(path):
        if path.is_relative_to(shut):
            raise PermissionError(13, "Permission denied")
        return ask(path)

    monkeypatch.setattr(Path, "exists", exists)  # root may read everything
    homes = [script, half, mute, shut, tmp_path / "none", whole, tmp_path / "cuda", of_conda]
    toolkits, notes = node.find_toolkits(homes)
    assert toolkits == (Toolkit(home=whole, version="12.9"), Toolkit(home=of_conda, version="12.8"))
    words = ("cuda_runtime.h", "libcudart", "tell", f"passed over {shut}/bin/nvcc: Permission denied")
    assert [part in note for part, note in zip(words, notes, strict=True)] == [True] * 4


def test_the_driver_and_the_gpus_are_asked_whatever_bytes_they_print(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    add_script(tmp_path / "nvidia-smi", r"printf '580.95.05, 9.0\n\377\n580.95.05, 8.0\n'")
    there = node.this_node()
    assert (there.driver, there.capabilities) == ("580.95.05", ("8.0", "9.0"))
    for text in ("[N/A], 9.0", "ERR!, 9.0", ", 9.0"):
        add_script(tmp_path / "nvidia-smi", f"echo '{text}'")
        with pytest.raises(UserError, match="does not tell its version"):
            node.this_node()


def test_a_hanging_nvidia_smi_is_given_up_and_the_drivers_file_read(tmp_path, monkeypatch):
    add_script(tmp_path / "nvidia-smi", "exec sleep 60")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(node, "PATIENCE_SECONDS", 0.2)
    file = tmp_path / "version"
    file.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\n")
    monkeypatch.setattr(node, "DRIVER_FILE", file)
    there = node.this_node()
    assert (there.driver, there.capabilities) == ("535.183.01", ())
    assert "nvidia-smi does not answer" in there.notes[0]
    assert node.gpu_present()


def test_the_compiler_is_installed_where_none_that_knows_all_gpus_is_whole(tmp_path):
    """A copy of the script that sees another /usr/local and another system, without a version or with one."""
    script, system = tmp_path / "cuda12.sh", tmp_path / "os-release"
    text = (ROOT / "launch/installation/cuda12.sh").read_text().replace("/etc/os-release", str(system))
    script.write_text(text.replace("/usr/local", str(tmp_path)).replace("/etc/apt", str(tmp_path)))
    add_script(tmp_path / "python3", "exit 1")  # which would fetch NVIDIA's key
    for name in ("apt-get", "tee", "sudo"):
        add_script(tmp_path / name, f"echo {name} >> {tmp_path}/called; cat > /dev/null")

    def run():
        path = f"{tmp_path}:{os.environ['PATH']}"
        return subprocess.run(["bash", script], capture_output=True, text=True, check=False, env={"PATH": path})

    toolkit(tmp_path / "cuda-12.4", "12.4")
    half = toolkit(tmp_path / "cuda-12.9", "12.9", headers="")
    for release, words in (
        ("ID=debian\n", "no VERSION_ID"),
        ('ID=ubuntu\nVERSION_ID="22.04"\n', "/repos/ubuntu2204/x86_64"),
    ):
        system.write_text(release)
        done = run()
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert done.stderr.startswith("cuda12.sh: error: ") and words in done.stderr
    add_script(tmp_path / "python3", "exit 0")
    published = re.search("^FINGERPRINT=(.*)$", text, re.MULTILINE)[1]
    for keys, words in (("A" * 40, f"{'A' * 40}. "), (f"{published} {'A' * 40}", "another one"), ("", "Received: . ")):
        lines = "".join(f"pub:::\\nfpr:::::::::{key}:\\nsub:::\\nfpr:::::::::{'B' * 40}:\\n" for key in keys.split())
        add_script(tmp_path / "gpg", f"printf '{lines}'")
        done = run()
        assert (done.returncode, done.stderr.count("\n")) == (2, 1) and words in done.stderr, done.stderr
        assert not (tmp_path / "called").exists(), "nothing is installed"
    add_script(tmp_path / "gpg", f"printf 'pub:::\\nfpr:::::::::{published}:\\n'")
    assert run().returncode == 0 and "apt-get" in (tmp_path / "called").read_text()
    (tmp_path / "called").unlink()
    toolkit(half, "12.9")
    assert run().returncode == 0 and not (tmp_path / "called").exists()


# Sites


@pytest.mark.parametrize("name", [name for name in shipped_sites() if name.startswith(("aws", "gcp", "cte"))])
@pytest.mark.parametrize("framework", BOTH)
def test_a_site_refuses_a_framework_that_set_up_would_refuse_there(name, framework):
    """Before machines are rented. Modules can bring PyTorch to CTE-POWER, a user an nvcc to ParallelCluster."""
    site, there = read_launch_site(name), node.described_node(name)
    try:
        cuda.choose(there, Environment(root=ROOT, frameworks=(framework,)))
        refused = ""
    except UserError as error:
        refused = str(error)
    if (name, framework) in {("cte-power", "torch"), ("aws-parallelcluster", "keras")}:
        assert refused
    else:
        assert bool(refused) == (framework in site.refuses), refused


# What is decided, kept and removed


@pytest.fixture
def set_up(tmp_path, monkeypatch):
    """Set-up of a clone on a machine with a GPU that needs an environment for each framework; it runs no plan."""
    return MadeSetUp(tmp_path / "clone", monkeypatch, there=BLACKWELL)


def made_in(set_up):
    """Return folder -> frameworks and CUDA of the environments that were made or begun."""
    return {made.folder: (made.frameworks, made.cuda) for made in remembered(set_up.root)}


def test_environments_stay_as_they_were_made_and_make_room_for_others(set_up, capsys):
    set_up.there = made_node()
    assert set_up.makes("--gpu", "--frameworks", "torch") == [".venv"]
    assert made_in(set_up) == {".venv": (("torch",), 13)}
    set_up.there = None
    for words in ([], ["--gpu"], ["--frameworks", "torch"]):
        assert set_up.makes(*words) == [], "nothing is to be decided"
    set_up.there = BLACKWELL
    assert set_up.makes("--need", "keras") == [".venv-torch", ".venv-keras"]
    assert (set_up.root / ".venv").resolve() == set_up.root / ".venv-torch"
    assert made_in(set_up) == {".venv-torch": (("torch",), 13), ".venv-keras": (("keras",), 12)}
    assert set_up.makes("--frameworks", "keras") == []
    set_up.there = made_node(driver="550.54.15")
    assert set_up("--dev") == 2
    assert "CUDA 13 needs driver 580 or newer, this is 550.54.15" in capsys.readouterr().err
    assert set_up.folders() == [".venv", ".venv-keras", ".venv-torch"]
    assert set_up.makes("--no-gpu", "--frameworks", "torch") == [".venv"]
    assert made_in(set_up) == {".venv": (("torch",), None)}
    assert set_up.folders() == [".venv"]


def test_where_one_framework_fails_the_other_can_be_used(set_up, capsys):
    set_up.failing = {".venv-keras"}
    assert set_up("--gpu") == 2
    assert (set_up.root / ".venv" / "bin" / "python").exists()
    assert set_up.makes("--gpu", "--frameworks", "torch") == []
    assert set_up("--need", "torch") == 2, "what was chosen first is still wanted"
    assert ".venv-keras fails" in capsys.readouterr().err
    set_up.failing = set()
    assert set_up.makes() == [".venv-keras"]
    assert set_up.folders() == [".venv", ".venv-keras", ".venv-torch"]


def test_an_interruption_in_the_first_environment_forgets_nothing(set_up):
    set_up.failing = {".venv-torch"}
    assert set_up("--gpu") == 2
    set_up.failing = set()
    assert set_up.makes("--need", "torch") == [".venv-torch", ".venv-keras"]
    assert (set_up.root / ".venv" / "bin" / "python").exists()


def test_nothing_is_removed_before_all_checks(set_up, capsys):
    set_up.makes("--no-gpu")
    for args, free, words in (
        (["--gpu"], 10.0, "set-up needs"),  # enough for the first environment, not for both
        (["--gpu", "--wheels", "/nonexistent"], 100.0, "WHEELS names no folder"),
    ):
        set_up.free = free
        assert set_up(*args) == 2
        assert words in capsys.readouterr().err
        assert set_up.folders() == [".venv"]
        assert (set_up.root / ".venv" / "bin" / "python").exists()


def test_what_a_removal_leaves_after_an_interruption_is_not_used(set_up, monkeypatch):
    set_up.makes("--no-gpu")
    (set_up.root / ".venv" / "lib").mkdir()

    def interrupted(_path):
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    assert set_up("--gpu") == 130
    environment = Environment(root=set_up.root)
    assert environment.stamp() == {}
    assert not environment.is_usable()


def test_a_folder_of_wheels_decides_as_it_was_packed(set_up, tmp_path, capsys):
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    pack(wheels, [Environment(root=set_up.root)])
    assert unpack(wheels, root=set_up.root) == (), "for the CPU"
    pack(wheels, APART)
    for driver, code, words in (("550.54.15", 2, "CUDA 13 needs driver 580"), ("580.95.05", 0, "")):
        set_up.there = made_node(driver=driver, capabilities=("12.0",), toolkits=())  # nothing is compiled
        assert set_up("--dry-run", "--wheels", str(wheels)) == code
        assert words in capsys.readouterr().err
    pack(wheels, APART[:1])
    assert set_up("--wheels", str(wheels), "--need", "keras") == 2
    assert "lacks a framework" in capsys.readouterr().err
    (wheels / PACKED).write_text('[{"folder": 1}]')
    assert set_up("--wheels", str(wheels)) == 2
    assert "is damaged" in capsys.readouterr().err
