"""An error while rank 0 reads the arrays of a model in parts leaves no rank waiting; the arrays: `test_resumed.py`."""

import queue
from dataclasses import dataclass, replace
from typing import Any

import pytest
from fake_ranks import run_ranks

from common.distributed.whole_arrays import whole_arrays
from common.errors import UserError
from common.model.partition import cut_into_stages
from common.model.specs import model_spec
from common.model.weights import draw_initial_weights, weights_hash

STAGES = 3
CNN = model_spec("cnn", input_shape=(1, 28, 28), outputs=10)


@dataclass
class Mailbox:
    """Messages to rank 0, each of which its sender waits for, as MPI may let it."""

    boxes: list["queue.Queue[Any]"]
    rank: int

    def send(self, value, *, dest, tag):
        self.boxes[self.rank].put(value)
        self.boxes[self.rank].join()

    def recv(self, *, source, tag):
        value = self.boxes[source].get(timeout=10.0)
        self.boxes[source].task_done()
        return value

    def Send(self, array, *, dest, tag):  # noqa: N802 - mpi4py's name
        self.send(array, dest=dest, tag=tag)

    def Recv(self, array, *, source, tag):  # noqa: N802
        array[...] = self.recv(source=source, tag=tag)


@pytest.mark.parametrize("arrays_read", [0, 1, 5, None])
def test_an_error_while_rank_0_reads_is_raised_on_all_ranks(arrays_read):
    partition, whole = cut_into_stages(CNN, STAGES), draw_initial_weights(CNN, seed=1)
    boxes = [queue.Queue() for _ in range(STAGES)]

    def read(comm):
        comm = replace(comm, parts=STAGES, links=Mailbox(boxes, comm.rank))
        weights = partition.cut(whole, comm.part)
        state = {f"{name}.momentum_buffer": 2 * array for name, array in weights.items()}
        with (
            comm.propagate_errors("writing"),
            whole_arrays(weights, state, partition=partition, comm=comm) as (all_weights, _),
        ):
            if comm.rank == 0 and arrays_read is None:
                assert weights_hash(dict(all_weights.arrays)) == weights_hash(whole)
            elif comm.rank == 0:
                for _ in range(arrays_read):
                    next(all_weights.arrays)
                raise OSError(28, "No space left on device", "weights")

    for error in run_ranks(STAGES, read):
        if arrays_read is None:
            assert error is None
        else:
            assert isinstance(error, UserError) and "No space left on device" in str(error)
