"""`launch preflight`: every check with a made failure, and real hosts, ranks, ssh and limits."""

import json
import os
import shlex
import socket
import stat
import subprocess
import sys
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

from common.checks.preflight_worker import ExchangeReport
from common.errors import UserError
from launch.__main__ import main
from launch.preflight import command as preflight
from launch.preflight import survey as preflight_survey
from launch.preflight.checks import CHECKS, CheckResult, judge
from launch.preflight.host_probe import (
    BUILD_MARKS,
    EXTENSIONS,
    DataState,
    Folder,
    HorovodBuild,
    HostReport,
    ProbeRequest,
    Software,
    build_features,
    gpus,
    probe,
)
from launch.preflight.survey import Survey, probe_command, read_answer, srun_kinds, start_ranks
from launch.preflight.target import Target, read_target, slurm_hosts, tasks_per_node
from launch.sites.site_files import read_launch_site
from launch.starting.launchers import Launcher, Slots
from launch.starting.parallel import run_for_hosts

ROOT = Path(__file__).resolve().parents[3]
BUILD = HorovodBuild(features=["mpi", "gloo"], compiled_for="2.13.0")
WITH_NCCL = replace(BUILD, features=["mpi", "gloo", "nccl"])
VERSIONS = {
    "Python": "3.11.7", "the project": "5eed5eed (revision 0123456789ab)",
    "horovod": "0.28.1", "numpy": "2.4.6", "torch": "2.13.0+cpu", "openmpi": "4.1.8",
}  # fmt: skip
SOFTWARE = Software(versions=VERSIONS, cores=4)
ROOM = Folder(path="/shared/runs", free_bytes=10**12, problem=None)
REPORT = ExchangeReport(
    controller="mpi",
    bytes=10**6,
    hosts=["a", "a", "b", "b"],
    devices=["cpu"] * 4,
    seconds=[0.002, 0.001, 0.004],
    wrong_ranks=[],
    clock_offsets=[0.0, 0.0, 0.01, 0.01],
)


def made_target(**changes: Any) -> Target:
    """Two hosts with two ranks each, over ssh."""
    site = changes.pop("site", read_launch_site("hosts"))
    target = Target(
        launcher=Launcher(site=site), location="job", hosts={"a": 2, "b": 2}, channel="ssh", frameworks=("torch",),
        dataset="mnist", folders={"runs": "/shared/runs"},
    )  # fmt: skip
    return replace(target, **changes)


def made_report(host: str, **changes: Any) -> HostReport:
    """A host where nothing is wrong."""
    report = HostReport(
        host=host, software=SOFTWARE, horovod={"torch": BUILD}, mpirun="mpirun (Open MPI) 4.1.8",
        interfaces={"lo": ["127.0.0.1"], "net0": ["10.0.0.1"]}, gpus=[], folders={"runs": ROOM, "cache": ROOM},
        data=DataState(state="verified", text="checksums match", published=True),
    )  # fmt: skip
    return replace(report, **changes)


def made_survey(reports: list[HostReport] | None = None, **changes: Any) -> Survey:
    """Answers where nothing is wrong."""
    reports = reports if reports is not None else [made_report("a"), made_report("b")]
    survey = Survey(
        reports={each.host: each for each in reports},
        slowest_seconds=1.0,
        marked=frozenset(each.host for each in reports),
        exchange=REPORT,
        exchange_seconds=5.0,
    )
    return replace(survey, **changes)


def b_with(**changes: Any) -> Survey:
    """Nothing is wrong but what host b reports."""
    return made_survey([made_report("a"), made_report("b", **changes)])


def installed(**versions: str | None) -> Software:
    """Other versions; None: not installed."""
    merged = {**VERSIONS, **versions}
    return replace(SOFTWARE, versions={name: version for name, version in merged.items() if version})


def with_error(part: str, error: str, **changes: Any) -> Survey:
    return b_with(errors={part: error}, **changes)


def gpu_host(host: str, *models: str) -> HostReport:
    return made_report(host, gpus=list(models), horovod={"torch": WITH_NCCL})


