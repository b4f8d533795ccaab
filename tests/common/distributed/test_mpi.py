"""Ranks without Horovod: one process alone, and the controller that is refused. Several ranks: `test_server.py`."""

import pytest

from common.config import StrategyConfig
from common.distributed.communicator import LAUNCHER_VARIABLES
from common.distributed.mpi import check_controller, join_mpi
from common.errors import UserError


class Messages(StrategyConfig):
    """A strategy that does not use Horovod."""

    uses_horovod = False


def test_a_process_without_a_launcher_is_the_only_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LAUNCHER_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    comm = join_mpi()
    assert (comm.rank, comm.size, comm.controller, comm.is_server, comm.world) == (0, 1, "none", False, None)
    assert comm.allgather("this") == ["this"]


@pytest.mark.parametrize(
    "variables",
    [
        {"HOROVOD_RANK": "0", "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1"},
        {"OMPI_COMM_WORLD_SIZE": "2", "HOROVOD_CONTROLLER": "gloo"},
    ],
)
def test_gloo_is_refused_where_messages_go_by_mpi(variables: dict[str, str]) -> None:
    with pytest.raises(UserError, match="exchanges messages by MPI"):
        check_controller(Messages(), variables)
    check_controller(StrategyConfig(), variables)
    with pytest.raises(UserError, match="--adasum exchanges messages by MPI"):
        check_controller(StrategyConfig(adasum=True), variables)


@pytest.mark.parametrize("variables", [{"OMPI_COMM_WORLD_SIZE": "2"}, {"HOROVOD_CONTROLLER": "gloo"}])
def test_mpi_and_a_process_alone_are_accepted(variables: dict[str, str]) -> None:
    """Horovod itself chooses Gloo for a process without a launcher."""
    check_controller(Messages(), variables)
