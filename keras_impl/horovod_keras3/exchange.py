"""How a list of gradients becomes a list of averaged gradients: the Horovod calls behind `DistributedOptimizer`.

Grouping by dtype, float16 on the wire, sparse gradients, variables that stay local, process sets. Knows TensorFlow and
Horovod, not Keras' optimizers; a custom training loop may call `GradientExchange` itself.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf
from tensorflow.python.ops import control_flow_util  # no public way to see a surrounding jit_compile=True

NO_XLA = "Horovod's operations cannot run under XLA. Pass `jit_compile=False` to `compile` or `tf.function`."

_COMPRESSION = {"none": hvd.Compression.none, "fp16": hvd.Compression.fp16}

_named_so_far = itertools.count()


def next_name() -> str:
    """Returns the name of the next optimizer: the same on all ranks, which wrap theirs in the same order."""
    return f"DistributedOptimizer{next(_named_so_far)}"


def name_anew() -> None:
    """Names the next optimizer as the first one of this process: for ranks that join others in the middle of a run."""
    global _named_so_far
    _named_so_far = itertools.count()


@dataclasses.dataclass(frozen=True, kw_only=True)
class GradientExchange:
    """One optimizer's way of exchanging gradients; for the fields see `DistributedOptimizer`, whose arguments they are.

    `name` must be the same on all ranks and belong to one optimizer only.

    Raises:
        ValueError: for fields out of range.
    """

    name: str
    op: Any = hvd.Average
    compression: str = "none"
    groups: int | None = 1
    sparse_as_dense: bool = True
    local_variables: tuple[Any, ...] = ()
    process_set: hvd.ProcessSet = hvd.global_process_set
    device: str = ""
    meter: Any = None

    def __post_init__(self) -> None:
        if self.op not in (hvd.Average, hvd.Sum) and not (self.op == hvd.Adasum and self.groups is None):
            raise ValueError(
                f"`op` must be hvd.Average, hvd.Sum or, with `groups=None`, hvd.Adasum. Received: op={self.op}"
            )
        if self.compression not in _COMPRESSION:
            raise ValueError(f"`compression` must be one of {list(_COMPRESSION)}. Received: {self.compression!r}")
        if self.groups is not None and self.groups < 1:
            raise ValueError(f"`groups` must be at least 1, or None. Received: groups={self.groups}")
        if self.process_set.process_set_id is None:
            raise ValueError(
                "Horovod does not know the `process_set`. Pass this object to `hvd.init(process_sets=[...])`. "
                f"Received: {self.process_set}"
            )

    def active(self) -> bool:
        """Whether this rank has another to exchange gradients with.

        Asked while tracing, so that one rank pays nothing: where the number of ranks changes, compile the model again.
        """
        return bool(self.process_set.included()) and self.process_set.size() > 1

    def __call__(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Averages (or sums) gradients over the ranks; sparse ones name each row once, also where there is one rank.

        Args:
            gradients: tensors, `IndexedSlices` or None, in the same order on all ranks.
            variables: the variable of each gradient, which identifies the local ones.

        Returns:
            The gradients in the same order; None stays None.

        Raises:
            ValueError: inside a function compiled for XLA.
        """
        gradients = [self._without_repeated_rows(gradient) for gradient in gradients]
        if not self.active():
            return gradients
        if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
            raise ValueError(NO_XLA)

        def exchange(gradients: list[Any], compression: Any) -> list[Any]:
            return self._exchange(gradients, variables, compression)

        compression = _COMPRESSION[self.compression]
        return self.meter.measure(exchange, gradients, compression) if self.meter else exchange(gradients, compression)

    def _exchange(self, gradients: list[Any], variables: Sequence[Any], compression: Any) -> list[Any]:
        local = {id(variable) for variable in self.local_variables}
        indices_of_kind: dict[str, list[int]] = {}
        for index, (gradient, variable) in enumerate(zip(gradients, variables, strict=True)):
            if gradient is None:
                continue
            if id(variable) in local:
                if self.op == hvd.Average:
                    gradients[index] = tf.convert_to_tensor(gradient) / self.process_set.size()
                continue
            # Apart: Horovod confuses shapes in a group of both sorts.
            kind = gradient.dtype.name + ("_sparse" if isinstance(gradient, tf.IndexedSlices) else "")
            indices_of_kind.setdefault(kind, []).append(index)
        for kind, indices in indices_of_kind.items():
            for number, part in enumerate(self._parts(indices)):
                name = f"{self.name}_{kind}_{number}"
                reduced = self._reduce([gradients[index] for index in part], name=name, compression=compression)
                for index, gradient in zip(part, reduced, strict=True):
                    gradients[index] = gradient
        return gradients

    def _parts(self, indices: list[int]) -> list[list[int]]:
        """Cuts the list into at most `groups` runs of nearly equal length; None: into single entries."""
        count = len(indices) if self.groups is None else min(self.groups, len(indices))
        cuts = [len(indices) * part // count for part in range(count + 1)]
        return [indices[start:end] for start, end in itertools.pairwise(cuts)]

    def _reduce(self, gradients: list[Any], *, name: str, compression: Any) -> list[Any]:
        # ignore_name_scope: the ranks match operations by this name alone, not by the scopes TensorFlow puts before it,
        # which change from trace to trace.
        options = {
            "op": self.op,
            "compression": compression,
            "process_set": self.process_set,
            "name": name,
            "ignore_name_scope": True,
            "device_dense": self.device,
            "device_sparse": self.device,
        }
        reduced = (
            [hvd.allreduce(gradients[0], **options)]
            if self.groups is None
            else hvd.grouped_allreduce(gradients, **options)
        )
        return [self._without_repeated_rows(gradient) for gradient in reduced]

    def _without_repeated_rows(self, gradient: Any) -> Any:
        """Adds up the rows that several ranks, or one batch, have for the same index.

        Keras' optimizers square, scale and clip each of them by itself, which no split of the batch could reproduce.
        """
        if not isinstance(gradient, tf.IndexedSlices):
            return gradient
        if self.sparse_as_dense:
            return tf.convert_to_tensor(gradient)
        indices, positions = tf.unique(gradient.indices)
        values = tf.math.unsorted_segment_sum(gradient.values, positions, tf.size(indices))
        return tf.IndexedSlices(values, indices, gradient.dense_shape)
