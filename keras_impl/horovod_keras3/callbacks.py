"""Callbacks and checks for `fit` on several ranks: ranks that do not train alike are found.

Horovod's own callbacks (0.28.1) are written for Keras 2. README.md has a whole script.

Where ranks differ, rank 0 prints in one line in what, and every rank ends with exit code 2. All ranks make the same
calls in the same order, as everywhere in Horovod. One rank alone sends nothing.
"""

import hashlib
import sys
from collections.abc import Sequence
from numbers import Real
from typing import Any, NoReturn, TypeVar

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf

T = TypeVar("T")


class RanksDifferError(SystemExit):
    """The ranks do not do the same, as rank 0 has printed. Raised on all; ends each with exit code 2 unless caught."""


class BroadcastCallback(keras.callbacks.Callback):
    """Gives all ranks the weights and optimizer state of rank 0 as `fit` starts, and checks that they train alike.

    Checked at the start are the number of batches, where Keras knows it, the order of optimizers, the learning rate and
    the shapes of all variables; before every epoch and at the end, that no rank stops while others train; at the end,
    the weights. Neither seeds of dropout layers are sent, by which all ranks would draw the same masks, nor
    `local_variables` of an optimizer. A model that is not built yet is sent after its first batch.

    Args:
        optimizers: those of a model with a training step of its own; otherwise that of `compile`.

    Raises:
        RanksDifferError: on all ranks.
    """

    def __init__(self, *optimizers: keras.optimizers.Optimizer) -> None:
        super().__init__()
        self._of_own_step = optimizers
        self._sent = 0  # number of variables

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Compares what the ranks are about to do, then broadcasts."""
        if hvd.size() == 1:
            return
        batches = _of_all_ranks(self.params.get("steps"), name="batches")
        if None not in batches:
            advice = "A rank with a batch more waits for the others forever. Cut the data to equal_batches(...)"
            _check_equal(batches, "the number of batches per epoch", advice)
        compiled = getattr(self.model, "optimizer", None)
        if compiled is not None and self.model.built and not compiled.built:
            compiled.build(self.model.trainable_variables)
        optimizers = self._optimizers()
        names = [optimizer._exchange.name for optimizer in optimizers if hasattr(optimizer, "_exchange")]
        advice = "Wrap the same optimizers in the same order on all ranks"
        _check_equal(_of_all_ranks(", ".join(names), name="names"), "the names of their optimizers", advice)
        _check_rates(optimizers)
        self._broadcast()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Broadcasts again if the first batch has built the model."""
        if hvd.size() > 1 and self._sent < len(self.model.weights):
            self._broadcast()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Checks that all ranks begin this epoch."""
        self._check_next(f"epoch {epoch + 1}")

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Checks that all ranks stop here, and with the same weights."""
        self._check_next("the end")
        check_same_weights(self.model, *self._of_own_step)

    def _check_next(self, what: str) -> None:
        if hvd.size() > 1:
            advice = "Put MetricAverageCallback() before EarlyStopping and its like; give all ranks the same epochs"
            _check_equal(_of_all_ranks(what, name="next"), "what comes next", advice)

    def _optimizers(self) -> Sequence[keras.optimizers.Optimizer]:
        return self._of_own_step or _compiled(self.model)

    def _broadcast(self) -> None:
        optimizers = self._optimizers()
        local = _local_variables(optimizers)
        state = [*self.model.weights, *(variable for optimizer in optimizers for variable in optimizer.variables)]
        variables = [variable for variable in state if id(variable) not in local]
        shapes = [(*variable.shape, str(variable.dtype)) for variable in variables]
        of_ranks = _of_all_ranks(shapes, name="shapes")
        if any(other != of_ranks[0] for other in of_ranks):
            _check_equal([len(shapes) for shapes in of_ranks], "the number of variables", _BUILD_ALIKE)
            differing = next(index for index, kinds in enumerate(zip(*of_ranks, strict=True)) if len(set(kinds)) > 1)
            what = f"the shape and type of variable {differing}, {variables[differing].path}"
            _check_equal([shapes[differing] for shapes in of_ranks], what, _BUILD_ALIKE)
        for index, variable in enumerate(variables):
            # A name of our own: Horovod goes by names, and those of Keras differ where only some ranks loaded a model.
            value = tf.convert_to_tensor(variable.value)
            variable.assign(hvd.broadcast(value, root_rank=0, name=f"BroadcastCallback.{index}"))
        self._sent = len(self.model.weights)