SRUN = replace(read_launch_site("slurm"), launcher="srun")
NO_INTERNET = replace(read_launch_site("hosts"), internet=False)
INTERFACE = replace(read_launch_site("hosts"), network_interface="ib0")
# check -> what is inspected, the survey, words of the one line: host, what, remedy.
FAILURES: dict[str, list[tuple[Target, Survey, list[str]]]] = {
    "hosts": [
        (made_target(), made_survey([made_report("a")], unreached={"b": "ssh does not reach b: refused. Start sshd"}),
         ["ssh does not reach b"]),
    ],
    "scheduler": [
        (made_target(site=SRUN, location="login node", channel="local", hosts={"a": 0}),
         made_survey([made_report("a")], missing_program="sbatch", srun_mpi=("pmix",)),
         ["this machine: sbatch not found", "load its module"]),
    ],
    "software": [
        (made_target(), b_with(software=installed(Python="3.9.2")),
         ["b: Python is 3.9.2, on a it is 3.11.7", "`python` in the site file"]),
        (made_target(), b_with(software=installed(numpy="1.26.0")),
         ["b: numpy is 1.26.0, on a it is 2.4.6", "make setup"]),
        (made_target(), b_with(software=installed(openmpi=None)), ["b: openmpi is missing, on a it is 4.1.8"]),
        (made_target(), with_error("software", "ModuleNotFoundError: No module named 'pydantic'", software=None),
         ["b: ModuleNotFoundError: No module named 'pydantic'", "make setup"]),
        (made_target(frameworks=("keras",), hosts={"a": 2}),
         made_survey([made_report("a", horovod={"keras": BUILD})], exchange=None),
         ["a: TensorFlow is not installed", "--framework"]),
        (made_target(), b_with(software=installed(**{"the project": "0ther (revision 0123456789ab)"})),
         ["b: the project is 0ther", "on a it is 5eed5eed (revision 0123456789ab)", "git pull"]),
        (made_target(), b_with(mpirun="mpirun (Open MPI) 5.0.2"),
         ["b: mpirun is mpirun (Open MPI) 5.0.2", "same module"]),
        (made_target(), with_error("mpirun", "FileNotFoundError: mpirun is not on PATH", mpirun=None),
         ["b: ", "mpirun is not on PATH", "Load its module"]),
    ],
    "horovod": [
        (made_target(), b_with(horovod={}), ["b: Horovod is not compiled for PyTorch", "make setup"]),
        (made_target(), b_with(horovod={"torch": replace(BUILD, features=["gloo"])}),
         ["b: ", "without MPI", "HOROVOD_WITH_MPI=1"]),
        (made_target(controller="gloo"), made_survey(
            [made_report("a"), made_report("b", horovod={"torch": replace(BUILD, features=["mpi"])})],
            exchange=replace(REPORT, controller="gloo")), ["b: ", "without Gloo", "--controller"]),
        (made_target(), b_with(horovod={"torch": replace(BUILD, compiled_for="2.12.0")}),
         ["b: Horovod was compiled for PyTorch 2.12.0, but 2.13.0+cpu is installed", "make setup"]),
        (made_target(), with_error("horovod", "ModuleNotFoundError: Horovod is not installed", horovod=None),
         ["b: ", "Horovod is not installed", "make setup"]),
        (made_target(), made_survey([gpu_host("a", "V100", "V100"), made_report("b", gpus=["V100"] * 2)]),
         ["b: Horovod for PyTorch is compiled without NCCL", "make setup GPU=1"]),
    ],
    "pmi": [
        (made_target(site=SRUN, channel="srun"), made_survey(srun_mpi=("none", "pmi2")),
         ["this machine: srun does not offer pmix, but none, pmi2", "[launch.slurm]"]),
    ],
    "network": [
        (made_target(site=INTERFACE),
         made_survey([made_report("a", interfaces={"ib0": ["10.1.0.1"]}), made_report("b")]),
         ["b: network interface ib0 does not exist or is not up; ready: net0", "`network_interface`"]),
        (made_target(site=INTERFACE), made_survey(
            [made_report("a", interfaces={"ib0": ["10.1.0.1"]}), made_report("b", interfaces={"ib0": []})]),
         ["b: network interface ib0 is up without an address; ready: none"]),
        (made_target(), b_with(interfaces={"lo": ["127.0.0.1"]}), ["b: no network interface but lo"]),
    ],
    "gpus": [
        (made_target(device="gpu"), made_survey([gpu_host("a", "V100", "V100"), gpu_host("b", "V100")]),
         ["b: 1 GPU visible for 2 ranks", "CUDA_VISIBLE_DEVICES"]),
        (made_target(), made_survey([gpu_host("a", "V100", "V100"), gpu_host("b", "T4", "T4")]),
         ["b: the GPU is T4, on a it is V100", "equal GPUs"]),
        (made_target(), with_error("gpus", "RuntimeError: nvidia-smi ended with 9: Driver mismatch", gpus=None),
         ["b: RuntimeError: nvidia-smi ended with 9", "driver"]),
        (made_target(expects_gpus=True), made_survey([gpu_host("a"), gpu_host("b")]),
         ["a, b: 0 GPUs visible for 2 ranks", "--gres"]),
    ],
    "threads": [
        (made_target(threads=2), b_with(software=replace(SOFTWARE, cores=3)),
         ["b: 2 ranks x 2 threads on 3 cores", "fewer --threads"]),
        (made_target(), b_with(software=replace(SOFTWARE, cores=1)), ["b: 2 ranks x 1 thread on 1 core"]),
    ],
    "disk": [
        (made_target(), b_with(folders={"runs": replace(ROOM, free_bytes=5 * 10**8)}),
         ["b: 0.50 GB free for the runs folder /shared/runs", "1 GB"]),
        (made_target(), b_with(folders={"scratch": replace(ROOM, path="/scratch", problem="Read-only file system")}),
         ["b: the scratch folder /scratch cannot be written: Read-only file system"]),
    ],
    "shared runs": [
        (made_target(site=SRUN, channel="srun"), made_survey(marked=frozenset({"a"}), srun_mpi=("pmix",)),
         ["b: what is written into /shared/runs there is not visible on this machine", "--runs-folder"]),
        (made_target(), with_error("shared", "PermissionError: denied"), ["b: PermissionError: denied"]),
    ],
    "data": [
        (made_target(), b_with(data=DataState(state="damaged", text="train_images.npy: wrong checksum")),
         ["b: mnist is damaged: train_images.npy", "datasets fetch mnist"]),
        (made_target(site=NO_INTERNET), b_with(data=DataState(state="absent", text="not in /cache", published=True)),
         ["b: mnist is not in /cache", "datasets fetch mnist"]),
        (made_target(dataset="prepared:x"), b_with(data=DataState(state="absent", text="not in x")),
         ["b: prepared:x is not in x"]),
    ],
    "clocks": [
        (made_target(), made_survey(exchange=replace(REPORT, clock_offsets=[0.0, 0.0, 7.0, 7.0])),
         ["b: its clock is 7.0 s ahead", "chrony"]),
        (made_target(), made_survey(exchange=replace(REPORT, clock_offsets=[0.0, 0.0, -1.5, -1.5])),
         ["b: its clock is 1.5 s behind", "power traces"]),
    ],
    "allreduce": [
        (made_target(), made_survey(exchange="a, b: the ranks ended with code 1: killed. Try it alone: `horovodrun`"),
         ["a, b: the ranks ended with code 1"]),
        (made_target(), made_survey(exchange=replace(REPORT, wrong_ranks=[2])), ["b: the sum on rank 2 is wrong"]),
        (made_target(), made_survey(exchange=replace(REPORT, hosts=["a"], clock_offsets=[0.0], controller="none")),
         ["a: 1 rank met instead of 4", "same MPI"]),
        (made_target(), made_survey(exchange=replace(REPORT, controller="gloo")),
         ["a: ranks are joined by gloo, not mpi", "HOROVOD_CONTROLLER"]),
    ],
}  # fmt: skip
CASES = [(name, *case) for name, cases in FAILURES.items() for case in cases]


