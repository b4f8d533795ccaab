"""How ranks that come and go are started: the names of this host, the words of horovodrun, and what is refused."""

import socket
import subprocess

import pytest

from common.distributed.communicator import HOST_ALIASES
from common.errors import UserError
from launch.__main__ import main
from launch.starting import train
from launch.starting.elastic import MOST_ALIASES, ElasticStart, aliases_of_this_host
from launch.starting.launchers import launcher_at
from launch.starting.processes import Ended

DATASET = "synthetic:256x28x28x1x3"


def start(folder, *, hosts=None, **numbers):
    return ElasticStart(
        launcher=launcher_at(None, hosts=hosts), folder=folder, **{"np": 2, "least": 1, "most": 4, **numbers}
    )


def test_every_rank_of_this_host_has_a_name_that_leads_to_it():
    names = aliases_of_this_host(MOST_ALIASES)
    assert len(set(names)) == MOST_ALIASES
    assert {socket.gethostbyname(name) for name in names} == {"127.0.0.1"}


def test_the_script_lists_the_hosts_that_are_in_the_file(tmp_path):
    folder = tmp_path / "a folder"  # with a space
    folder.mkdir()
    one = start(folder)
    one.write_files()

    def listed():
        return subprocess.run([folder / "hosts.sh"], capture_output=True, text=True, check=True).stdout.split()

    assert listed() == ["localhost:1", "127.0.0.1:1"]
    one.hosts_file.write_text("node7:2\n")
    assert listed() == ["node7:2"]
    assert one.variables == {HOST_ALIASES: "localhost,127.0.0.1,127.0.0.01,127.0.0.001"}


def test_named_hosts_have_all_their_slots_and_no_other_names(tmp_path):
    one = start(tmp_path, hosts="node1:2,node2:4")
    one.write_files()
    assert one.hosts_file.read_text() == "node1:2\nnode2:4\n"
    assert one.variables == {}
    assert "--network-interfaces" not in one.words()


def test_the_command_is_horovodruns(tmp_path):
    assert start(tmp_path).words() == [
        *("horovodrun", "-np", "2", "--min-np", "1", "--max-np", "4"),
        *("--host-discovery-script", str(tmp_path / "hosts.sh")),
        *("--gloo-timeout-seconds", "15", "--blacklist-cooldown-range", "5", "60", "--network-interfaces", "lo"),
    ]


@pytest.mark.parametrize("numbers", [{"least": 3}, {"most": 1}, {"least": 0}, {"np": 5}])
def test_numbers_that_do_not_fit_together_are_refused(numbers, tmp_path):
    with pytest.raises(UserError, match="the number of ranks lies between the least and the most"):
        start(tmp_path, **numbers)


def run_main(arguments):
    try:
        return main(arguments)
    except SystemExit as stop:
        return int(stop.code or 0)


def test_a_dry_run_prints_the_command_and_starts_nothing(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    arguments = ["train", "--elastic", "--np", "2", "--max-np", "3", "--dry-run", "--", "--dataset", DATASET]
    assert run_main(arguments) == 0
    line, hosts = capfd.readouterr().out.splitlines()
    assert line.startswith("horovodrun -np 2 --min-np 1 --max-np 3 --host-discovery-script NEW_FOLDER/hosts.sh ")
    assert line.endswith("--elastic")
    assert hosts == "NEW_FOLDER is made at the start; its hosts.sh prints: localhost:1 127.0.0.1:1"
    assert list(tmp_path.iterdir()) == []


def test_hosts_that_ssh_does_not_reach_are_one_line(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    words = ["--elastic", "--hosts", "unknown.invalid:1,node1:1", "--", "--dataset", DATASET]
    assert run_main(["train", "--np", "2", *words]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert "ssh does not reach" in line


def started_again(monkeypatch, *, ends, state, restarts):
    """Run `launch train --restarts` with ranks that end in these ways; return its exit code, and what it started."""
    commands = []

    def run_to_end(command, *, environment):
        commands.append(command)
        return ends[len(commands) - 1]

    monkeypatch.setattr(train, "run_to_end", run_to_end)
    monkeypatch.setattr(train, "_state_of_run", lambda settings: state)
    return run_main(["train", "--np", "1", "--restarts", str(restarts), "--", "--dataset", DATASET]), commands


LOST, DONE = Ended(137, was_interrupted=False), Ended(0, was_interrupted=False)


@pytest.mark.parametrize(
    ("ends", "state", "restarts", "code", "starts"),
    [
        ([LOST, LOST, DONE], "killed", 3, 0, 3),
        ([LOST, DONE], "interrupted", 1, 0, 2),
        ([LOST, LOST], "killed", 1, 137, 2),
        ([Ended(2, was_interrupted=False)], "failed", 3, 2, 1),  # an error, which would come again
        ([Ended(2, was_interrupted=False)], None, 3, 2, 1),
        ([LOST, DONE], None, 3, 0, 2),  # before there was a run folder
        ([LOST, DONE], "running", 3, 0, 2),  # as it looks for a minute, if its first rank was on another host
        ([Ended(130, was_interrupted=True)], "interrupted", 3, 130, 1),  # the user's Ctrl-C
    ],
)
def test_ranks_are_started_again_while_they_end_by_themselves(
    ends, state, restarts, code, starts, tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    got, commands = started_again(monkeypatch, ends=ends, state=state, restarts=restarts)
    assert (got, len(commands)) == (code, starts)
    assert all(command == commands[0] for command in commands)
    assert "--resume-or-start" in commands[0]
    assert "--on-stall end" in " ".join(commands[0])
    assert commands[0][commands[0].index("--name") + 1].startswith("torch-np1-")
    assert capfd.readouterr().out.count(", from the newest checkpoint") == starts - 1