class MetricAverageCallback(keras.callbacks.Callback):
    """Replaces every metric of an epoch by its mean over the ranks, for the callbacks after it and for the history.

    It belongs before all callbacks that decide by a metric, such as EarlyStopping, ReduceLROnPlateau and
    ModelCheckpoint: each rank has losses of its own, and would decide for itself. All ranks count alike: the mean is
    that over all samples if each rank has as many.

    Raises:
        RanksDifferError: on all ranks: a callback before this one stopped some of them, or the metrics differ in name.
    """

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Averages the numbers in `logs`, in place."""
        if hvd.size() == 1 or logs is None:
            return
        mine = {name: float(value) for name, value in sorted(logs.items()) if isinstance(value, Real)}
        of_ranks = _of_all_ranks((bool(self.model.stop_training), mine), name="metrics")
        advice = "Put MetricAverageCallback() before EarlyStopping and its like"
        _check_equal([stops for stops, _ in of_ranks], "whether a callback has stopped the training", advice)
        advice = "Give all ranks the same metrics, and all or none of them validation data"
        _check_equal([", ".join(metrics) for _, metrics in of_ranks], "the names of the metrics", advice)
        logs |= {name: float(np.mean([metrics[name] for _, metrics in of_ranks])) for name in mine}


def check_same_weights(model: keras.Model, *optimizers: keras.optimizers.Optimizer) -> None:
    """Checks that all ranks hold the same trainable weights, bit for bit, and the same learning rate.

    Statistics such as those of BatchNorm are each rank's own in Horovod, and are not compared; nor are
    `local_variables` of the optimizer.

    Args:
        model: a built model; every rank calls this.
        optimizers: as of `BroadcastCallback`.

    Raises:
        RanksDifferError: on all ranks.
    """
    if hvd.size() == 1:
        return
    used = optimizers or _compiled(model)
    _check_rates(used)
    local = _local_variables(used)
    variables = [variable for variable in model.trainable_variables if id(variable) not in local]
    of_ranks = _of_all_ranks([_digest(variable) for variable in variables], name="weights")
    for rank, digests in enumerate(of_ranks):
        if digests != of_ranks[0]:
            differing = [
                variable.path
                for variable, here, there in zip(variables, digests, of_ranks[0], strict=False)
                if here != there
            ]
            _end(
                f"the ranks do not have the same weights. Received: {len(differing)} of {len(variables)} variables "
                f"differ between rank 0 and rank {rank}, {', '.join(differing[:1])} first. Use DistributedOptimizer "
                "and BroadcastCallback, and nothing that depends on hvd.rank() but the data"
            )


def equal_batches(batches: int) -> int:
    """Returns how many batches every rank is to train on in an epoch: the fewest that any rank has.

    Args:
        batches: those of this rank, such as `len(x) // batch_size`; every rank calls this.

    Raises:
        RanksDifferError: on all ranks: one of them has no batch.
    """
    of_ranks = _of_all_ranks(batches, name="equal") if hvd.size() > 1 else [batches]
    if min(of_ranks) < 1:
        _end(
            f"every rank needs a batch. Received: {min(of_ranks)} on rank {of_ranks.index(min(of_ranks))}. Use smaller "
            "batches or fewer ranks"
        )
    return min(of_ranks)


_BUILD_ALIKE = "Build the same model and optimizers on all ranks"


def _of_all_ranks(value: T, *, name: str) -> list[T]:
    """The values of all ranks, on each; they travel in host memory."""
    with tf.device("/cpu:0"):
        values: list[T] = hvd.allgather_object(value, name=f"horovod_keras3.{name}")
    return values


def _end(message: str) -> NoReturn:
    """Ends all ranks, once rank 0 has said why: a launcher kills it as soon as another has ended."""
    if hvd.rank() == 0:
        print(f"error: {message}", file=sys.stderr, flush=True)
    _of_all_ranks(None, name="end")
    raise RanksDifferError(2)


def _check_equal(of_ranks: Sequence[Any], what: str, advice: str) -> None:
    """Checks that all ranks have the value of rank 0."""
    for rank, value in enumerate(of_ranks):
        if value != of_ranks[0]:
            _end(f"the ranks differ in {what}. Received: {of_ranks[0]} on rank 0, {value} on rank {rank}. {advice}")


def _check_rates(optimizers: Sequence[keras.optimizers.Optimizer]) -> None:
    """Checks that optimizers that have done the same number of updates have the same learning rate on all ranks.

    Where the numbers differ, some ranks have loaded a model and the others receive its state.
    """
    with tf.device("/cpu:0"):
        # A MultiOptimizer has no learning rate.
        mine = [(int(each.iterations), float(getattr(each, "learning_rate", 0.0))) for each in optimizers]
    of_ranks = _of_all_ranks(mine, name="rates")
    if len({tuple(updates for updates, _ in rates) for rates in of_ranks}) == 1:
        rates = [", ".join(f"{rate:.6g}" for _, rate in of_rank) for of_rank in of_ranks]
        _check_equal(rates, "the learning rate", "Scale it by hvd.size(), which is the same on all, not by hvd.rank()")


def _compiled(model: keras.Model) -> list[keras.optimizers.Optimizer]:
    optimizer = getattr(model, "optimizer", None)
    return [] if optimizer is None else [optimizer]


def _local_variables(optimizers: Sequence[keras.optimizers.Optimizer]) -> set[int]:
    """The ids of what the ranks keep to themselves."""
    exchanges = [getattr(optimizer, "_exchange", None) for optimizer in optimizers]
    return {id(variable) for exchange in exchanges if exchange for variable in exchange.local_variables}


def _digest(variable: keras.Variable) -> str:
    return hashlib.sha256(np.ascontiguousarray(variable.numpy()).tobytes()).hexdigest()