def results(target: Target, survey: Survey) -> dict[str, CheckResult]:
    return {each.check: each for each in judge(target, survey)}


def test_each_check_has_a_failure_here() -> None:
    assert list(FAILURES) == [check.name for check in CHECKS]


@pytest.mark.parametrize(("name", "target", "survey", "words"), CASES, ids=[case[0] for case in CASES])
def test_a_failure_is_one_line_that_names_host_and_remedy(
    name: str, target: Target, survey: Survey, words: list[str]
) -> None:
    found = results(target, survey)
    assert [row.check for row in found.values() if row.result == "failed"] == [name]
    (line,) = found[name].lines
    assert all(word in line for word in words), line
    assert "\n" not in line


def test_all_checks_pass_where_nothing_is_wrong() -> None:
    found = results(made_target(), made_survey())
    assert {row.result for row in found.values()} == {"ok"}
    assert "in 2.00 ms (median of 3, 1.00 to 4.00), plus 5.0 s" in found["allreduce"].lines[0]


def test_tensorflow_may_be_installed_by_either_name() -> None:
    for name in ("tensorflow", "tensorflow-cpu"):
        build = replace(BUILD, compiled_for="2.21.0")
        told = {"software": installed(torch=None, **{name: "2.21.0"}), "horovod": {"keras": build}}
        found = results(made_target(frameworks=("keras",)), made_survey([made_report(host, **told) for host in "ab"]))
        assert {row.result for row in found.values()} == {"ok"}


