"""The communicator: sums in one order, errors propagated to all ranks, weights compared."""

import errno
import os
import pickle
import socket
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from fake_ranks import alone, run_ranks
from frameworks import need
from processes import child_environment, launcher_command

from common.config import Config, DeviceConfig
from common.distributed import communicator
from common.distributed.joining import join, join_ranks
from common.distributed.launchers import HOST_ALIASES, controller_variables, place_on_host
from common.errors import UserError


def test_sums_in_the_order_of_ranks_maximum_and_first():
    values = [1e16, 1.0, -1e16, 1.0]

    def work(comm):
        mine = np.array([values[comm.rank], comm.rank])
        return comm.sum(mine).tolist(), comm.maximum(mine).tolist(), comm.broadcast(f"rank {comm.rank}")

    assert run_ranks(4, work) == [([((1e16 + 1.0) - 1e16) + 1.0, 6.0], [1e16, 3.0], "rank 0")] * 4
    assert work(alone()) == ([1e16, 0.0], [1e16, 0.0], "rank 0")


def test_a_broadcast_is_sent_in_pieces_of_a_size_that_horovod_can_count(monkeypatch):
    monkeypatch.setattr(communicator, "PIECE_BYTES", 1000)
    arrays = {"a": np.arange(1e4), "b": np.zeros(0)}

    def work(comm):
        sent = []

        def allgather(value):
            sent.append(len(pickle.dumps(value)))
            return comm.allgather(value)

        received = replace(comm, allgather=allgather).broadcast(arrays if comm.rank == 1 else None, root=1)
        assert all(np.array_equal(received[name], array) for name, array in arrays.items())
        return max(sent) < 1100, sum(sent) > 8e4

    assert run_ranks(3, work) == [(True, False), (True, True), (True, False)]


DISK_FULL = "writing failed: No space left on device. Received: /data/a. Free some space or name another folder"
STRANGE = "writing failed: strange. Received: no path. Check the path, its disk and its permissions"


@pytest.mark.parametrize(
    ("errors", "message"),
    [
        ({}, None),
        ({0: UserError("no. Received: x. Do y")}, "no. Received: x. Do y"),
        ({2: UserError("no. Received: x. Do y")}, "no. Received: x. Do y (rank 2)"),
        ({1: UserError("one"), 2: UserError("two")}, "one (rank 1)"),
        ({rank: UserError("same") for rank in range(3)}, "same"),
        ({0: OSError(errno.ENOSPC, "No space left on device", "/data/a")}, DISK_FULL),
        ({0: OSError("strange")}, STRANGE),
    ],
)
def test_the_error_of_one_rank_reaches_all(errors, message):
    def work(comm):
        with comm.propagate_errors("writing"):
            if comm.rank in errors:
                raise errors[comm.rank]

    results = run_ranks(3, work)
    assert all(isinstance(result, UserError) == bool(errors) for result in results)
    assert [result and str(result) for result in results] == [message] * 3


def test_a_bug_is_not_turned_into_a_user_error():
    def work(comm):
        with comm.propagate_errors("writing"):
            assert comm.rank

    results = run_ranks(2, work)
    assert isinstance(results[0], AssertionError)
    assert isinstance(results[1], RuntimeError), "the other rank waits for it, until its launcher ends it"


MPI = {"OMPI_COMM_WORLD_SIZE": "2"}
GLOO = {"HOROVOD_RANK": "0", "HOROVOD_CONTROLLER": "gloo"}
YIELDING = {"OMPI_MCA_mpi_yield_when_idle": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
ON_CPUS = {"HOROVOD_CYCLE_TIME": "0.2", "HOROVOD_FUSION_THRESHOLD": "4194304", "HOROVOD_TWINS_IDLE_MS": "20"}
PATIENT = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "3600"}
BY_SRUN = {"OMPI_MCA_pmix_base_async_modex": "1", "OMPI_MCA_pmix_base_collect_data": "0"}


@pytest.mark.parametrize(
    ("variables", "nccl", "added"),
    [
        (MPI, False, YIELDING | ON_CPUS),
        ({"SLURM_STEP_ID": "0", "PMIX_RANK": "0"}, False, YIELDING | ON_CPUS | BY_SRUN),
        (MPI | dict.fromkeys(YIELDING | ON_CPUS, "7"), False, {}),  # values set by the user are kept
        # Horovod's own cycle time and buffers: for NCCL, and for Gloo, which `horovodrun --gloo` names.
        (MPI, True, YIELDING),
        ({"PMI_SIZE": "2"}, True, YIELDING),
        (GLOO, True, YIELDING | PATIENT),
        (GLOO, False, YIELDING | PATIENT | {"HOROVOD_TWINS_IDLE_MS": "20"}),
        (GLOO | {"HOROVOD_ELASTIC": "1"}, True, YIELDING),
    ],
)
def test_variables_of_the_controller(variables, nccl, added):
    assert controller_variables(variables, nccl=nccl) == added


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({"HOROVOD_HOSTNAME": "localhost"}, None),  # as Horovod names hosts over Gloo
        ({HOST_ALIASES: "localhost,127.0.0.1,127.0.0.01", "HOROVOD_HOSTNAME": "127.0.0.1"}, (1, 3)),
        ({HOST_ALIASES: "localhost,127.0.0.1", "HOROVOD_HOSTNAME": "node7"}, None),
    ],
)
def test_only_names_of_this_host_decide_on_the_place_of_a_rank(variables, place):
    assert place_on_host(variables) == place


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
