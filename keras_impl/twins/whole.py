"""Compares the whole models, without PyTorch's numbers in between: outputs, gradients, updates, statistics."""

from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from common.errors import UserError
from common.twins.adamw import AdamW
from common.twins.arrays import layouts, nearest, relative
from common.twins.comparison import Whole
from common.twins.contract import Pair, targets, users_code
from common.twins.trace import ArrayFolder, TorchTrace, worst
from keras_impl.twins.counting import counted
from keras_impl.twins.events import path_of
from keras_impl.twins.kernels import Place
from keras_impl.twins.matcher import Binding

GOOD_ENOUGH = 1e-3  # outputs further apart than this: gradients say nothing more


class WholeModels:
    """Both models from the same arrays.

    Args:
        batch: number -> samples as the Keras model takes them.
    """

    def __init__(
        self, model: Any, binding: Binding, trace: TorchTrace, arrays: ArrayFolder, *, pair: Pair, batch: Any
    ) -> None:
        self.model, self.binding, self.trace, self.arrays = model, binding, trace, arrays
        self.pair, self.batch = pair, batch
        self.multiply_adds = 0  # of a forward pass, once compared

    def load(self, kind: str = "weights") -> None:
        """Put PyTorch's arrays, as they were before training, into the Keras model."""
        for variable, layer, place in self.binding.places.values():
            variable.assign(self._array(kind, variable, layer, place))

    def _array(self, kind: str, variable: Any, layer: Any, place: Place) -> np.ndarray:
        """Return one of PyTorch's arrays, or its gradient, as Keras has it."""
        found = [self._rows(kind, name) for name in place.names]
        whole = found[0] if len(found) == 1 or kind == "gradients" else np.sum(found, axis=0)
        array = place.to_keras(whole, layer, variable)
        assert array is not None
        return np.asarray(array)

    def _rows(self, kind: str, name: str) -> np.ndarray:
        base, bracket, part = name.removesuffix("]").partition("[")
        array = self.arrays[f"{kind}/{base}"]
        first, _, last = part.partition(":")
        return array[int(first) : int(last)] if bracket else array

    def statistics(self, kept: Mapping[str, tuple[str, float, float]]) -> dict[str, tuple[float, float]]:
        """Return how far running statistics are apart after a batch, and how far those of the batch alone.

        Args:
            kept: PyTorch's name -> Keras layer, share of the old value that is kept in PyTorch and in Keras.
        """
        found = {}
        for variable, layer, place in self.binding.places.values():
            name = place.names[0]
            if name not in kept or f"statistics/{name}" not in self.arrays:
                continue
            old, new = (self._array(kind, variable, layer, place) for kind in ("weights", "statistics"))
            torch, keras_ = (
                (after - share * old) / (1 - share) if share < 1 else after
                for after, share in zip((new, np.asarray(variable)), kept[name][1:], strict=True)
            )
            found[name] = (relative(np.asarray(variable), new), relative(keras_, torch))
        return found

    def compare(self, *, updates: int) -> Whole:
        """Return how far the whole models are apart; of models with other outputs, gradients are not compared."""
        self.load()
        reference = self.arrays["inference/output"]
        with counted() as counts:
            output = np.asarray(self._forward(0, training=False))
        self.multiply_adds = sum(counts)
        outputs = nearest(reference, output).difference
        found = {"outputs in inference": (outputs, "")}
        if outputs > GOOD_ENOUGH:
            return Whole(differences=_finite(found))
        self.load()
        return self._trained(found, updates=updates)

    def _forward(self, number: int, *, training: bool) -> Any:
        with users_code("keras_model()'s call", self.pair.place):
            return self.model(self.batch(number), training=training)

    def _variables(self) -> Iterator[tuple[Any, Any, Place]]:
        """Yield those that are trained on both sides, of arrays that are one array in Keras, too."""
        names = [place.names for _, _, place in self.binding.places.values() if place.part is None]
        for variable, layer, place in self.binding.places.values():
            trained = variable.trainable and place.names[0].partition("[")[0] in self.trace.trainable
            if trained and names.count(place.names) <= 1:
                yield variable, layer, place

    def _gradients(self, number: int) -> tuple[np.ndarray, float, list[Any]]:
        """Return outputs, loss and gradients of a batch."""
        variables = [variable.value for variable, _, _ in self._variables()]
        with tf.GradientTape() as tape:
            output = self._forward(number, training=True)
            shape = tuple(self.arrays["training/output"].shape)
            wanted = targets(shape, number)
            turned = next((fit.array for fit in layouts(wanted, tuple(output.shape), flat=None, pad=False)), wanted)
            loss = tf.reduce_mean((output - tf.constant(turned)) ** 2)
        return np.asarray(output), float(loss), tape.gradient(loss, variables)

    def _trained(self, found: dict[str, tuple[float, str]], *, updates: int) -> Whole:
        output, loss, gradients = self._gradients(0)
        self._check_repeated(output)
        found["outputs in training"] = (nearest(self.arrays["training/output"], output).difference, "")
        differences, zeros = self._compare_gradients(gradients)
        found["gradients"] = worst(differences)
        if found["gradients"][0] > GOOD_ENOUGH or found["outputs in training"][0] > GOOD_ENOUGH:
            return Whole(differences=_finite(found), zeros=zeros)
        self.load()
        optimizer, losses = AdamW(updates=updates), []
        for number in range(updates):
            if number:
                _, loss, gradients = self._gradients(number)
            losses.append(loss)
            optimizer.start_update()
            for (variable, _, place), gradient in zip(self._variables(), gradients, strict=True):
                if gradient is None:
                    continue
                weights = np.array(variable, order="C")
                slope = np.ascontiguousarray(tf.convert_to_tensor(gradient))
                optimizer.update(f"{place.names} {place.part}", weights, slope)
                variable.assign(weights)
        after = {
            place.names[0]: relative(np.asarray(variable), self._array("trained", variable, layer, place))
            for variable, layer, place in self._variables()
        }
        found["losses of the updates"] = (relative(np.array(losses), np.array(self.trace.losses)), "")
        found["arrays after the updates"] = worst(after)
        return Whole(differences=_finite(found), updates=updates, zeros=zeros)

    def _compare_gradients(self, gradients: list[Any]) -> tuple[dict[str, float], int]:
        """Return differences by PyTorch's names, and how many are zero but for rounding."""
        named = list(zip(self._variables(), gradients, strict=True))
        tops = [_largest(self._gradient(*one)) for one, _ in named]
        found, zeros = dict[str, float](), 0
        for (one, gradient), top in zip(named, tops, strict=True):
            value = None if gradient is None else np.asarray(tf.convert_to_tensor(gradient))
            reference, name = self._gradient(*one), one[2].names[0]
            if max(_largest(value), top) <= 1e-12 * max(tops):
                zeros += 1
            elif value is None or reference is None:
                found[name] = np.inf
            else:
                found[name] = relative(value, reference)
        return found, zeros

    def _gradient(self, variable: Any, layer: Any, place: Place) -> np.ndarray | None:
        """Return PyTorch's gradient as Keras has it; None: none reaches the array."""
        known = f"gradients/{place.names[0].partition('[')[0]}" in self.arrays
        return self._array("gradients", variable, layer, place) if known else None

    def _check_repeated(self, output: np.ndarray) -> None:
        """Raise UserError if the same batch has other outputs in another pass."""
        self.load()
        if np.array_equal(output, np.asarray(self._forward(0, training=True))):
            return
        drawing = [
            type(one).__name__
            for one in self.model._flatten_layers()
            if getattr(one, "seed_generator", None) is not None and "Dropout" not in type(one).__name__
        ]
        raise UserError(
            "Keras' model draws random numbers outside dropout. Received: two passes of the same batch that differ"
            f"{': ' + drawing[0] if drawing else ''}, in {self.pair.place}. Leave them out for the comparison"
        )


def _largest(array: np.ndarray | None) -> float:
    """Return the largest magnitude, without an array of magnitudes; 0 of nothing."""
    return 0.0 if array is None or not array.size else float(max(array.max(), -array.min()))


def _finite(found: dict[str, tuple[float, str]]) -> dict[str, tuple[float, str]]:
    """Return differences that JSON can write."""
    return {name: (min(value, 1e300), where) for name, (value, where) in found.items()}


def count_entries(variables: list[Any]) -> int:
    """Return the number of entries."""
    return sum(int(np.prod(one.shape)) for one in variables)


def regularized(model: Any) -> list[str]:
    """Return layers that add to the loss or hold their arrays within bounds, with what they do."""
    found = []
    for layer in model._flatten_layers():
        for name, one in vars(layer).items():
            if isinstance(one, keras.regularizers.Regularizer | keras.constraints.Constraint):
                config = {
                    key: f"{value:g}" if isinstance(value, float) else value for key, value in one.get_config().items()
                }
                numbers = ", ".join(f"{key}={value}" for key, value in config.items())
                found.append(f"{name.lstrip('_')}={type(one).__name__}({numbers}) of {path_of(layer)}")
    return found
