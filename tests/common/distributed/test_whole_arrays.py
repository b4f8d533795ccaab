"""The arrays of a model in parts reach rank 0 one after the other; an error while it reads leaves no rank waiting."""

import queue
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from fake_ranks import run_ranks

from common.distributed.whole_arrays import whole_arrays
from common.errors import UserError
from common.model.partition import cut_into_stages
from common.model.specs import model_spec
from common.model.split import split_layers
from common.model.weights import draw_initial_weights, save_weights, weights_hash

CNN = model_spec("cnn", input_shape=(1, 28, 28), outputs=10)
SECONDS = 10.0


@dataclass
class Mailbox:
    """Messages to rank 0, each of which its sender waits for, as MPI may let it."""

    boxes: dict[int, "queue.Queue[Any]"]
    rank: int

    def send(self, value, *, dest, tag):
        self.boxes[self.rank].put(value)
        self.boxes[self.rank].join()

    def recv(self, *, source, tag):
        value = self.boxes[source].get(timeout=SECONDS)
        self.boxes[source].task_done()
        return value

    def Send(self, array, *, dest, tag):  # noqa: N802 - mpi4py's name
        self.send(array, dest=dest, tag=tag)

    def Recv(self, array, *, source, tag):  # noqa: N802
        sent = self.recv(source=source, tag=tag)
        assert (sent.shape, sent.dtype) == (array.shape, array.dtype)
        array[...] = sent


def of_ranks(partition, copies, work):
    """Call `work` on every rank with its weights and its optimizer state."""
    parts = len(partition.parts)
    boxes = {rank: queue.Queue() for rank in range(copies * parts)}
    whole = draw_initial_weights(CNN, seed=1)
    state = {f"{name}.momentum_buffer": 2 * array for name, array in whole.items()} | {"step": np.array([7])}

    def on_rank(comm):
        comm = replace(comm, parts=parts, links=Mailbox(boxes, comm.rank))
        return work(comm, partition.cut(whole, comm.part), partition.cut(state, comm.part))

    return run_ranks(copies * parts, on_rank)


PARTITIONS = [
    pytest.param(cut_into_stages(CNN, 1), 2, id="whole"),
    pytest.param(cut_into_stages(CNN, 3), 1, id="3-stages"),
    pytest.param(cut_into_stages(CNN, 2), 2, id="2-copies-of-2-stages"),
    pytest.param(split_layers(CNN, 2), 2, id="2-copies-of-2-halves"),
]


@pytest.mark.parametrize(("partition", "copies"), PARTITIONS)
def test_rank_0_writes_the_arrays_of_the_whole_model(partition, copies, tmp_path):
    whole = draw_initial_weights(CNN, seed=1)
    expected = save_weights(tmp_path / "expected", whole)

    def write(comm, weights, state):
        with whole_arrays(weights, state, partition=partition, comm=comm) as (all_weights, all_state):
            if comm.rank:
                return ""
            hashed = save_weights(tmp_path / "written", all_weights)
            assert weights_hash({name: array for name, array in all_state.arrays if name == "step"}) == weights_hash(
                {"step": np.array([7])}
            )
            return hashed

    assert of_ranks(partition, copies, write) == [expected, *[""] * (copies * len(partition.parts) - 1)]
    assert (tmp_path / "written").read_bytes() == (tmp_path / "expected").read_bytes()


@pytest.mark.parametrize("read", [0, 1, 5])
def test_an_error_while_rank_0_reads_is_raised_on_all_ranks(read):
    partition = cut_into_stages(CNN, 3)

    def fail(comm, weights, state):
        with (
            comm.propagate_errors("writing"),
            whole_arrays(weights, state, partition=partition, comm=comm) as (all_weights, _),
        ):
            if comm.rank == 0:
                for _ in range(read):
                    next(all_weights.arrays)
                raise OSError(28, "No space left on device", "weights")

    for error in of_ranks(partition, 1, fail):
        assert isinstance(error, UserError) and "No space left on device" in str(error)