def test_hosts_with_the_same_failure_share_a_line() -> None:
    reports = [made_report(host, software=installed(Python="3.11.7" if host == "a" else "3.12.1")) for host in "abc"]
    (line,) = results(made_target(hosts={"a": 1, "b": 1, "c": 1}), made_survey(reports))["software"].lines
    assert line.startswith("b, c: Python is 3.12.1")


def test_where_no_host_answers_the_rest_is_not_checked() -> None:
    found = results(made_target(), made_survey([], unreached={"a": "a: no", "b": "b: no"}))
    assert found.pop("hosts").lines == ["a: no", "b: no"] and found.pop("scheduler").result == "ok"
    assert {(row.result, *row.lines) for row in found.values()} == {("not checked", "no host answered")}


def test_a_login_node_checks_software_and_data_and_a_laptop_only_the_scheduler() -> None:
    target = made_target(site=SRUN, location="login node", channel="local", hosts={"a": 0})
    survey = made_survey([made_report("a")], srun_mpi=("pmix",), exchange=None)
    unknown = {name for name, each in results(target, survey).items() if each.result == "not checked"}
    assert unknown == {"network", "gpus", "threads", "shared runs", "clocks", "allreduce"}
    target = made_target(site=read_launch_site("aws-g5"), location="outside", hosts={"a": 0})
    outside = results(target, made_survey([]))
    assert {name for name, each in outside.items() if each.result == "ok"} == {"scheduler"}
    assert outside["disk"].lines == ["only in the job: it runs on its own machines"]
    assert outside["hosts"].lines == ["only in the job: its hosts do not exist yet"]


def test_data_that_a_run_can_fetch_are_no_failure() -> None:
    row = results(made_target(), b_with(data=DataState(state="absent", text="not in /cache", published=True)))["data"]
    assert (row.result, row.lines) == ("not checked", ["b: mnist is not in /cache"])


def test_hosts_reached_by_ssh_need_not_share_a_folder() -> None:
    row = results(made_target(), made_survey(marked=frozenset({"a"})))["shared runs"]
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


def test_kinds_of_pmi_as_old_and_new_slurm_print_them() -> None:
    new = "MPI plugin types are...\n\tpmix\n\tnone\n\tpmi2\nspecific pmix plugin versions available: pmix_v3,pmix_v4\n"
    assert srun_kinds(new) == ("pmix", "none", "pmi2", "pmix_v3", "pmix_v4")
    assert srun_kinds("srun: MPI types are...\nsrun: none\nsrun: pmi2\n") == ("none", "pmi2")
    assert srun_kinds("") == ()


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


def test_tasks_of_nodes_as_slurm_writes_them() -> None:
    assert tasks_per_node("4(x2),2", nodes=3) == [4, 4, 2]
    for text in ("4(x2)", "four", "0(x3)", "4(x2),"):
        with pytest.raises(UserError, match="--hosts"):
            tasks_per_node(text, nodes=3)


