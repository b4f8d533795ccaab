"""`launch preflight`: every check with an example that fails, and real ranks, ssh and limits."""

import json
import os
import platform
import shlex
import shutil
import socket
import subprocess
import sys
import tomllib
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from made_programs import add_script, is_running
from processes import environment
from sites_and_jobs import own_site
from waiting import wait_until

from common.errors import UserError
from launch.__main__ import main
from launch.preflight import command, host_checks, survey
from launch.preflight.host_checks import HOST_CHECKS, Wanted, answer_of
from launch.starting.gpus import Gpu
from launch.starting.parallel import Outcome

ROOT = Path(__file__).resolve().parents[3]
TABLES = tomllib.loads(Path(__file__).with_name("findings.toml").read_text())
NOT_ON_A_LOGIN_NODE = {"network", "gpus", "threads", "memory", "shared runs", "clocks", "allreduce"}


@pytest.fixture
def preflight(capsys):
    """Make a preflight; return check -> row, and what was printed: the whole result and the lines of progress."""

    def made(*words):
        code = main(["preflight", "--format", "json", "--framework", "torch", "--dataset", "none", *words])
        captured = capsys.readouterr()
        result = json.loads(captured.out)
        assert (result["result"] == "failed") == (code == 2)
        assert all(line and "\n" not in line for row in result["checks"] for line in row["lines"])
        return {row["check"]: row for row in result["checks"]}, result, captured.err

    return made


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Make shell scripts that are found before the programs of their names."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return lambda **scripts: [add_script(tmp_path / "bin" / name, script) for name, script in scripts.items()]


def named(rows, result):
    return {check for check, row in rows.items() if row["result"] == result}


def a_host(**changes):
    """Return what the checks read on a host; without changes nothing is wrong with it."""
    versions = TABLES["host"]["versions"] | changes.pop("versions", {})
    versions = {name: version for name, version in versions.items() if version}
    return SimpleNamespace(**TABLES["host"] | changes | {"versions": versions})


class Hosts:
    """Hosts that check themselves in this process, by what a test says of them, and ranks that report."""

    def __init__(self, cache, monkeypatch):
        self.cache, self.monkeypatch = cache, monkeypatch
        self.there, self.report = {}, TABLES["report"]
        self.commands, self.wanted = {}, {}

    def run(self, commands, *, limit_seconds):
        self.commands = commands
        return {host: self.answer(host, words) for host, words in commands.items()}

    def answer(self, host, words):
        words = shlex.split(words[-1]) if words[0] == "ssh" else words
        self.wanted[host] = wanted = Wanted(**json.loads(words[-1]))
        variables = dict(word.split("=", 1) for word in words[:-1] if word.startswith("HOROVOD_"))
        with self.monkeypatch.context() as patch:
            there = self.there.get(host, a_host())
            self.pretend(there, variables, patch)
            if not there.sees_mark:
                wanted = replace(wanted, mark="/elsewhere")
            answers = {name: answer_of(HOST_CHECKS[name], wanted) for name in wanted.checks}
        text = json.dumps({"project": host_checks.source_hash(), "answers": answers})
        return Outcome(host=host, code=0, stdout=text, stderr="", seconds=1.0)

    def pretend(self, host, variables, patch):
        def listed_gpus():
            if isinstance(host.gpus, str):  # why there is no answer
                raise UserError(host.gpus)
            return [Gpu(name, uuid=name) for name in host.gpus]

        shutil.rmtree(self.cache / "datasets", ignore_errors=True)
        for name, text in host.files.items():
            (self.cache / "datasets" / name).parent.mkdir(parents=True)
            (self.cache / "datasets" / name).write_text(text)
        for name, value in {"CXX": host.compiler, **variables}.items():
            patch.setenv(name, value)
        up = {name: SimpleNamespace(isup=True) for name in host.interfaces}
        addresses = {name: [SimpleNamespace(family=socket.AF_INET)] for name in host.interfaces}
        patch.setattr(socket, "gethostname", lambda: host.name)
        patch.setattr(host_checks, "versions", lambda framework: host.versions)
        patch.setattr(host_checks, "horovod_build", host.builds.get)
        patch.setattr(host_checks, "gpus", listed_gpus)
        patch.setattr(host_checks, "usable_cores", lambda: host.cores)
        patch.setattr(host_checks, "gpu_bytes", lambda: [host.memory] * len(host.gpus))
        patch.setattr(host_checks.psutil, "virtual_memory", lambda: SimpleNamespace(available=host.memory))
        patch.setattr(host_checks.psutil, "net_if_stats", lambda: up)
        patch.setattr(host_checks.psutil, "net_if_addrs", lambda: addresses)
        patch.setattr(host_checks.shutil, "disk_usage", lambda path: SimpleNamespace(free=host.free_bytes))


