"""The time of a step from its operations, the peaks of a device and fitted efficiencies: a roofline per operation.

    operation  max(FLOPs (1 + half / smallest) / (share x peak FLOPs), bytes / (memory x peak bytes))
               with the share `dense` for dense layers, else `compute`
    overhead   step + operations x (operation + thread x log2(threads))
    exchange   2 (p - 1) latency + 2 (p - 1) / p x bytes of all gradients x seconds per byte

After Williams, Waterman and Patterson (2009). Products with few filters, channels or units do not fill a device: with
`half` of them they reach half of what large ones do.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.projection.ring import Numbers, ring_passes, ring_share
from analysis.projection.work import Operation


@dataclass(frozen=True, kw_only=True)
class Efficiencies:
    """What a framework makes of a device; fitted.

    Attributes:
        compute, dense, memory: shares of the peaks that convolutions, dense layers and memory reach. Times determine
            only their products with the peaks.
        half: filters, channels x kernel, or units at which a product reaches half of its share.
        step_seconds: of every step, whatever the model.
        operation_seconds: to start each operation.
        thread_seconds: to wake the threads of an operation, each waking another: twice as many take one more turn.
        latency_seconds: of each pass of an exchange.
        byte_seconds: of each byte of an exchange, where the network is not known.
    """

    compute: float
    dense: float
    memory: float
    half: float
    step_seconds: float
    operation_seconds: float
    thread_seconds: float
    latency_seconds: float
    byte_seconds: float


# What no device exceeds: every product at the peak, nothing else takes time.
AT_PEAK = Efficiencies(
    compute=1.0, dense=1.0, memory=1.0, half=0.0, step_seconds=0.0, operation_seconds=0.0, thread_seconds=0.0,
    latency_seconds=0.0, byte_seconds=0.0,
)  # fmt: skip


def numbers_of(operations: Sequence[Operation]) -> Numbers:
    """Return FLOPs, bytes, smallest side and whether it is dense (1 or 0) of each: (4, operations) float64."""
    return np.array([(one.flops, one.bytes, one.smallest, one.is_dense) for one in operations], float).T


def roofline_seconds(work: Numbers, *, peak_flops: Numbers, peak_bytes: Numbers, found: Efficiencies) -> Numbers:
    """Return the seconds of operations (`numbers_of`), each on the peaks beside it: (operations,) float64."""
    flops, moved, smallest, dense = work
    share = np.where(dense, found.dense, found.compute)
    computing = flops * (1 + found.half / smallest) / (share * peak_flops)
    return np.maximum(computing, moved / (found.memory * peak_bytes))


def overhead_seconds(operations: Numbers, threads: Numbers, found: Efficiencies) -> Numbers:
    """Return the overhead of steps of so many operations on so many threads."""
    each = found.operation_seconds + found.thread_seconds * np.log2(threads)
    return found.step_seconds + operations * each


def exchange_seconds(
    ranks: Numbers, gradient_bytes: Numbers, found: Efficiencies, *, bytes_per_second: float | None = None
) -> Numbers:
    """Return the seconds of all-reduces among so many ranks, of gradients of so many bytes.

    Args:
        ranks, gradient_bytes: of each step.
        found: fitted.
        bytes_per_second: of the network; None: as fitted.
    """
    per_byte = found.byte_seconds if bytes_per_second is None else 1 / bytes_per_second
    return ring_passes(ranks) * found.latency_seconds + ring_share(ranks) * gradient_bytes * per_byte
