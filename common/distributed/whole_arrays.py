"""The arrays of a model whose parts are on several ranks, one after the other: no rank may have room for all."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from common.distributed.communicator import Communicator
from common.model.partition import Partition
from common.model.weights import ArrayKind, ArrayStream, Weights, in_file_order, stream_of

_ARRAYS = 2  # tag of messages, which those of a pipeline do not have (common/pipeline/links.py)


@contextmanager
def whole_arrays(*groups: Weights, partition: Partition, comm: Communicator) -> Iterator[tuple[ArrayStream, ...]]:
    """Yield the arrays of the whole model, of which each rank holds a part; rank 0 alone may read them.

    Every rank calls this. An error of rank 0 between two arrays, such as a full disk, leaves no other rank waiting.

    Args:
        groups: arrays of this rank: "<weight>" or "<weight>.<slot>" -> array.

    Yields:
        A stream for each group, to be read in their order.
    """
    if comm.parts > 1 and comm.data_rank == 0 and comm.rank > 0:
        comm.links.send([_kinds(group) for group in groups], dest=0, tag=_ARRAYS)
        for group in groups:
            for _, array in stream_of(group).arrays:
                comm.links.Send(np.ascontiguousarray(array), dest=0, tag=_ARRAYS)
    if comm.parts == 1 or comm.rank > 0:
        yield tuple(map(stream_of, groups))
        return
    of_others = [comm.links.recv(source=other, tag=_ARRAYS) for other in range(1, comm.parts)]
    of_groups = zip(*[[_kinds(group) for group in groups], *of_others], strict=True)
    streams = tuple(
        _joined(group, kinds, partition=partition, comm=comm) for group, kinds in zip(groups, of_groups, strict=True)
    )
    try:
        yield streams
    finally:
        for stream in streams:
            for _ in stream.arrays:  # what was not read: the others wait until it is taken
                pass


def _kinds(arrays: Weights) -> dict[str, ArrayKind]:
    return dict(stream_of(arrays).kinds)


def _joined(
    own: Weights, kinds: Sequence[dict[str, ArrayKind]], *, partition: Partition, comm: Communicator
) -> ArrayStream:
    """Return the stream of a group; `kinds`: the arrays of each part."""
    holders = {
        key: [part for part, arrays in enumerate(kinds) if key in arrays]
        for key in dict.fromkeys(key for arrays in kinds for key in arrays)
    }
    whole = {}
    for key, parts in holders.items():
        shapes = [kinds[part][key][0] for part in parts]
        whole[key] = partition.joined_shape(key, shapes), kinds[parts[0]][key][1]
    whole = in_file_order(whole)

    def piece(key: str, part: int) -> np.ndarray:
        if part == 0:
            return own[key]
        received = np.empty(*kinds[part][key])
        comm.links.Recv(received, source=part, tag=_ARRAYS)
        return received

    # Each rank sends its own in the order of the file, too.
    joined = ((key, partition.join(key, [piece(key, part) for part in holders[key]])) for key in whole)
    return ArrayStream(whole, joined)
