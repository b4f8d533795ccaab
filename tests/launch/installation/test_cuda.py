"""Set-up for GPUs: what is found on a machine or read of a site, what is decided for it, and what is refused."""

import dataclasses
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from common.checks import horovod_trial
from common.errors import UserError
from launch.installation import command, cuda, node, packed
from launch.installation import plan as setup_plan
from launch.installation import run as setup_run
from launch.installation import state as setup_state
from launch.installation.cuda import Environment, Node, Toolkit
from launch.installation.plan import Command, Machine, Request
from launch.sites.site_files import read_launch_site, shipped_sites

ROOT = Path(__file__).resolve().parents[3]
BOTH = ("torch", "keras")
NVCC_12, NVCC_13 = (Toolkit(home=Path(f"/usr/local/cuda-{version}"), version=version) for version in ("12.9", "13.2"))
A10G = Node(driver="580.95.05", capabilities=("8.6",), toolkits=(NVCC_13, NVCC_12))


def chosen(there, frameworks=BOTH):
    """Return folder -> CUDA major of what is decided for a node."""
    return {one.folder: one.cuda for one in cuda.choose(there, frameworks)}


# The plan


@pytest.mark.parametrize(
    ("changes", "frameworks", "expected"),
    [
        ({}, BOTH, {".venv": 12}),
        ({}, ("torch",), {".venv": 13}),
        ({}, ("keras",), {".venv": 12}),
        ({"driver": "550.54.15"}, ("torch",), {".venv": 12}),
        ({"driver": ""}, BOTH, {".venv": 12}),
        ({"capabilities": ("7.0",)}, BOTH, {".venv": 12}),
        ({"capabilities": ("7.0",)}, ("torch",), {".venv": 12}),
        ({"capabilities": ("12.0",)}, BOTH, {".venv-torch": 13, ".venv-keras": 12}),
        ({"capabilities": ()}, BOTH, {".venv": 12}),
        ({"toolkits": ()}, ("torch",), {".venv": 13}),
        ({"architecture": "aarch64"}, ("torch",), {".venv": 13}),
    ],
)
def test_each_node_gets_what_works_there(changes, frameworks, expected):
    assert chosen(dataclasses.replace(A10G, **changes), frameworks) == expected


@pytest.mark.parametrize(
    ("changes", "frameworks", "words"),
    [
        ({"driver": "470.82.01"}, ("torch",), "needs driver 525 or newer, this is 470.82.01"),
        ({"driver": "470.82.01"}, ("keras",), "needs driver 525 or newer, this is 470.82.01"),
        ({"toolkits": (NVCC_13,)}, BOTH, r"nvcc 12, which pip does not have \(found: 13.2\).*FRAMEWORKS=torch"),
        ({"toolkits": ()}, ("keras",), r"nvcc 12, which pip does not have \(found: no toolkit\)"),
        ({"capabilities": ("7.0",), "toolkits": ()}, ("torch",), "nvcc 12.*no code for GPUs of compute capability 7.0"),
        ({"capabilities": ("5.2",)}, ("keras",), "no code for GPUs of compute capability 5.2"),
        ({"architecture": "ppc64le"}, ("torch",), "CUDA 12 has no wheels for ppc64le; CUDA 13 has no wheels"),
        ({"architecture": "aarch64"}, ("keras",), "no wheels for aarch64"),
        (
            {"capabilities": ("12.0",), "toolkits": (Toolkit(home=Path("/c"), version="12.6"),)},
            ("keras",),
            "12.8 or newer",
        ),
    ],
)
def test_what_cannot_work_is_one_line(changes, frameworks, words):
    with pytest.raises(UserError, match=words) as caught:
        cuda.choose(dataclasses.replace(A10G, **changes), frameworks)
    assert "\n" not in str(caught.value)
    nothing_at_all = changes.get("architecture") == "ppc64le"
    assert ("use other machines" if nothing_at_all else "GPU=0") in str(caught.value)
    assert nothing_at_all == ("GPU=0" not in str(caught.value))


def test_a_toolkit_too_old_for_the_gpus_does_not_hide_a_later_one():
    old, pips = (Toolkit(home=Path(f"/{version}"), version=version) for version in ("12.4", "13.0"))
    there = dataclasses.replace(A10G, capabilities=("9.0", "12.0"), toolkits=(pips, old, NVCC_12))
    assert there.toolkit(12) == NVCC_12
    assert chosen(there, ("keras",)) == {".venv": 12}
    assert dataclasses.replace(there, capabilities=("9.0",)).toolkit(12) == old