def test_the_hosts_of_a_slurm_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "2(x2)"}
    with programs(tmp_path / "bin", monkeypatch, scontrol='[ "$3" = "n[1-2]" ] && printf "n1\\nn2\\n"'):
        assert slurm_hosts(variables) == [Slots("n1", 2), Slots("n2", 2)]
        target = read_target(options("--np", "3"), variables={**variables, "SLURM_GPUS_ON_NODE": "4"})
        assert (target.site.name, target.location, target.channel, target.expects_gpus) == (
            "slurm",
            "job",
            "srun",
            True,
        )
        assert dict(target.hosts) == {"n1": 2, "n2": 1}
        words = probe_command(target, "n2", mark=None)
        assert " srun --nodes=1 --ntasks=1 --nodelist=n2 " in shlex.join(words)
        assert json.loads(words[-1])["host"] == "n2"
    refusal = programs(tmp_path / "bin", monkeypatch, scontrol="echo no such list >&2; exit 1")
    with refusal, pytest.raises(UserError, match="no such list"):
        slurm_hosts(variables)


def test_what_is_inspected() -> None:
    login = read_target(options("--site", "cte-power"), variables={})
    assert (login.location, login.channel, login.submit_program, login.size) == ("login node", "local", "sbatch", 0)
    assert read_target(options("--site", "aws-g5"), variables={}).location == "outside"
    assert read_target(options("--site", "aws-g5"), variables={"SKYPILOT_NODE_RANK": "0"}).expects_gpus
    hosts = read_target(options("--hosts", "a:2,b:2", "--np", "3"), variables={})
    assert (hosts.channel, dict(hosts.hosts)) == ("ssh", {"a": 2, "b": 1})
    for words in (["--np", "0"], ["--threads", "0"], ["--hosts", "a:1", "--np", "2"], ["--site", "nowhere"]):
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
        "import sys; from launch.preflight.host_probe import ProbeRequest, probe;"
        "report = probe(ProbeRequest(host='here', limit_seconds=60, dataset='synthetic'));"
        "assert not {'torch', 'tensorflow', 'keras', 'horovod'} & set(sys.modules);"
        "print(report.errors, sorted(report.horovod))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("{} ['keras', 'torch']", "")


