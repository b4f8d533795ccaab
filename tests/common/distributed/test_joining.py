"""How ranks join: what Horovod cannot start with, and ranks that do not meet. By MPI: `end_to_end/test_server.py`."""

import os
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from frameworks import need
from processes import child_environment, launcher_command, run_python

from common.config import Config, DeviceConfig
from common.distributed.joining import join, join_ranks
from common.distributed.launchers import HOST_ALIASES


def meets_at_try(number):
    """Return Horovod's part of `join` for one rank, where others end before all have met; and its calls."""
    calls = []

    def init(process_sets):
        calls.append("init")
        if calls.count("init") < number:
            raise ValueError("Horovod initialization failed.")

    answers = {"nccl_built": 0, "mpi_enabled": False, "rank": 0, "local_rank": 0, "size": 1, "local_size": 1}
    functions = {name: lambda value=value: value for name, value in answers.items()}
    return SimpleNamespace(init=init, shutdown=lambda: calls.append("shutdown"), **functions), calls


def test_elastic_ranks_meet_again_after_one_has_ended_before_and_others_do_not(monkeypatch):
    monkeypatch.setattr(os, "environ", {"HOROVOD_ELASTIC": "1"})
    hvd, calls = meets_at_try(3)
    assert join(hvd, Config()).size == 1
    assert calls == ["init", "shutdown", "init", "shutdown", "init"]
    monkeypatch.setattr(os, "environ", {})
    hvd, calls = meets_at_try(2)
    with pytest.raises(ValueError, match="initialization failed"):
        join(hvd, Config())
    assert calls == ["init"]


@pytest.mark.parametrize(
    ("device", "cycle"),
    [({"device": "gpu"}, None), ({"device": "cpu"}, "0.2"), ({"share_gpu": True}, "0.2")],
)
def test_gradients_in_host_memory_are_exchanged_as_such_also_with_nccl(monkeypatch, device, cycle):
    launched = {"OMPI_COMM_WORLD_SIZE": "2"}
    monkeypatch.setattr(os, "environ", launched)
    hvd, _ = meets_at_try(1)
    hvd.nccl_built = lambda: True
    join_ranks(hvd, Config(device=DeviceConfig(**device)))
    assert launched.get("HOROVOD_CYCLE_TIME") == cycle


OVER_GLOO = {"OMPI_COMM_WORLD_SIZE": "2", "HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}
OTHER_WAY = {"OMPI_COMM_WORLD_SIZE": "2", "HOROVOD_CPU_OPERATIONS": "gloo", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
OF_SECOND = {"OMPI_COMM_WORLD_SIZE": "2", "HOROVOD_CONTROLLER": "Gloo", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
ALIAS = {HOST_ALIASES: "localhost,127.0.0.1", "HOROVOD_HOSTNAME": "127.0.0.1"}
UNRESOLVED = "Gloo looks up the name of its host. Received: {}, which does not resolve. Add the name to /etc/hosts"


@pytest.mark.parametrize(
    ("variables", "name", "line"),
    [
        (OVER_GLOO, "nowhere.invalid", UNRESOLVED),
        (OVER_GLOO | {"HOROVOD_LOCAL_RANK": "0"}, "a..b", UNRESOLVED),
        (OVER_GLOO, "192.0.2.1", "which resolves to {}, not an address of this host. Add the name to /etc/hosts"),
        (OTHER_WAY, "localhost", "Received: mpi and gloo. Start the ranks with `horovodrun --gloo`"),
        # Where the first rank of a host has said it, others wait for its end.
        (OVER_GLOO | {"HOROVOD_LOCAL_RANK": "1"}, "nowhere.invalid", None),
        (OVER_GLOO | ALIAS, "nowhere.invalid", None),
        (OF_SECOND, "localhost", None),
    ],
)
def test_what_horovod_cannot_start_with_is_one_line_of_a_host_before_it_starts(
    monkeypatch, capsys, variables, name, line
):
    waited = []
    monkeypatch.setattr(os, "environ", dict(variables))
    monkeypatch.setattr(os, "_exit", sys.exit)
    monkeypatch.setattr(socket, "gethostname", lambda: name)
    monkeypatch.setattr(time, "sleep", waited.append)
    hvd, calls = meets_at_try(1)
    with pytest.raises(SystemExit, match="2"):
        join(hvd, Config())
    error = capsys.readouterr().err
    assert line.format(name) in error and error.count("\n") == 1 if line else error == ""
    assert (calls, len(waited)) == ([], int(line is None))


def test_a_rank_that_nobody_wants_ends_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr(os, "environ", {"HOROVOD_ELASTIC": "1"})
    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(SystemExit, match="2"):
        join(meets_at_try(99)[0], Config())
    error = capsys.readouterr().err
    assert "could not join the others. Received: 5 tries" in error and error.count("\n") == 1


def test_without_gloo_nobody_looks_up_the_name_of_the_host(monkeypatch):
    monkeypatch.setattr(os, "environ", {"OMPI_COMM_WORLD_SIZE": "2"})
    monkeypatch.setattr(socket, "gethostname", lambda: "nowhere.invalid")
    assert join(meets_at_try(1)[0], Config()).size == 1


SEPARATE_TENSORS = """
import sys, time
from pathlib import Path
import torch
import horovod.torch as hvd
hvd.init()
longest, names = 0.0, ["a", "b", "c", "d"]
for _ in range(10):
    began, handles = time.monotonic(), []
    for name in names if hvd.rank() else reversed(names):
        handles.append(hvd.allreduce_async(torch.ones(3), name=name))
        time.sleep(0.002)
    for handle in handles:
        hvd.synchronize(handle)
    longest = max(longest, time.monotonic() - began)
Path(sys.argv[1], f"seconds-{hvd.rank()}").write_text(str(longest))
"""


@pytest.mark.ranks
@pytest.mark.ci
@pytest.mark.parametrize("launcher", ["mpirun2", "gloo2"])
def test_a_tensor_that_waits_for_other_ranks_keeps_the_thread_of_horovod_awake(tmp_path, launcher):
    """Once it slept after each tensor that the others had not announced, as in Keras' Adasum."""
    need("torch")
    asleep = 4000  # milliseconds, far more than the machine's own delays
    done = subprocess.run(
        [*launcher_command(launcher), sys.executable, "-c", SEPARATE_TENSORS, str(tmp_path)],
        env=child_environment(tmp_path) | {"HOROVOD_TWINS_IDLE_MS": str(asleep), "HOROVOD_CYCLE_TIME": "0.2"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seconds = [float(file.read_text()) for file in tmp_path.glob("seconds-*")]
    assert len(seconds) == 2, done.stdout
    assert max(seconds) < 0.9 * asleep / 1000


def test_a_rank_that_cannot_read_its_settings_does_not_wait_for_ranks_that_can():
    code = """
import time
from common.distributed.joining import no_other_way
from common.errors import UserError
from common.run.program import read_settings
with no_other_way(None, patience_seconds=0.01):
    time.sleep(0.1)
with no_other_way(UserError("no such file"), patience_seconds=0.01):
    time.sleep(60)
"""
    ended = run_python("-c", code)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "error: no such file (this rank alone, because the others do not join)\n"
