"""Several plain hosts over ssh: two hosts of namespaces with an sshd each, both frameworks, Gloo and MPI."""

import sys

import pytest
from processes import call
from sites_and_jobs import own_site
from two_hosts import INTERFACE, SSH_PORT, several_hosts
from waiting import wait_until

from common.run_folder.records import read_run
from launch.__main__ import main

SMALL = ["--device", "cpu", "--threads", "1", "--dataset", "synthetic:1200x28x28x1x10", "--model", "mlp"]
SHORT = [*SMALL, "--epochs", "1", "--max-steps", "4"]
LAUNCH = [sys.executable, "-m", "launch"]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    """Two hosts, a and b."""
    with several_hosts(tmp_path_factory.mktemp("hosts"), names=["a", "b"]) as hosts:
        yield hosts


def write_site(folder, hosts, **launch):
    """Write the site of these hosts."""
    return own_site(folder, "hosts", name="two", network_interface=INTERFACE, **launch, hosts=hosts)


def options_of(hosts, **others):
    """Return [launch.hosts] for these hosts, some options replaced."""
    return {"names": ["a:1", "b:1"], "ssh_port": SSH_PORT, "identity_file": hosts.identity, **others}


@pytest.mark.cluster
@pytest.mark.parametrize("controller", ["gloo", "mpi"])
@pytest.mark.parametrize("framework", ["torch", "keras"])
def test_both_frameworks_train_on_two_hosts(hosts, tmp_path, framework, controller):
    site = write_site(tmp_path, options_of(hosts))
    folder = tmp_path / "all runs"  # a blank, which two shells see
    words = ["train", "--site", site, "--framework", framework, "--np", "2", "--controller", controller]
    done = hosts.run("a", [*LAUNCH, *words, "--", *SHORT, "--runs-folder", str(folder), "--name", "one"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 ranks on a, b: " in done.stdout
    record = read_run(folder / "one").record
    assert (record.status.state, record.status.host, record.site) == ("finished", "a", "hosts")
    assert (record.world.hosts, record.world.size, record.world.local_size) == (["a", "b"], 2, 1)
    assert record.world.controller == controller


@pytest.mark.cluster
def test_a_job_runs_on_hosts_of_a_site_by_mpirun(hosts, tmp_path):
    environment = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    site = write_site(
        tmp_path, options_of(hosts, names=["b:1", "a:2"]), launcher="mpirun", runs_folder=str(tmp_path / "runs"),
        environment=environment,
    )  # fmt: skip
    jobs = ["--jobs-folder", str(tmp_path / "jobs")]
    words = ["--site", site, "--nodes", "2", "--no-preflight", "--name", "job", *jobs]
    submitted = hosts.run("a", [*LAUNCH, "submit", *words, "--", "torch_impl/train.py", *SHORT])
    assert submitted.returncode == 0, submitted.stderr
    log = wait_for_state(hosts, "job", "finished", jobs=jobs)
    assert "mpirun -np 2 -H b:1,a:1 " in (tmp_path / "jobs" / "job" / "job.sh").read_text()
    world = read_run(tmp_path / "runs" / "job").record.world
    assert (sorted(world.hosts), world.local_size, world.controller) == (["a", "b"], 1, "mpi"), log


@pytest.mark.cluster
@pytest.mark.parametrize("controller", ["gloo", "mpi"])
def test_a_cancelled_job_leaves_no_rank_on_any_host(hosts, tmp_path, controller):
    site = write_site(tmp_path, options_of(hosts), runs_folder=str(tmp_path / "runs"), controller=controller)
    jobs = ["--jobs-folder", str(tmp_path / "jobs")]
    words = ["--site", site, "--nodes", "2", "--no-preflight", "--name", "endless", *jobs]
    endless = [*SMALL, "--epochs", "1000000"]
    submitted = hosts.run("a", [*LAUNCH, "submit", *words, "--", "torch_impl/train.py", *endless])
    assert submitted.returncode == 0, submitted.stderr
    log = tmp_path / "jobs" / "endless" / "output.log"
    wait_until(lambda: "images/s" in log.read_text(), shown=lambda: log.read_text())
    assert all(ranks_on(hosts, host) for host in "ab")
    assert hosts.run("a", [*LAUNCH, "cancel", "endless", *jobs]).returncode == 0
    wait_for_state(hosts, "endless", "cancelled", jobs=jobs)
    wait_until(lambda: not ranks_on(hosts, "a") and not ranks_on(hosts, "b"), shown=lambda: log.read_text())


def ranks_on(hosts, host):
    """Return the trainers that run on a host, a command line each."""
    return [line for line in hosts.running(host) if line.startswith("python torch_impl/train.py")]


def wait_for_state(hosts, name, state, *, jobs):
    """Wait until a job has this status; return its log."""

    def shown():
        return hosts.run("a", [*LAUNCH, "status", name, *jobs]).stdout

    def log():
        return hosts.run("a", [*LAUNCH, "logs", name, *jobs]).stdout

    wait_until(lambda: f"  {state} " in shown(), shown=lambda: shown() + log())
    return log()


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("changed", "named", "words"),
    [
        ({"ssh_port": 2}, "a:1,b:1", ["b, port 2", "Connection refused", "Start sshd there"]),
        ({"identity_file": "/dev/null"}, "a:1,b:1", ["Permission denied", "authorized_keys"]),
        ({}, "a:1,10.77.0.2:1", ["Host key verification failed", "Connect once by hand"]),
        ({}, "a:1,nowhere:1", ["nowhere", "Could not resolve hostname"]),
        ({}, "a:1,nowhere:1,elsewhere:1", ["nowhere", "and 1 more of 2 hosts"]),
    ],
    ids=["no sshd", "key", "host key", "name", "two names"],
)
def test_an_unreachable_host_is_reported_in_one_line(hosts, tmp_path, changed, named, words):
    """Nor is a job submitted there."""
    site = write_site(tmp_path, options_of(hosts, names=named.split(","), **changed))
    size = str(len(named.split(",")))
    train = ["train", "--site", site, "--np", size, "--", *SHORT, "--runs-folder", str(tmp_path / "runs")]
    jobs = str(tmp_path / "jobs")
    submit = ["submit", "--site", site, "--nodes", size, "--jobs-folder", jobs, "--", "torch_impl/train.py", *SHORT]
    for command in (train, submit):
        done = hosts.run("a", [*LAUNCH, *command])
        assert done.returncode == 2
        line = done.stderr.splitlines()[-1]
        assert all(word in line for word in ["error: ssh does not reach", *words])
        assert len(done.stderr.splitlines()) == (1 if command is train else 2)
    assert not (tmp_path / "runs").exists() and not list((tmp_path / "jobs").iterdir())


@pytest.mark.cluster
def test_commands_run_on_all_hosts_and_end_there_at_the_limit(hosts):
    code = f"""
from launch.starting.parallel import run_for_hosts
from launch.starting.ssh import Ssh
ssh = Ssh(port={SSH_PORT}, identity={hosts.identity!r})
def run(command, *, limit_seconds):
    commands = {{host: ssh.words(host, command, limit_seconds=limit_seconds) for host in ["b", "a"]}}
    return run_for_hosts(commands, limit_seconds=limit_seconds).values()
words = ["python3", "-c", "import os, sys; print(os.uname().nodename, sys.argv[1:]); sys.exit(3)", "$(id) 'x y'"]
for outcome in run(words, limit_seconds=60):
    print(outcome.host, outcome.code, outcome.stdout.strip())
for outcome in run(["sleep", "86399"], limit_seconds=1):
    print(outcome.host, outcome.code in (None, 124))  # whoever is first: we here, or `timeout` there
"""
    done = hosts.run("a", [sys.executable, "-c", code])
    output = "[\"$(id) 'x y'\"]"
    assert done.stdout.splitlines() == [f"b 3 b {output}", f"a 3 a {output}", "b True", "a True"], done.stderr
    wait_until(
        lambda: not any("86399" in line for host in "ab" for line in hosts.running(host)),
        shown=lambda: str(hosts.running("b")),
    )


def test_the_command_names_hosts_and_how_they_are_reached(tmp_path):
    options = {"names": ["a:2", "b:2"], "ssh_port": 2222, "identity_file": "/home/me/key", "mpi_folder": "/opt/mpi"}
    site, file = write_site(tmp_path, options), tmp_path / "hosts"
    file.write_text("# two nodes\nnode1   slots=2\n\nnode2:1 # the small one\nnode3\n")
    reached, interface = "--disable-cache -p 2222 -i /home/me/key", f"--network-interfaces {INTERFACE}"
    for words, command in [
        ([], f"-H a:2,b:1 {reached} '--mpi-args=--prefix /opt/mpi' {interface} --mpi "),
        (["--controller", "gloo"], f"-H a:2,b:1 {reached} {interface} --gloo "),
        (["--hosts", str(file), "--controller", "gloo"], f"-H node1:2,node2:1 {reached} {interface} --gloo "),
    ]:
        shown = call(main, "train", "--site", site, "--np", "3", *words, "--dry-run", "--", *SHORT)
        assert shown.startswith(f"horovodrun -np 3 {command}")