@pytest.mark.parametrize(("framework", "module"), [("torch", "horovod.torch"), ("keras", "horovod.tensorflow")])
def test_build_features_are_those_that_horovod_reports(framework: str, module: str) -> None:
    code = (
        f"import {module} as hvd, horovod; print(horovod.__path__[0], bool(hvd.mpi_built()), bool(hvd.gloo_built()), "
        "bool(hvd.nccl_built()), bool(hvd.ddl_built()))"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    folder, *said = done.stdout.split()
    (file,) = Path(folder).glob(EXTENSIONS[framework][0])
    assert [str(name in build_features(file)) for name in BUILD_MARKS] == said[:3]


def test_a_build_without_mpi_or_with_nccl(tmp_path: Path) -> None:
    file = tmp_path / "mpi_lib.so"
    file.write_bytes(b"\0N7horovod6common14GlooControllerE\0N7horovod6common13NCCLAllreduceE\0")
    assert build_features(file) == ["gloo", "nccl"]


def test_the_probe_looks_at_folders_and_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_TWINS_CACHE", str(tmp_path))
    (tmp_path / "file").touch()
    folders = {"runs": str(tmp_path / "new" / "runs"), "scratch": str(tmp_path / "file" / "below")}

    def ask(dataset: str) -> HostReport:
        mark = str(tmp_path / "absent" / "0")
        return probe(ProbeRequest(host="a", limit_seconds=9, dataset=dataset, folders=folders, mark=mark))

    report = ask("mnist")
    assert report.folders and report.folders["runs"].problem is None and report.folders["runs"].free_bytes > 0
    assert "Not a directory" in (report.folders["scratch"].problem or "")
    assert not (tmp_path / "new").exists() and not (tmp_path / "absent").exists()
    assert report.data == DataState(
        state="absent", text=f"not there: {tmp_path / 'datasets' / 'mnist'}", published=True
    )
    (tmp_path / "datasets" / "mnist").mkdir(parents=True)
    assert ask("mnist").data == DataState(state="damaged", text="meta.json is missing")
    assert (ask(f"images:{tmp_path}").data or report.data).state == "unread"
    assert (ask(f"prepared:{tmp_path / 'x'}").data or report.data).state == "absent"


def fake_ssh(**of_host: str) -> str:
    """Return a script in the place of ssh: it runs the last word here, with a line of shell before on some hosts."""
    cases = "\n".join(f"{host}) {line} ;;" for host, line in of_host.items())
    return (
        "for word; do host=$last; last=$word; done; export FAKE_HOST=$host\n"
        f'case $host in\n{cases}\n*) ;;\nesac\nexec sh -c "$last"'
    )


def run_preflight(*words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, dict[str, Any]], str]:
    """Return exit code, check -> row, and the lines of progress."""
    code = main(["preflight", "--json", *words])
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
    assert [row for row, told in found.items() if told["result"] == "failed"] == ["hosts", "software", "horovod"]
    (refused,) = found["hosts"]["lines"]
    assert "c" in refused and "Permission denied" in refused and "authorized_keys" in refused
    assert found["software"]["lines"] == [
        "b: ModuleNotFoundError: No module named 'psutil'. Run `make setup` there, and name its Python"
    ]
    assert found["shared runs"]["result"] == "ok" and found["allreduce"]["result"] == "not checked"
    assert "asking a, b, c" in progress and "a answered after" in progress
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
    assert table[-1].startswith("1 of 13 checks passed; failed: hosts; not checked: software, ")


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
    monkeypatch.setattr(preflight_survey, "PROBE_SECONDS", 1)
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

    def interrupt(outcome: object) -> None:
        while not number.exists() or not number.read_text():
            time.sleep(0.01)
        raise KeyboardInterrupt

    script = f"sleep 1000 & echo $! > {number}; wait"
    with pytest.raises(KeyboardInterrupt):
        run_for_hosts({"a": ["sh", "-c", script], "b": ["true"]}, limit_seconds=1000, on_end=interrupt)
    assert gone(int(number.read_text()))


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo '{}'", "the project there is another version"),
        ("echo nothing", "the probe failed (exit code 0): nothing"),
        ("echo SyntaxError: invalid syntax >&2; exit 1", "(exit code 1): SyntaxError: invalid syntax. Check that "),
        ("exit 127", "(exit code 127): no output"),
    ],
)
def test_an_unreadable_answer_is_reported(script: str, words: str) -> None:
    outcome = run_for_hosts({"a": ["sh", "-c", script]}, limit_seconds=100)["a"]
    line = read_answer(made_target(channel="local"), outcome)
    assert isinstance(line, str) and line.startswith("a: ") and words in line


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
    assert "answered as a process here, within " in found["hosts"]["lines"][0]
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
def ranks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ExchangeReport | str]:
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    return lambda target, **more: start_ranks(target, show=lambda line: None, **more)[0]


@pytest.mark.ranks
@pytest.mark.ci
def test_two_ranks_of_keras_by_mpirun(ranks: Callable[..., Any]) -> None:
    """PyTorch's are started over two hosts and by Slurm, below."""
    mpirun = FakeLauncher("mpirun", "-np", "2", "--bind-to", "none", "--oversubscribe")
    target = local_target(mpirun, framework="keras")
    report = ranks(target)
    assert isinstance(report, ExchangeReport), report
    assert (report.controller, report.bytes, report.wrong_ranks) == ("mpi", 10**6, [])
    assert report.devices == ["cpu", "cpu"] and len(report.seconds) == 11 and min(report.seconds) > 0
    assert max(map(abs, report.clock_offsets)) < 0.5  # it is one clock; the machine may be busy
    survey = made_survey([made_report("here")], exchange=report)
    assert results(target, survey)["allreduce"].result == "ok"


@pytest.mark.ranks
@pytest.mark.ci
def test_ranks_that_do_not_meet(ranks: Callable[..., Any]) -> None:
    """A launcher of another MPI starts as many runs of one rank."""
    target = local_target(FakeLauncher("env"))
    row = results(target, made_survey([made_report("here")], exchange=ranks(target)))["allreduce"]
    assert row.result == "failed" and "1 rank met instead of 2" in row.lines[0]


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
            command = [sys.executable, "-m", "launch", "preflight", "--json", "--site", site, *words]
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
    words = ["--json", "--framework", "torch", "--device", "cpu", "--dataset", "none"]
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
    checks = {row["check"]: row["lines"] for row in result["checks"]}
    assert checks["pmi"] == ["srun offers pmix"] and checks["hosts"][0].startswith("2 hosts answered by srun")
