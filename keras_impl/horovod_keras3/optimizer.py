"""Horovod's `DistributedOptimizer` for Keras 3: average the gradients over the ranks, then update as Keras would.

`horovod.tensorflow.keras.DistributedOptimizer` (0.28.1) overrides methods that Keras 3 no longer calls; it trains and
averages nothing, without an error (https://github.com/horovod/horovod/issues/4290). The broadcast before training is
not done here: see `BroadcastCallback`, and README.md for loops of your own.
"""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

from .exchange import NO_XLA, GradientExchange, next_name


def DistributedOptimizer(  # noqa: N802 - Horovod's name for it
    optimizer: keras.optimizers.Optimizer,
    *,
    op: Any = hvd.Average,
    compression: str = "none",
    groups: int | None = 1,
    backward_passes_per_step: int = 1,
    sparse_as_dense: bool = True,
    local_variables: Iterable[keras.Variable] = (),
    process_set: hvd.ProcessSet = hvd.global_process_set,
    device: str = "",
    meter: Any = None,
) -> keras.optimizers.Optimizer:
    """Makes a copy of a Keras 3 optimizer that averages the gradients over all ranks before every update.

    The contract
    - The result is an instance of a subclass of the optimizer's own class, rebuilt from its config; state that it
      already has (slots, iterations) is copied. The optimizer passed in stays as it is.
    - An update costs one grouped allreduce for each dtype of gradients (see `groups`), and one call more for gradients
      that are to stay sparse. With one rank, or outside the process set, nothing is sent.
    - Whatever the optimizer does to gradients (unscaling, clipping, weight decay, EMA, constraints) it does to averaged
      ones: n ranks of batch B update as one process of batch n x B does, where the loss is a mean over the batch.
      The exception are embeddings: one process has to be wrapped too. A row that a batch meets twice counts once, with
      the sum of its gradients; Keras alone takes each by itself (https://github.com/keras-team/keras/pull/18692).
    - Variables without a gradient are left out. Which these are must be the same on all ranks; so must the variables,
      their order, and the order in which optimizers are wrapped. Operations are named by that order, whatever is
      retraced.
    - A `LossScaleOptimizer` is to be wrapped itself, not its inner optimizer: the average is then taken before the
      check for finite values, and an overflow on one rank makes all ranks skip the update. The other way round ranks
      would wait forever; inside a `tf.function` that is an error, and `check_compiled_model` finds it everywhere.
    - Horovod's operations are not XLA operations: `jit_compile=True` is an error where there is more than one rank.
    - A saved model names the plain class and loads without Horovod and without this module. To train on with several
      ranks, wrap the loaded `model.optimizer` and compile again.

    Args:
        optimizer: any Keras 3 optimizer that its class can rebuild from its config.
        op: `hvd.Average` or `hvd.Sum`.
        compression: "none", or "fp16": gradients travel, and are summed, as float16.
        groups: number of groups in which the gradients of a dtype travel. None: one allreduce for each tensor, which is
            slower, and meant for comparison.
        backward_passes_per_step: number of gradients to average locally before an allreduce and an update; sets Keras'
            `gradient_accumulation_steps`, and works the same if that is set already. For the sum of the passes multiply
            the loss by their number.
        sparse_as_dense: whether the gradients of embeddings become ordinary tensors first. False: their rows are
            gathered from all ranks, which is less to send where few rows are touched. The updates are the same.
        local_variables: trainable variables that each rank keeps to itself. Their gradients are not exchanged but (for
            `hvd.Average`) divided by the number of ranks, being a part of the gradient of the average loss.
        process_set: the ranks that take part; all others train alone.
        device: where gradients are averaged, such as "/cpu:0"; "": on GPUs if Horovod was built for them.
        meter: its `measure(exchange, gradients, compression)` is to return `exchange(gradients, compression)`.

    Returns:
        The distributed optimizer.

    Raises:
        TypeError: if `optimizer` is not a Keras 3 optimizer.
        ValueError: for an optimizer that is distributed already, options out of range or at odds with each other.
        RuntimeError: if Horovod was not initialized.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(f"Expected a Keras 3 optimizer. Received: {optimizer!r}")
    if isinstance(optimizer, _AveragingOptimizer):
        raise ValueError(f"The optimizer is already distributed. Received: {optimizer.name}")
    if not hvd.is_initialized():
        raise RuntimeError("Horovod is not initialized: call `hvd.init()` before `DistributedOptimizer(...)`.")
    exchange = GradientExchange(
        name=next_name(),
        op=op,
        compression=compression,
        groups=groups,
        sparse_as_dense=sparse_as_dense,
        local_variables=tuple(local_variables),
        process_set=process_set,
        device=device,
        meter=meter,
    )
    config = optimizer.get_config()
    rate = getattr(optimizer, "_learning_rate", None)
    if "learning_rate" in config and not isinstance(rate, keras.Variable):
        config["learning_rate"] = rate  # a schedule or function: as it is, for not every function can be serialized
    if backward_passes_per_step != 1:
        if config.get("gradient_accumulation_steps", 0) is not None or optimizer.built:
            raise ValueError(
                "`backward_passes_per_step` needs an optimizer that is not built yet, and that has "
                f"`gradient_accumulation_steps` and leaves them unset. Received: {type(optimizer).__name__}"
            )
        config["gradient_accumulation_steps"] = backward_passes_per_step

    distributed = _subclass(type(optimizer), exchange).from_config(config)
    _copy_what_calls_have_set(optimizer, distributed)
    if optimizer.built:
        distributed.build(optimizer._trainable_variables)
    for new, old in zip(distributed.variables, optimizer.variables, strict=True):
        new.assign(old)
    return distributed


def _copy_what_calls_have_set(optimizer: keras.optimizers.Optimizer, rebuilt: keras.optimizers.Optimizer) -> None:
    """Copies what `exclude_from_weight_decay` has set, which is in no config."""
    for name, value in vars(optimizer).items():
        if name.startswith("_exclude_from_weight_decay"):
            setattr(rebuilt, name, value)
    if hasattr(optimizer, "inner_optimizer"):
        _copy_what_calls_have_set(optimizer.inner_optimizer, rebuilt.inner_optimizer)


def check_compiled_model(model: keras.Model) -> None:
    """Checks that a compiled model will average its gradients; to be called between `compile` and `fit`.

    Args:
        model: a compiled model.

    Raises:
        ValueError: if its optimizer is not distributed, if a `LossScaleOptimizer` is wrapped around a distributed one,
            or if the model is compiled for XLA (which `jit_compile="auto"` does on a GPU).
    """
    optimizer = getattr(model, "optimizer", None)
    if isinstance(getattr(optimizer, "inner_optimizer", None), _AveragingOptimizer):
        raise ValueError(
            "After an overflow the ranks would wait for each other forever. Pass to `compile` "
            "`optimizer=DistributedOptimizer(LossScaleOptimizer(...))`; to any other optimizer Keras adds its "
            "own LossScaleOptimizer under the policy mixed_float16."
        )
    if not isinstance(optimizer, _AveragingOptimizer):
        raise ValueError(
            "The model would train on this rank's gradients alone. Pass `optimizer=DistributedOptimizer(...)` "
            f"to `compile`. Received: {type(optimizer).__name__}"
        )
    if model.jit_compile and optimizer._exchange.active():
        raise ValueError(NO_XLA)


class _AveragingOptimizer(keras.optimizers.Optimizer):
    """What `_subclass` puts before the methods of an optimizer class."""

    _exchange: ClassVar[GradientExchange]

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Averages this rank's gradients with those of the others, then updates the variables with them.

        Raises:
            ValueError: inside a branch of a `tf.cond`, or of a function compiled for XLA.
            RuntimeError: if this version of Keras accumulates gradients in a way of its own, and averages none.
        """
        graph = tf.compat.v1.get_default_graph()
        if type(graph).__name__ == "CondBranchFuncGraph" and self._exchange.active():
            raise ValueError(
                "Gradients cannot be averaged in a branch that other ranks may not take. If there is a "
                "LossScaleOptimizer, wrap it: `DistributedOptimizer(LossScaleOptimizer(...))`."
            )
        if getattr(self, "gradient_accumulation_steps", None):
            self._apply_pass(grads, trainable_variables)
        else:
            variables = self._trainable_variables if trainable_variables is None else trainable_variables
            super().apply(self._exchange(grads, variables), trainable_variables)

    def _apply_pass(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None) -> None:
        """Lets Keras add up the gradients of a pass, and checks that those of an update are averaged once."""
        passes = self.gradient_accumulation_steps
        is_eager = tf.executing_eagerly()  # a graph has the update in one of its branches
        updates_before = int(self.iterations) if is_eager else 0
        self.__dict__["_exchanges"] = 0  # no assignment: Keras would take it for its state
        # Keras adds up tensors only.
        tensors = [gradient if gradient is None else tf.convert_to_tensor(gradient) for gradient in grads]
        super().apply(tensors, trainable_variables)
        exchanges = self.__dict__["_exchanges"]
        is_update = not is_eager or int(self.iterations) > updates_before
        if tensors and is_update and exchanges != 1:
            raise RuntimeError(
                f"The gradients of {passes} passes were not averaged once per update but {exchanges} times. Received: "
                f"Keras {keras.__version__}. Leave out `backward_passes_per_step` and `gradient_accumulation_steps`, "
                "or use another version."
            )

    def _backend_apply_gradients(self, grads: Sequence[Any], trainable_variables: Sequence[Any]) -> None:
        """Keras calls this with the variables that have gradients, and does not hand them on to `_clip_gradients`."""
        self.__dict__["_being_updated"] = trainable_variables  # no assignment: Keras would take them for its state
        super()._backend_apply_gradients(grads, trainable_variables)

    def _clip_gradients(self, grads: Sequence[Any]) -> Any:
        """Keras calls this once per update, first of all, with the accumulated gradients where it accumulates."""
        if self.gradient_accumulation_steps:
            self.__dict__["_exchanges"] += 1
            grads = self._exchange(grads, self.__dict__["_being_updated"])
        return super()._clip_gradients(grads)


def _subclass(base: type, exchange: GradientExchange) -> Any:
    """A subclass of an optimizer class that averages gradients, and that Keras saves under the name of `base`."""
    public = getattr(keras.optimizers, base.__name__, None) is base
    members = {
        "_exchange": exchange,
        "__module__": "keras.optimizers" if public else base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
    }
    subclass = type(base.__name__, (_AveragingOptimizer, base), members)
    package, separator, name = keras.saving.get_registered_name(base).partition(">")
    if separator:
        keras.saving.register_keras_serializable(package, name)(subclass)  # gives the subclass the name of its parent
        keras.saving.get_custom_objects()[f"{package}>{name}"] = base  # and the name back to the parent, for loading
    return subclass