def text_of(request, machine):
    """Return the plan as it is printed."""
    return setup_plan.describe(setup_plan.plan(request, machine=machine))


def test_both_frameworks_on_cuda_12_are_installed_beside_each_other():
    text = text_of(Request(root=ROOT, cuda=12, capabilities=("8.0", "9.0")), Machine(toolkit=NVCC_12))
    assert "torch==2.13.0+cu126" in text
    assert "'tensorflow[and-cuda]==2.21.0'" in text
    assert "cuda12.txt" not in text, "PyTorch's build fixes the versions for both"
    assert "HOROVOD_BUILD_CUDA_CC_LIST=80,90" in text
    assert f"HOROVOD_NCCL_HOME={ROOT}/.venv/lib/python3.11/site-packages/nvidia/nccl" in text
    assert "HOROVOD_CUDA_HOME=/usr/local/cuda-12.9" in text
    assert 'PATH=/usr/local/cuda-12.9/bin:"$PATH"' in text
    assert "nvidia-cuda-nvcc" not in text
    assert text.count("horovod_trial.py --nccl") == 2


def test_pytorch_on_cuda_13_is_not_taken_for_the_cpu_and_is_compiled_by_pips_nvcc():
    request = Request(root=ROOT, frameworks=("torch",), cuda=13, capabilities=("9.0",), folder=".venv-torch")
    text = text_of(request, Machine())
    assert "torch===2.13.0 torchvision===0.28.0" in text
    assert "nvidia-cuda-nvcc nvidia-cuda-crt" in text
    assert f"HOROVOD_CUDA_HOME={ROOT}/.venv-torch/lib/python3.11/site-packages/nvidia/cu13" in text


def test_tensorflow_alone_gets_a_cudnn_that_has_code_for_v100():
    text = text_of(Request(root=ROOT, frameworks=("keras",), cuda=12, capabilities=("7.0",)), Machine(toolkit=NVCC_12))
    assert "cuda12.txt 'tensorflow[and-cuda]==2.21.0'" in text
    assert setup_plan.pins(ROOT / "launch/installation/requirements")["nvidia-cudnn-cu12"] == "9.10.2.21"


def test_the_build_of_a_framework_is_checked_before_horovod_is_compiled(tmp_path):
    request = Request(root=tmp_path, frameworks=("torch",), cuda=13)
    state = setup_state.SetupState(tmp_path)
    with setup_state.locked(state):
        runner = setup_run.Runner(request, state, Machine())
        for answer in ("None", "12.6"):
            runner.ask = lambda _, answer=answer: f"{answer}\n"
            with pytest.raises(UserError, match=f"Received: CUDA {answer} instead of 13"):
                runner.check_cuda("torch")
        runner.ask = lambda _: "13.0\n"
        runner.check_cuda("torch")


# What is found