@pytest.fixture
def hosts(tmp_path, monkeypatch):
    """Good hosts; a local one has the name a."""
    made = Hosts(tmp_path, monkeypatch)
    monkeypatch.setenv("HOROVOD_TWINS_CACHE", str(tmp_path))
    for name in ("SLURM_JOB_ID", "SLURM_GPUS_ON_NODE", "SKYPILOT_NODE_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(platform, "node", lambda: "a")
    monkeypatch.setattr(survey, "run_for_hosts", made.run)
    monkeypatch.setattr(command, "start_ranks", lambda target, *, show: made.report)
    return made


def test_each_check_has_a_failure_here():
    """Those of hosts, of the scheduler and of shared runs are below."""
    of_table = {row["check"] for row in TABLES["finding"] if row.get("result") != "ok"}
    assert {"hosts", "scheduler", "shared runs"} | of_table == set(command.CHECKS)


@pytest.mark.parametrize("finding", TABLES["finding"], ids=lambda row: f"{row['check']}: {row['id']}")
def test_what_a_check_finds_is_one_line_with_host_and_remedy(finding, hosts, tmp_path, preflight):
    hosts.there = {name: a_host(**finding[name]) for name in ("a", "b") if name in finding}
    hosts.report = TABLES["report"] | finding.get("report", {})
    keys = {"scheduler": "hosts", "hosts": {"names": ["a:2", "b:2"]}, **finding.get("site", {})}
    words = ["--site", own_site(tmp_path, **keys), "--runs-folder", str(tmp_path / "runs")]
    words += finding.get("arguments", "").split()
    rows, _, _ = preflight(*words)
    check, result = finding["check"], finding.get("result", "failed")
    assert named(rows, "failed") == ({check} if result == "failed" else set())
    assert rows[check]["result"] == result
    assert len(rows[check]["lines"]) == (1 if result == "failed" else len(finding["words"]))
    assert [word for word in finding["words"] if word not in "\n".join(rows[check]["lines"])] == [], rows[check]


# What is inspected


# In the place of Slurm's: its plugins, the tasks of a job, a command on a host, and ranks.
SRUN = """
case "$*" in
*--mpi=list*) echo "MPI plugin types are... pmix none" ;;
*printenv*) printf "{tasks}" ;;
*--nodelist*) while [ "$1" != sh ]; do shift; done; exec "$@" ;;
*) while [ "$1" != python ]; do shift; done; {ranks} ;;
esac
"""
LISTING = SRUN.format(tasks="3: n2\\n0: n1\\n2: n2\\n1: n1\\n", ranks="exit 1")


def test_a_login_node_checks_what_it_can_and_a_laptop_its_scheduler_alone(hosts, tmp_path, programs, preflight):
    programs(sbatch="", srun=LISTING)
    rows, result, _ = preflight("--site", "cte-power")
    assert (result["result"], result["location"], result["hosts"]) == ("ok", "login node", {"a": 0})
    assert named(rows, "not checked") == NOT_ON_A_LOGIN_NODE
    assert rows["scheduler"]["lines"] == ["sbatch, srun found, srun offers pmix"]
    rows, _, _ = preflight("--site", own_site(tmp_path, "slurm", launcher="srun", slurm={"mpi": "pmix_v4"}))
    (line,) = rows["scheduler"]["lines"]
    assert line.startswith("this machine: srun does not offer pmix_v4: MPI plugin types are... pmix none. ")
    assert "[launch.slurm]" in line
    hosts.commands = {}
    rows, result, _ = preflight("--site", "aws-g5")
    assert (result["location"], hosts.commands) == ("outside", {})
    assert named(rows, "not checked") == set(rows) - {"scheduler"}
    (line,) = rows["scheduler"]["lines"]
    assert line.startswith("this machine: sky not found. ") and "load its module" in line


def test_in_a_job_the_scheduler_says_where_ranks_and_gpus_are(hosts, programs, preflight, monkeypatch, capsys):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "4")
    programs(srun=LISTING)
    hosts.there = {"n2": a_host(sees_mark=False)}
    rows, result, _ = preflight("--np", "3")
    assert (result["site"], result["location"], result["hosts"]) == ("slurm", "job", {"n1": 2, "n2": 1})
    assert " srun --nodes=1 --ntasks=1 --nodelist=n2 " in shlex.join(hosts.commands["n2"])
    assert [hosts.wanted[name].ranks for name in ("n1", "n2")] == [2, 1]
    assert rows["gpus"]["lines"][0].startswith("n1: 0 GPUs visible for 2 ranks")
    (line,) = rows["shared runs"]["lines"]
    assert line.startswith("n2: what this machine writes into /") and "not visible there" in line
    assert "--runs-folder" in line
    programs(srun="echo no allocation >&2; exit 1")
    assert main(["preflight"]) == 2
    assert "no allocation" in capsys.readouterr().err
    monkeypatch.delenv("SLURM_JOB_ID")
    monkeypatch.setenv("SKYPILOT_NODE_RANK", "0")
    rows, result, _ = preflight("--site", "aws-g5")
    assert (result["location"], rows["gpus"]["result"]) == ("job", "failed")


