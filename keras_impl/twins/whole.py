"""Compares the whole models, without PyTorch's numbers in between: outputs, gradients, updates, statistics."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import keras
import numpy as np
import tensorflow as tf

from common.twins.adamw import AdamW
from common.twins.arrays import EQUAL, layouts, nearest, relative
from common.twins.contract import targets
from common.twins.records import Cause, Whole
from common.twins.training import momentum_cause, variance_cause
from keras_impl.twins.kernels import Source, multiply_adds, path_of
from keras_impl.twins.matcher import Binding, Case

OF_BATCH = 1e-6  # by how much a batch's statistics may differ: they are worked out of the running ones
GOOD_ENOUGH = 1e-3  # outputs further apart than this: gradients say nothing more


class WholeModels:
    """Both models from the same arrays, which the Keras model has been given.

    Attributes:
        multiply_adds: of a forward pass, once compared.
    """

    def __init__(self, case: Case, binding: Binding) -> None:
        self.case, self.built, self.arrays = case, case.built, case.arrays
        self.multiply_adds = 0
        self._sources = list(binding.sources.values())
        whole = [source.names for source in self._sources if source.part[1] == 1]
        # Those that are trained on both sides, of arrays that are one array in Keras, too.
        self._trained = [
            source
            for source in self._sources
            if source.variable.trainable and source.array in case.trace.trainable and whole.count(source.names) <= 1
        ]
        self._differences: dict[str, tuple[float, str]] = {}

    def reset(self) -> None:
        """Undo what passes in training mode change: arrays that are not trained."""
        for source in self._sources:
            if not source.variable.trainable:
                source.load(self.arrays)

    def statistics(self) -> Iterator[Cause]:
        """Yield running statistics that differ after a batch, for which each layer was given PyTorch's input."""
        kept = {
            event.weights[role]: 1 - float(event.numbers.get("momentum", 0.1))
            for event in self.case.trace.events["training"]
            for role in ("running_mean", "running_var")
            if role in event.weights
        }
        for source in self._sources:
            name, place = source.names[0], path_of(source.layer)
            if name not in kept or not hasattr(source.layer, "momentum") or f"statistics/{name}" not in self.arrays:
                continue
            old, new = (source.read(self.arrays, kind) for kind in ("weights", "statistics"))
            value, shares = np.asarray(source.variable), (kept[name], float(source.layer.momentum))
            torch, keras_ = (
                (after - share * old) / (1 - share) if share < 1 else after
                for after, share in zip((new, value), shares, strict=True)
            )
            if relative(value, new) > EQUAL and abs(shares[0] - shares[1]) > 1e-9:
                yield momentum_cause(*shares, place)
            if relative(keras_, torch) > OF_BATCH:
                yield variance_cause(place)

    def compare(self) -> Whole:
        """Return how far the whole models are apart; of models with other outputs, gradients are not compared."""
        self.reset()
        with self._counted():
            output = np.asarray(self.built.forward(0, training=False))
        self._note("outputs in inference", nearest(self.arrays["inference/output"], output).difference)
        if self._is_far():
            return Whole(differences=self._differences)
        self.reset()
        output, loss, gradients = self._gradients(0)
        self._check_repeated(output)
        self._note("outputs in training", nearest(self.arrays["training/output"], output).difference)
        zeros = self._compare_gradients(gradients)
        if self._is_far():
            return Whole(differences=self._differences, zeros=zeros)
        self.reset()
        self._compare_updates(loss, gradients)
        return Whole(differences=self._differences, updates=len(self.case.trace.losses), zeros=zeros)

    def _note(self, name: str, difference: float, place: str = "") -> None:
        self._differences[name] = (difference, place)

    def _note_worst(self, name: str, differences: list[tuple[float, str]]) -> None:
        self._differences[name] = max(differences, default=(0.0, ""))

    def _is_far(self) -> bool:
        return any(difference > GOOD_ENOUGH for difference, _ in self._differences.values())

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Add the multiply-adds of each layer that is called."""
        original = keras.Operation.__call__

        def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
            output = original(layer, *args, **kwargs)
            if args and hasattr(args[0], "shape") and hasattr(output, "shape"):
                self.multiply_adds += multiply_adds(layer, args[0], output)
            return output

        with patch.object(keras.Operation, "__call__", call):
            yield

    def _gradients(self, number: int) -> tuple[np.ndarray, float, list[Any]]:
        """Return outputs, loss and gradients of a batch."""
        with tf.GradientTape() as tape:
            output = self.built.forward(number, training=True)
            wanted = targets(tuple(self.arrays["training/output"].shape), number)
            turned, _ = next(layouts(wanted, tuple(output.shape)), (wanted, False))
            loss = tf.reduce_mean((output - tf.constant(turned)) ** 2)
        gradients = tape.gradient(loss, [source.variable.value for source in self._trained])
        dense = [None if gradient is None else np.asarray(tf.convert_to_tensor(gradient)) for gradient in gradients]
        return np.asarray(output), float(loss), dense

    def _compare_gradients(self, gradients: list[np.ndarray | None]) -> int:
        """Compare gradients; return how many are zero but for rounding."""
        differences, tops, highest = list[tuple[float, str]](), list[float](), 0.0
        for source, gradient in zip(self._trained, gradients, strict=True):
            is_known = f"gradients/{source.array}" in self.arrays
            reference = source.read(self.arrays, "gradients") if is_known else None
            difference = np.inf if gradient is None or reference is None else relative(gradient, reference)
            differences.append((difference, source.names[0]))
            tops.append(max(_largest(gradient), _largest(reference)))
            highest = max(highest, _largest(reference))
        is_zero = [top <= 1e-12 * highest for top in tops]
        self._note_worst("gradients", [pair for pair, zero in zip(differences, is_zero, strict=True) if not zero])
        return sum(is_zero)

    def _compare_updates(self, loss: float, gradients: list[np.ndarray | None]) -> None:
        """Make as many updates as PyTorch's process; large arrays are freed as soon as they are compared."""
        updates, losses, after = len(self.case.trace.losses), [loss], list[tuple[float, str]]()
        optimizer = AdamW(updates=updates)
        for number in range(1, updates + 1):
            if number > 1:
                _, loss, gradients = self._gradients(number - 1)
                losses.append(loss)
            for source in self._trained:
                weights = _updated(source, gradients.pop(0), optimizer=optimizer, number=number)
                if number < updates:
                    source.variable.assign(weights)
                else:
                    after.append((relative(weights, source.read(self.arrays, "trained")), source.names[0]))
        self._note("losses of the updates", relative(np.array(losses), np.array(self.case.trace.losses)))
        self._note_worst("arrays after the updates", after)

    def _check_repeated(self, output: np.ndarray) -> None:
        """Raise UserError if the same batch has other outputs in another pass."""
        self.reset()
        is_equal = np.array_equal(output, np.asarray(self.built.forward(0, training=True)))
        drawing = [layer for layer in self.built.model._flatten_layers() if getattr(layer, "seed_generator", None)]
        names = [type(layer).__name__ for layer in drawing]
        random = [name for name in names if "Dropout" not in name]
        self.built.pair.check_repeated("keras", is_equal=is_equal, random=random)


def _updated(source: Source, gradient: np.ndarray | None, *, optimizer: AdamW, number: int) -> np.ndarray:
    """Return the values of a variable after an update."""
    weights = np.array(source.variable, order="C")
    if gradient is not None:
        name = f"{source.names} {source.part}"
        optimizer.update(name, weights, np.ascontiguousarray(gradient), number=number)
    return weights


def _largest(array: np.ndarray | None) -> float:
    """Return the largest magnitude, without an array of magnitudes; 0 of nothing."""
    return 0.0 if array is None or not array.size else float(max(array.max(), -array.min()))