def program(path, text):
    """Write an executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)


def toolkit(home, version, *, header=True, library=True):
    """Make what looks like a CUDA toolkit."""
    program(home / "bin" / "nvcc", f"echo 'Cuda compilation tools, release {version}, V{version}.88'")
    for wanted, path in ((header, "include/cuda_runtime.h"), (library, "lib64/libcudart.so.12")):
        if wanted:
            (home / path).parent.mkdir(exist_ok=True)
            (home / path).touch()
    return home


def test_only_whole_toolkits_are_taken(tmp_path):
    whole = toolkit(tmp_path / "cuda-12.9", "12.9")
    (tmp_path / "cuda").symlink_to(whole)
    script = toolkit(tmp_path / "wrapper", "13.0", header=False, library=False)
    half = toolkit(tmp_path / "half", "12.8", library=False)
    mute = tmp_path / "mute"
    program(mute / "bin" / "nvcc", "exit 1")
    found, notes = node.find_toolkits([script, half, mute, tmp_path / "none", whole, tmp_path / "cuda"])
    assert found == (Toolkit(home=whole, version="12.9"),)
    assert [word in note for word, note in zip(("cuda_runtime.h", "libcudart", "tell"), notes, strict=True)] == [
        True
    ] * 3


def test_a_toolkit_with_its_headers_where_conda_has_them_is_whole(tmp_path):
    home = toolkit(tmp_path, "12.9", header=False)
    (home / "targets/x86_64-linux/include").mkdir(parents=True)
    (home / "targets/x86_64-linux/include/cuda_runtime.h").touch()
    assert node.find_toolkits([home]) == ((Toolkit(home=home, version="12.9"),), ())


def test_a_folder_without_permission_is_passed_over(tmp_path, monkeypatch):
    whole, shut = toolkit(tmp_path / "whole", "12.9"), tmp_path / "shut"
    ask = Path.exists

    def exists(path):
        if path.is_relative_to(shut):
            raise PermissionError(13, "Permission denied")
        return ask(path)

    monkeypatch.setattr(Path, "exists", exists)  # root may read everything
    found, notes = node.find_toolkits([shut, whole])
    assert [one.home for one in found] == [whole]
    assert notes == (f"passed over {shut}/bin/nvcc: Permission denied",)


def test_programs_that_print_no_utf_8_are_read(tmp_path, monkeypatch):
    program(tmp_path / "nvidia-smi", r"printf '580.95.05, 9.0\n\377\n'")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert node.this_node().capabilities == ("9.0",)
    program(tmp_path / "nvcc", r"printf '\377 release 12.9, V12.9.88'")
    assert node.nvcc_version(tmp_path / "nvcc") == "12.9"


def test_the_driver_and_the_gpus_are_asked(tmp_path, monkeypatch):
    program(tmp_path / "nvidia-smi", "echo '580.95.05, 9.0'; echo '580.95.05, 8.0'")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    there = node.this_node()
    assert (there.driver, there.capabilities) == ("580.95.05", ("8.0", "9.0"))


@pytest.mark.parametrize("text", ["[N/A], 9.0", "ERR!, 9.0", ", 9.0"])
def test_a_driver_without_a_version_is_one_line(tmp_path, monkeypatch, text):
    program(tmp_path / "nvidia-smi", f"echo '{text}'")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(UserError, match="does not tell its version"):
        node.this_node()


def test_a_hanging_nvidia_smi_is_given_up_and_the_drivers_file_read(tmp_path, monkeypatch):
    program(tmp_path / "nvidia-smi", "exec sleep 60")
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
    script.write_text(text.replace("/usr/local", str(tmp_path)))
    program(tmp_path / "python3", "exit 1")  # which would fetch NVIDIA's packages

    def run():
        path = f"{tmp_path}:{os.environ['PATH']}"
        return subprocess.run(["bash", script], capture_output=True, text=True, check=False, env={"PATH": path})

    toolkit(tmp_path / "cuda-12.4", "12.4")
    half = toolkit(tmp_path / "cuda-12.9", "12.9", header=False)
    system.write_text("ID=debian\n")
    done = run()
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.startswith("cuda12.sh: error: ") and "no VERSION_ID" in done.stderr
    system.write_text('ID=ubuntu\nVERSION_ID="22.04"\n')
    done = run()
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "/repos/ubuntu2204/x86_64" in done.stderr
    toolkit(half, "12.9")
    assert run().returncode == 0


# Several environments


def pretend(root, environment):
    """Make what a finished set-up leaves."""
    state = setup_state.SetupState(root, environment.folder)
    request = Request(root=root, **dataclasses.asdict(environment))
    with setup_state.locked(state):
        state.begin(request)
        (state.venv / "bin").mkdir(exist_ok=True)
        (state.venv / "bin" / "python").touch()
        (state.folder / "stamp.json").write_text(f'{{"frameworks": ["{environment.frameworks[0]}"]}}')


APART = (
    Environment(folder=".venv-torch", frameworks=("torch",), cuda=13, capabilities=("12.0",)),
    Environment(folder=".venv-keras", frameworks=("keras",), cuda=12, capabilities=("12.0",)),
)


def test_environments_stay_as_they_were_made_and_make_room_for_others(tmp_path):
    single = Environment(folder=".venv", frameworks=BOTH)
    pretend(tmp_path, single)
    assert setup_state.remembered(tmp_path) == (single,)
    setup_state.arrange(tmp_path, APART)
    for environment in APART:
        pretend(tmp_path, environment)
    assert (tmp_path / ".venv").resolve() == tmp_path / ".venv-torch"
    assert setup_state.remembered(tmp_path) == APART
    setup_state.arrange(tmp_path, APART[1:])
    assert setup_state.remembered(tmp_path) == APART
    setup_state.arrange(tmp_path, [single])
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".venv")]


def test_an_environment_of_someone_else_is_not_removed(tmp_path):
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    with (
        pytest.raises(UserError, match="was not made by this set-up"),
        setup_state.locked(setup_state.SetupState(tmp_path, ".venv-torch")),
    ):
        pass


def test_what_a_removal_leaves_after_an_interruption_is_not_used(tmp_path, monkeypatch):
    single = Environment(folder=".venv", frameworks=BOTH)
    pretend(tmp_path, single)
    (tmp_path / ".venv" / "lib").mkdir()

    def interrupted(_path):
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    with pytest.raises(KeyboardInterrupt):
        setup_state.arrange(tmp_path, APART)
    state = setup_state.SetupState(tmp_path)
    assert state.installed() == ((), False)
    assert not state.usable(Request(root=tmp_path))


class FakeSetUp:
    """Set-up whose plan is not run: it fails in the environments named, else it leaves what a real one leaves."""

    def __init__(self, root, monkeypatch, *, there, free=100.0):
        self.root, self.failing = root, set[str]()
        requirements = root / "launch" / "installation" / "requirements"
        shutil.copytree(ROOT / "launch" / "installation" / "requirements", requirements)
        (root / "pyproject.toml").write_text("")
        monkeypatch.setenv("HOROVOD_TWINS_CACHE", str(root / "cache"))
        monkeypatch.setattr(command, "this_node", lambda: there)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free * 1e9))
        monkeypatch.setattr(setup_run, "run_set_up", self.run)

    def run(self, work):
        if work.request.folder in self.failing:
            raise UserError(f"{work.request.folder} fails")
        (work.state.venv / "bin").mkdir(exist_ok=True)
        (work.state.venv / "bin" / "python").touch()
        work.state.finish(work.request)

    def __call__(self, *args):
        return command.main(["--root", str(self.root), *args])

    def folders(self):
        return sorted(path.name for path in self.root.iterdir() if path.name.startswith(".venv"))


BLACKWELL = Node(driver="580.95.05", capabilities=("12.0",), toolkits=(NVCC_12,))


def test_where_one_framework_fails_the_other_can_be_used(tmp_path, monkeypatch, capsys):
    set_up = FakeSetUp(tmp_path, monkeypatch, there=BLACKWELL)
    set_up.failing = {".venv-keras"}
    assert set_up("--gpu") == 2
    assert (tmp_path / ".venv" / "bin" / "python").exists()
    assert set_up("--gpu", "--frameworks", "torch") == 0
    assert set_up("--need", "torch") == 2, "what was chosen first is still wanted"
    assert ".venv-keras fails" in capsys.readouterr().err
    set_up.failing = set()
    assert set_up() == 0
    assert set_up.folders() == [".venv", ".venv-keras", ".venv-torch"]


def test_an_interruption_in_the_first_environment_forgets_nothing(tmp_path, monkeypatch):
    set_up = FakeSetUp(tmp_path, monkeypatch, there=BLACKWELL)
    set_up.failing = {".venv-torch"}
    assert set_up("--gpu") == 2
    set_up.failing = set()
    assert set_up("--need", "torch") == 0
    assert [one.frameworks for one in setup_state.remembered(tmp_path)] == [("torch",), ("keras",)]
    assert (tmp_path / ".venv" / "bin" / "python").exists()


def test_after_a_failure_less_can_be_asked_for(tmp_path, monkeypatch):
    set_up = FakeSetUp(tmp_path, monkeypatch, there=A10G)
    set_up.failing = {".venv"}
    assert set_up("--gpu") == 2
    set_up.failing = set()
    assert set_up("--gpu", "--frameworks", "torch") == 0
    assert [(one.frameworks, one.cuda) for one in setup_state.remembered(tmp_path)] == [(("torch",), 13)]


@pytest.mark.parametrize(
    ("args", "free", "words"),
    [
        (("--gpu",), 10.0, "set-up needs"),  # enough for the first environment, not for both
        (("--gpu", "--wheels", "/nonexistent"), 100.0, "WHEELS names no folder"),
    ],
)
def test_nothing_is_removed_before_all_checks(tmp_path, monkeypatch, capsys, args, free, words):
    set_up = FakeSetUp(tmp_path, monkeypatch, there=BLACKWELL, free=free)
    pretend(tmp_path, Environment(folder=".venv", frameworks=BOTH))
    assert set_up(*args) == 2
    assert words in capsys.readouterr().err
    assert set_up.folders() == [".venv"]
    assert (tmp_path / ".venv" / "bin" / "python").exists()


def test_a_trial_that_hangs_is_ended(tmp_path):
    state = setup_state.SetupState(tmp_path)
    with setup_state.locked(state):
        state.begin(Request(root=tmp_path))
        runner = setup_run.Runner(Request(root=tmp_path), state, Machine())
        with pytest.raises(UserError, match=r"does not end.*nvidia-smi"):
            runner.run(Command((sys.executable, "-c", "import time; time.sleep(60)"), seconds=1))


def test_a_folder_of_wheels_says_what_it_is_for(tmp_path):
    packed.pack(tmp_path, [Environment(folder=".venv", frameworks=BOTH)])
    assert packed.unpack(tmp_path) == ()
    packed.pack(tmp_path, APART)
    assert packed.unpack(tmp_path) == APART
    with pytest.raises(UserError, match="needs driver 580"):
        cuda.check(APART, Node(driver="550.54.15"))
    cuda.check(APART, Node(driver="580.95.05", capabilities=("12.0",)))
    (tmp_path / packed.NAME).write_text('[{"folder": 1}]')
    with pytest.raises(UserError, match="damaged"):
        packed.unpack(tmp_path)


def test_set_up_asks_the_machine_only_when_it_has_to_decide(tmp_path):
    """What was made or packed stays; another node or `GPU=0` is a new decision."""

    def decided(*args):
        return command.decide(command.parse(["--root", str(tmp_path), *args]), wheels, look)

    def refuse():
        raise AssertionError("the machine was asked")

    wheels, look = None, lambda: A10G
    assert [one.cuda for one in decided("--gpu", "--frameworks", "torch")] == [13]
    pretend(tmp_path, Environment(folder=".venv", frameworks=("torch",), cuda=13, capabilities=("9.0",)))
    look = refuse
    made = setup_state.remembered(tmp_path)
    assert decided() == decided("--gpu") == decided("--frameworks", "torch") == made
    assert decided("--no-gpu") == (Environment(folder=".venv", frameworks=("torch",)),)
    look = lambda: A10G  # noqa: E731
    assert decided("--need", "keras") == (Environment(folder=".venv", frameworks=BOTH, cuda=12, capabilities=("8.6",)),)
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    packed.pack(wheels, APART)
    assert decided("--need", "keras") == APART
    packed.pack(wheels, APART[:1])
    with pytest.raises(UserError, match=r"lacks a framework.*without TensorFlow"):
        decided("--need", "keras")


def test_environments_that_this_driver_cannot_run_are_refused(tmp_path, monkeypatch, capsys):
    (tmp_path / "pyproject.toml").write_text("")
    pretend(tmp_path, APART[0])
    monkeypatch.setattr(command, "this_node", lambda: Node(driver="550.54.15"))
    assert command.main(["--root", str(tmp_path), "--frameworks", "torch"]) == 2
    assert "CUDA 13 needs driver 580 or newer, this is 550.54.15" in capsys.readouterr().err


# The command line


def dry_run(*args):
    """Print the plan, as a user would; return the exit code."""
    return command.main(["--dry-run", *args])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cte-power", "setup: error: PyTorch cannot use this node's GPU. Received: CUDA 12 has no wheels"),
        ("nowhere", "setup: error: --node names no site. Received: nowhere"),
    ],
)
def test_a_described_node_that_cannot_be_set_up_is_one_line(name, words, capsys):
    assert dry_run("--node", name) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(words)


def test_a_described_node_is_planned_with_its_reasons(capsys):
    assert dry_run("--node", "aws-p3") == 0
    shown = capsys.readouterr().out
    assert "compute capability 7.0; CUDA toolkits: 12.4 in cuda-12.4" in shown
    assert "# .venv: PyTorch and TensorFlow with CUDA 12; nvcc 12.4 in cuda-12.4; Horovod for 7.0" in shown


SITE = """
[launch]
nodes = ["ours"]
[launch.software]
driver = "580"
toolkits = ["12.9", "12.10"]
[sites.ours]
gpu = "theirs"
[gpus.theirs]
compute_capability = "12.0"
"""


def test_a_site_of_ones_own_is_described(tmp_path):
    file = tmp_path / "ours.toml"
    file.write_text(SITE)
    there = node.described_node(str(file))
    assert (there.driver, there.capabilities) == ("580", ("12.0",))
    assert [one.version for one in there.toolkits] == ["12.10", "12.9"]
    file.write_text('[launch]\nnodes = ["aws-g5-12xlarge"]\n[sites.aws-g5-12xlarge]\ncores = 8\n')
    assert node.described_node(str(file)).capabilities == ("8.6",), "the project's values stay where it names none"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"580"', '"abc"', "no valid `driver`. Received: 'abc'"),
        ('"580"', "580", "no valid `driver`. Received: 580"),
        ('["12.9", "12.10"]', '"12.9"', "no valid `toolkits`. Received: '12.9'"),
        ('"12.9"', '"12.9.1"', "no valid `toolkits`. Received: ['12.9.1'"),
        ('"12.9"', "12.9", "no valid `toolkits`. Received: [12.9"),
        ('"theirs"', '"nobodys"', "GPU is not known. Received: gpu = 'nobodys'"),
        ('"theirs"', "7", "no valid `gpu`. Received: 7"),
        ('"12.0"', '"9"', "no valid `compute_capability`. Received: '9'"),
        ('"12.0"', "9.0", "no valid `compute_capability`. Received: 9.0"),
        ('["ours"]', '[["ours"]]', "no valid `nodes`. Received: [['ours']]"),
        ('["ours"]', '["ours"]\narchitecture = 64', "no valid `architecture`. Received: 64"),
        ('[launch.software]\ndriver = "580"', 'software = "x"\n[x]', "no valid `software`. Received: 'x'"),
        ("[launch]", "launch = [1]\n[x]", "no valid `launch`. Received: [1]"),
        ('[sites.ours]\ngpu = "theirs"', "[sites]\nours = [1]", "no valid `ours`. Received: [1]"),
    ],
)
def test_a_value_of_a_site_that_is_none_is_one_line(tmp_path, old, new, words):
    assert old in SITE
    text = SITE.replace(old, new)
    if "launch = [1]" in new or "software = " in new:  # the table is no table
        text = text.replace("[launch.software]", "[y]")
    (tmp_path / "ours.toml").write_text(text)
    with pytest.raises(UserError, match=re.escape(words)) as caught:
        node.described_node(str(tmp_path / "ours.toml"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [name for name in shipped_sites() if name.startswith(("aws", "gcp", "cte"))])
@pytest.mark.parametrize("framework", BOTH)
def test_a_site_refuses_a_framework_that_set_up_would_refuse_there(name, framework):
    """Before machines are rented. Modules can bring PyTorch to CTE-POWER, a user an nvcc to ParallelCluster."""
    site, there = read_launch_site(name), node.described_node(name)
    try:
        cuda.choose(there, (framework,))
        refused = ""
    except UserError as error:
        refused = str(error)
    if (name, framework) in {("cte-power", "torch"), ("aws-parallelcluster", "keras")}:
        assert refused
    else:
        assert bool(refused) == (framework in site.refuses), refused


def test_a_kind_of_node_that_a_site_lacks_is_refused_with_those_that_it_has():
    with pytest.raises(UserError, match=r"aws has no such kind of node. Received: aws:p5. Use .*aws-p5-48xlarge"):
        node.described_node("aws:p5")
    assert node.described_node("aws:p5-48xlarge").capabilities == ("9.0",)


# The trial


def test_libraries_of_another_place_or_twice_are_found():
    ours = Path("/clone/.venv/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2")
    elsewhere = Path("/usr/lib/x86_64-linux-gnu/libnccl.so.2")
    maps = f"7f0-7f1 r-xp 00000000 08:01 12  {ours}\n7f1-7f2 rw-p 00000000 00:00 0\n7f2-7f3 r-xp 0 08:01 9  {ours}\n"
    assert horovod_trial.loaded_libraries(maps) == [ours]
    venv = Path("/clone/.venv")
    horovod_trial.check_libraries([ours], environment=venv, needed=["libnccl.so"])
    for paths, words in (
        ([], "did not load libnccl.so"),
        ([elsewhere], "not this environment's"),
        ([ours, elsewhere], "two copies"),
    ):
        with pytest.raises(UserError, match=words):
            horovod_trial.check_libraries(paths, environment=venv, needed=["libnccl.so"])


def test_a_command_of_set_up_sees_nothing_of_a_job(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    settings = setup_run.environment(Path("/clone/.venv"), Path("/cuda/bin"))
    assert "SLURM_JOB_ID" not in settings
    assert settings["PATH"].startswith("/clone/.venv/bin:/cuda/bin:")


def test_a_full_disk_while_compiling_is_one_line(tmp_path):
    state = setup_state.SetupState(tmp_path)
    with setup_state.locked(state):
        state.begin(Request(root=tmp_path))
        runner = setup_run.Runner(Request(root=tmp_path), state, Machine())
        words = "nvcc fatal: Could not write temporary file: No space left on device"
        with pytest.raises(UserError, match="the disk is full"):
            runner.run(Command((sys.executable, "-c", f"raise SystemExit('{words}')")))