def test_images_in_the_home_folder_are_found_there(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for kind in ("prepared", "images"):
        assert host_checks.path_of_data(f"{kind}:~/pets") == tmp_path / "pets"


def test_hosts_reached_by_ssh_need_not_share_a_folder(hosts, preflight):
    rows, result, _ = preflight("--hosts", "a:2,b:2", "--np", "3")
    assert result["hosts"] == {"a": 2, "b": 1}
    assert named(rows, "not checked") == {"shared runs"}


# This machine, and programs in the place of those that it lacks


LISTED = r"""GPU 0: Tesla V100 (UUID: GPU-aa)
GPU 1: NVIDIA A100 (UUID: GPU-bb)
  MIG 1g.5gb      Device  0: (UUID: MIG-cc)
"""


@pytest.mark.parametrize(
    ("visible", "names", "memory"),
    [
        ("0,1", ["Tesla V100", "NVIDIA A100"], [2**34, 2**35]),
        ("MIG-cc", ["MIG 1g.5gb"], []),  # nvidia-smi does not tell the memory of a part
    ],
)
def test_gpus_as_nvidia_smi_lists_them(programs, monkeypatch, visible, names, memory):
    bytes_ = "printf 'GPU-aa, 16384\\nGPU-bb, 32768\\nGPU-dd, [N/A]\\nwarning: infoROM is corrupted\\n'"
    programs(**{"nvidia-smi": f"case \"$1\" in --list-gpus) cat <<'EOF'\n{LISTED}EOF\n;; *) {bytes_} ;; esac"})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    host_checks.gpus.cache_clear()
    assert ([gpu.name for gpu in host_checks.gpus()], host_checks.gpu_bytes()) == (names, memory)
    host_checks.gpus.cache_clear()


def test_a_driver_that_does_not_answer_is_one_line(programs):
    host_checks.gpus.cache_clear()
    programs(**{"nvidia-smi": "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18"})
    with pytest.raises(UserError, match=r"ended with 18: Failed to initialize NVML: Driver.*Fix the driver"):
        host_checks.gpus()


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
    packages = tmp_path / ".venv-keras" / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    (packages / "horovod" / "tensorflow").mkdir(parents=True)
    (packages / "horovod" / "__init__.py").touch()
    (packages / "horovod" / "tensorflow" / "mpi_lib.so").write_bytes(b"13MPIControllerE")  # the one here has Gloo, too
    (packages / "tensorflow-9.9.dist-info").mkdir()
    (packages / "tensorflow-9.9.dist-info" / "METADATA").write_text("Name: tensorflow\nVersion: 9.9\n")
    for name in ("bin/python", "pyvenv.cfg", "horovod-twins/stamp.json"):
        (tmp_path / ".venv-keras" / name).parent.mkdir(exist_ok=True)
        (tmp_path / ".venv-keras" / name).touch()
    wanted = Wanted(frameworks=("torch", "keras"), controller="gloo")
    host_checks.versions.cache_clear()
    summary = host_checks.check_software(wanted)
    assert "tensorflow 9.9," in summary and "torch 2." in summary
    with pytest.raises(UserError, match="Horovod for TensorFlow is compiled without Gloo"):
        host_checks.check_horovod(wanted)
    host_checks.versions.cache_clear()


# Answers of hosts


HOST = 'for word; do host=$last; last=$word; done\ncase $host in\n{cases}\nesac\nexec sh -c "$last"'  # in place of ssh


@pytest.fixture
def preflight_by_ssh(programs, preflight, tmp_path):
    """Make a preflight of hosts that run the last word of ssh here, after a line of shell."""

    def made(cases, **site):
        programs(ssh=HOST.format(cases="\n".join(f"{host}) {line} ;;" for host, line in cases.items())))
        file = own_site(tmp_path, "hosts", hosts={"names": [*cases]}, **site)
        return preflight("--site", file, "--runs-folder", str(tmp_path / "runs"))

    return made


def test_hosts_that_refuse_or_give_no_answer_are_named(preflight_by_ssh, tmp_path):
    """The same path leads to another interpreter on host b: one without the packages of the project."""
    python = add_script(
        tmp_path / "python", f'[ "$HOST" = b ] && exec {sys.executable} -S "$@"\nexec {sys.executable} "$@"'
    )
    cases = {
        "a": ("export HOST=a", ""),
        "b": ("export HOST=b", "cannot check itself (exit code 1): ModuleNotFoundError: No module named "),
        "c": ("echo 'root@c: Permission denied (publickey).' >&2; exit 255", "Permission denied"),
        "d": ("echo '{}'; exit", "there is another version. Bring the same files"),
        "e": ("echo nothing; exit", "cannot check itself (exit code 0): nothing"),
        "f": ("echo SyntaxError: invalid syntax >&2; exit 1", "(exit code 1): SyntaxError: invalid syntax. Run `make"),
        "g": ("exit 127", "(exit code 127): no output"),
        "h": (f"""echo '{{"project": "{host_checks.source_hash()}"}}'; exit""", "its answer cannot be read: "),
    }
    scripts = {host: script for host, (script, _) in cases.items()}
    rows, _, progress = preflight_by_ssh(scripts, python=str(python))
    assert named(rows, "failed") == {"hosts"}
    for (host, (_, words)), line in zip([*cases.items()][1:], rows["hosts"]["lines"], strict=True):
        assert host in line and words in line
    assert "authorized_keys" in rows["hosts"]["lines"][1]
    assert rows["software"]["result"] == "ok" and rows["allreduce"]["result"] == "not checked"
    assert "asking a, b, c" in progress
    assert not (tmp_path / "runs").exists()


@pytest.mark.ci
def test_ssh_to_a_host_that_does_not_answer(tmp_path, capsys):
    """Where nobody listens: `test_hosts.py`."""
    with socket.create_server(("127.0.0.2", 0)) as silent:
        keys = {"names": ["127.0.0.2"], "ssh_port": silent.getsockname()[1]}
        code = main(["preflight", "--site", own_site(tmp_path, "hosts", hosts=keys), "--runs-folder", str(tmp_path)])
    table = capsys.readouterr().out.splitlines()
    (row,) = (line for line in table if line.startswith("hosts"))
    assert code == 2 and "failed" in row and "127.0.0.2" in row and "timed out" in row
    assert table[-1].startswith("1 of 13 checks passed, in ")


def test_a_host_that_hangs_is_given_up_and_what_ran_is_ended(preflight_by_ssh, tmp_path, monkeypatch):
    monkeypatch.setattr(survey, "LIMIT_SECONDS", 3)
    number = tmp_path / "number"
    cases = {"a": f"sleep 1000 & echo $! > {number}; wait"}
    rows, _, _ = preflight_by_ssh(cases)
    assert named(rows, "failed") == {"hosts"}
    assert rows["hosts"]["lines"][0].startswith("a: no answer within 3 s. Check whether the host is overloaded")
    assert named(rows, "not checked") == set(rows) - {"hosts", "scheduler"}
    wait_until(lambda: not is_running(int(number.read_text())))


# Real ranks


@pytest.fixture
def two_ranks(programs, preflight, tmp_path, monkeypatch):
    """Make a preflight of two ranks on this machine; `ranks`: what srun does in a job to start them, as shell."""
    for name, value in environment().items():
        monkeypatch.setenv(name, value)

    def made(*words, ranks="", **keys):
        if ranks:
            monkeypatch.setenv("SLURM_JOB_ID", "7")
            keys = {"scheduler": "slurm", "launcher": "srun"}
        words = ["--np", "2", "--threads", "1", "--runs-folder", str(tmp_path / "runs"), *words]
        programs(srun=SRUN.format(tasks="0: n1\\n1: n1\\n", ranks=ranks))
        rows, result, progress = preflight("--site", own_site(tmp_path, **keys), *words)
        assert not (tmp_path / "runs").exists()
        failed = named(rows, "failed") - {"threads"}  # there may be one core
        return failed, rows["allreduce"]["lines"][0], result["allreduce"], progress

    return made


@pytest.mark.ranks
@pytest.mark.ci
def test_two_ranks_by_horovodrun_and_gloo(two_ranks):
    """Of Keras; PyTorch's are started by mpirun over two hosts in `test_hosts.py`."""
    failed, line, report, progress = two_ranks(
        "--framework", "keras", "--controller", "gloo", "--dataset", "synthetic:60x8x8x1x2"
    )
    assert failed == set() and line.startswith("1 MB over 2 ranks in ")
    assert "starting 2 ranks, at most 120 s: horovodrun -np 2 --gloo python" in progress
    assert (report["controller"], report["bytes"], report["wrong_ranks"]) == ("gloo", 10**6, [])
    assert report["devices"] == ["cpu", "cpu"] and len(report["seconds"]) == 11 and min(report["seconds"]) > 0
    assert max(map(abs, report["clock_offsets"])) < 0.5  # it is one clock; the machine may be busy


@pytest.mark.ranks
@pytest.mark.ci
def test_ranks_that_do_not_meet_say_why(two_ranks):
    """A launcher of another MPI starts as many runs of one rank."""
    failed, line, _, _ = two_ranks(ranks='exec "$@"')
    assert failed == {"allreduce"} and "1 rank met instead of 2" in line


def test_ranks_that_fail_say_why(two_ranks):
    error = "torch_impl/preflight_worker.py: error: no GPU was found"
    failed, line, _, _ = two_ranks(ranks=f"echo '{error}' >&2; exit 2")
    assert failed == {"allreduce"} and "Try it alone: `srun " in line
    assert line.startswith(f"n1: the ranks ended with code 2: {error}")


def test_ranks_that_hang_are_ended(two_ranks, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "start_ranks", partial(survey.start_ranks, limit_seconds=3.0))
    number = tmp_path / "number"
    failed, line, _, _ = two_ranks(ranks=f"sleep 1000 & echo $! > {number}; wait")
    assert failed == {"allreduce"} and line.startswith("n1: the ranks did not end within 3 s: ")
    wait_until(lambda: not is_running(int(number.read_text())))
