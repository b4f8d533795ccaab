"""Several plain hosts over ssh: two hosts of namespaces with an sshd each, both frameworks, Gloo and MPI."""

import json
import sys

import pytest
from processes import ROOT, call, environment
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
    with several_hosts(tmp_path_factory.mktemp("hosts"), names=["a", "b"]) as hosts:
        yield hosts


def write_site(folder, hosts, **launch):
    return own_site(folder, "hosts", name="two", network_interface=INTERFACE, **launch, hosts=hosts)


def options_of(hosts, **others):
    """Return [launch.hosts] for these hosts, some options replaced."""
    return {"names": ["a:1", "b:1"], "ssh_port": SSH_PORT, "identity_file": hosts.identity, **others}


@pytest.mark.cluster
@pytest.mark.parametrize(("framework", "controller"), [("torch", "mpi"), ("keras", "gloo")])
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
def test_a_preflight_comes_to_the_sum_over_the_ranks(hosts, tmp_path):
    site = write_site(
        tmp_path, options_of(hosts, names=["a", "b"]), launcher="mpirun", environment={"PYTHONPATH": str(ROOT)}
    )  # fmt: skip
    words = ["--framework", "torch", "--dataset", "none", "--runs-folder", str(tmp_path / "runs")]
    command = [*LAUNCH, "preflight", "--format", "json", "--site", site, *words]
    done = hosts.run("a", command, environment=environment())
    result = json.loads(done.stdout)
    assert (result["result"], done.returncode) == ("ok", 0), json.dumps(result, indent=1)
    assert result["hosts"] == {"a": 1, "b": 1} and result["allreduce"]["hosts"] == ["a", "b"]


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("launcher", "controller", "start"),
    [("horovodrun", "gloo", "horovodrun -np 2 -H b:1,a:1 "), ("mpirun", "mpi", "mpirun -np 2 -H b:1,a:1 ")],
)
def test_a_cancelled_job_leaves_no_rank_on_any_host(hosts, tmp_path, launcher, controller, start):
    site = write_site(
        tmp_path, options_of(hosts, names=["b:1", "a:2"]), runs_folder=str(tmp_path / "runs"), launcher=launcher,
        controller=controller, environment={"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
    )  # fmt: skip
    jobs = ["--jobs-folder", str(tmp_path / "jobs")]
    words = ["--site", site, "--nodes", "2", "--no-preflight", "--name", "endless", *jobs]
    endless = [*SMALL, "--epochs", "1000000"]
    submitted = hosts.run("a", [*LAUNCH, "submit", *words, "--", "torch_impl/train.py", *endless])
    assert submitted.returncode == 0, submitted.stderr
    job = tmp_path / "jobs" / "endless"
    wait_until(lambda: "images/s" in (job / "output.log").read_text(), shown=(job / "output.log").read_text)
    assert all(ranks_on(hosts, host) for host in "ab") and start in (job / "job.sh").read_text()
    world = read_run(tmp_path / "runs" / "endless").record.world
    assert (sorted(world.hosts), world.local_size, world.controller) == (["a", "b"], 1, controller)
    assert hosts.run("a", [*LAUNCH, "cancel", "endless", *jobs]).returncode == 0
    status = [*LAUNCH, "status", "endless", *jobs]
    wait_until(lambda: "  cancelled " in hosts.run("a", status).stdout, shown=(job / "output.log").read_text)
    wait_until(lambda: not ranks_on(hosts, "a") and not ranks_on(hosts, "b"), shown=(job / "output.log").read_text)


def ranks_on(hosts, host):
    """Return the trainers that run on a host, a command line each."""
    return [line for line in hosts.running(host) if line.startswith("python torch_impl/train.py")]


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
    """Nor is a job submitted where no name is known."""
    site = write_site(tmp_path, options_of(hosts, names=named.split(","), **changed))
    size = str(len(named.split(",")))
    train = ["train", "--site", site, "--np", size, "--", *SHORT, "--runs-folder", str(tmp_path / "runs")]
    jobs = str(tmp_path / "jobs")
    submit = ["submit", "--site", site, "--nodes", size, "--jobs-folder", jobs, "--", "torch_impl/train.py", *SHORT]
    for command in (train, submit) if "nowhere" in named else (train,):
        done = hosts.run("a", [*LAUNCH, *command])
        assert done.returncode == 2
        line = done.stderr.splitlines()[-1]
        assert all(word in line for word in ["error: ssh does not reach", *words])
        assert len(done.stderr.splitlines()) == (1 if command is train else 2)
    assert not (tmp_path / "runs").exists() and not list(tmp_path.glob("jobs/*"))


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
