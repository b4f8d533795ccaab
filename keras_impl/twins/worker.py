"""The Keras process of `python -m common twins`.

Builds its model while PyTorch's runs; then matches, compares and writes down what it finds.
`torch_impl/twins/worker.py` goes before.
"""

import sys
from collections.abc import Sequence
from typing import Any

import keras_impl.quiet_tensorflow  # isort: skip  # noqa: F401 - before Keras: TensorFlow without its start-up lines
import keras
import numpy as np
import tensorflow as tf

from common.errors import UserError
from common.twins.comparison import Comparison, Row, Step
from common.twins.contract import Pair, users_code
from common.twins.trace import TorchTrace, read_trace
from common.twins.training import training_differences
from common.twins.worker import COMPARISON_FILE, TRACE_FILE, Worker, peak_memory_bytes, run_worker, updates_for
from keras_impl.twins.events import path_of
from keras_impl.twins.matcher import Choices, Matcher, own_variables, unsupported_layers
from keras_impl.twins.named import name_weights
from keras_impl.twins.runner import Rates, Runner
from keras_impl.twins.search import Search
from keras_impl.twins.whole import WholeModels, count_entries, regularized


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    return run_worker(work, side="keras", arguments=arguments)


def work(worker: Worker) -> None:
    """Build the model, wait for PyTorch's process, compare."""
    tf.config.threading.set_intra_op_parallelism_threads(worker.threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    keras.utils.set_random_seed(0)
    pair = worker.pair()
    built = Built(pair)
    if sys.stdin.readline() != "go\n":  # PyTorch's process has failed
        return
    compare(built, worker).write(worker.folder / COMPARISON_FILE)


class Built:
    """A Keras model in float64, dropout switched off.

    Raises:
        UserError: it is none, or cannot be used.
    """

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.model = pair.build("keras")
        if not isinstance(self.model, keras.Model):
            raise UserError(
                f"keras_model() returns a keras.Model. Received: {type(self.model).__name__} from {pair.place}. "
                "Return one"
            )
        self.rates = self._switch_off_dropout()
        self._check_precision()
        with users_code("keras_model()'s call", pair.place):
            output = self.model(self.batch(0), training=False)
        _check_output(output)

    def batch(self, number: int) -> Any:
        """Return samples as the model takes them: channels first if it says so."""
        samples = self.pair.batch(number)
        shape = getattr(self.model, "input_shape", None)
        channels = self.pair.input[-1]
        if isinstance(shape, tuple) and samples.ndim == 4 and shape[1:] != self.pair.input and shape[1] == channels:
            samples = samples.transpose(0, 3, 1, 2)
        return tf.constant(samples)

    def _switch_off_dropout(self) -> Rates:
        rates, inner = Rates(), set[int]()
        for layer in self.model._flatten_layers():
            if id(layer) in inner:
                continue
            inner.add(id(getattr(layer, "_dropout_layer", None)))
            for name in ("rate", "drop_path_rate", "drop_prob", "_dropout", "dropout", "recurrent_dropout"):
                rate = getattr(layer, name, None)
                drops = name not in ("rate", "drop_prob") or "drop" in type(layer).__name__.lower()
                if isinstance(rate, float) and drops and rate > 0:
                    rates.of[id(layer)] = (rate, name == "_dropout")
                    setattr(layer, name, 0.0)
        return rates

    def _check_precision(self) -> None:
        """Raise UserError if a layer does not compute in float64."""
        for layer in self.model._flatten_layers():
            if not isinstance(layer, keras.layers.InputLayer) and layer.compute_dtype not in ("float64", None):
                raise UserError(
                    f"models are compared in float64. Received: Keras layer {path_of(layer)} that computes in "
                    f"{layer.compute_dtype} (policy {layer.dtype_policy.name}). Leave out its dtype or the policy"
                )


def _check_output(output: Any) -> None:
    if not isinstance(output, tf.Tensor):
        number = f" of {len(output)}" if isinstance(output, tuple | list | dict) else ""
        raise UserError(
            f"a model returns one tensor. Received: a {type(output).__name__}{number} from Keras' model. "
            "Return the tensor that is compared, such as the logits"
        )
    if output.dtype != tf.float64:
        raise UserError(
            f"models are compared in float64. Received: {output.dtype.name} from Keras' model. Leave out casts"
        )


def compare(built: Built, worker: Worker) -> Comparison:
    """Match the layers and compare them, then the whole models."""
    model, pair = built.model, built.pair
    trace, arrays = read_trace(worker.folder / TRACE_FILE), worker.arrays()
    named = name_weights(model, trace, pair)
    settings: dict[str, Any] = {"trace": trace, "arrays": arrays, "mapped": set(named)}
    samples = built.batch(0)
    with users_code("keras_model()'s call", pair.place):
        for variable, place in named.values():
            variable.assign(
                place.to_keras(np.sum([arrays[f"weights/{n}"] for n in place.names], axis=0), None, variable)
            )
        search = Search(model, samples, rates=built.rates, settings=settings)
        found = search.best()
        binding = found.matcher.binding
        again = Repeat(built, settings, binding)
        partings = again.run("inference", explain=True).partings if found.partings else []
        binding.places.update({key: (variable, None, place) for key, (variable, place) in named.items()})
        whole = WholeModels(model, binding, trace, arrays, pair=pair, batch=built.batch)
        whole.load()
        training = again.run("training", explain=False)
        statistics = whole.statistics()
        places = {(one.where, _place(one.keras)) for one in partings}
        if any((one.where, _place(one.keras)) not in places for one in training.partings):
            whole.load()
            partings += [
                one
                for one in again.run("training", explain=True).partings
                if (one.where, _place(one.keras)) not in places
            ]
    inference_dropouts = [one for one in found.dropouts if one.always]
    batches = len(samples)
    whole_result = whole.compare(updates=updates_for(trace.multiply_adds))
    variables = [one for one in model.variables if "seed" not in one.path]
    taken = {name.partition("[")[0] for _, _, place in binding.places.values() for name in place.names}
    return Comparison(
        rows=_with_torch_alone(found.rows, trace, found.matcher),
        partings=partings,
        constants=0,
        arrays={"torch": len(trace.arrays), "keras": len(variables)},
        matched={"torch": len(taken), "keras": len(binding.places)},
        parameters={"torch": _entries(trace), "keras": count_entries(model.trainable_variables)},
        only_torch={name: shape for name, shape in trace.arrays.items() if name not in taken and _is_used(name, trace)},
        only_keras={
            one.path: list(one.shape)
            for one in variables
            if id(one) not in binding.places and not _preprocesses(model, one)
        },
        unsupported=unsupported_layers(model, trace, set(named), set(pair.weights)),
        guessed=binding.guessed,
        tied=_tied(binding, trace),
        training=training_differences(
            trace=trace,
            keras_dropouts=[*training.dropouts, *inference_dropouts],
            statistics=statistics,
            layers=_normalizations(binding, trace),
            frozen=_frozen(binding, trace),
            regularizers=regularized(model),
        ),
        whole=whole_result,
        multiply_adds={"torch": trace.multiply_adds // batches, "keras": found.multiply_adds // batches},
        tried=search.tried,
        stopped_after=found.stopped_after,
        seconds={"torch": trace.seconds, "keras": worker.seconds()},
        memory_bytes={"torch": trace.memory_bytes, "keras": peak_memory_bytes()},
    )


class Repeat:
    """Runs a matched model again."""

    def __init__(self, built: Built, settings: dict[str, Any], binding: Any) -> None:
        self._built, self._settings, self._binding = built, settings, binding

    def run(self, mode: str, *, explain: bool) -> Runner:
        """Run it in a mode."""
        matcher = Matcher(self._built.model, mode=mode, choices=Choices(), binding=self._binding, **self._settings)
        runner = Runner(self._built.model, matcher, rates=self._built.rates, explain=explain)
        runner.run(self._built.batch(0))
        return runner


def _place(step: Step | None) -> str:
    return step.place if step else ""


def _entries(trace: TorchTrace) -> int:
    return sum(int(np.prod(trace.arrays[name])) for name in trace.trainable)


def _is_used(name: str, trace: TorchTrace) -> bool:
    """Return whether it is a parameter, or a statistic: tables of the user's are constants."""
    used = {one.partition("[")[0] for call in trace.calls["inference"] for one in call.weights.values()}
    return name in trace.trainable or (name in used and "running_" in name)


def _preprocesses(model: Any, variable: Any) -> bool:
    """Return whether a variable is a number that a layer was given, or a count."""
    owners = [one for one in model._flatten_layers() if any(variable is own for own in one._non_trainable_variables)]
    return any(variable.name not in own_variables(one) for one in owners)


def _tied(binding: Any, trace: TorchTrace) -> list[str]:
    """Return arrays that are one in PyTorch and several in Keras."""
    paths: dict[Any, list[str]] = {}
    for variable, _, place in binding.places.values():
        paths.setdefault((place.names, place.part), []).append(variable.path)
    return [f"{names[0]}: {' and '.join(found)}" for (names, _), found in paths.items() if len(found) > 1]


def _normalizations(binding: Any, trace: TorchTrace) -> dict[str, tuple[str, float, float]]:
    """Return PyTorch's name of a statistic -> Keras layer, share of the old value kept in PyTorch and in Keras."""
    kept = {
        call.weights[role]: 1 - float(call.numbers.get("momentum", 0.1))
        for call in trace.calls["training"]
        for role in ("running_mean", "running_var")
        if role in call.weights
    }
    return {
        place.names[0]: (path_of(layer), kept[place.names[0]], float(layer.momentum))
        for _, layer, place in binding.places.values()
        if place.names[0] in kept and hasattr(layer, "momentum")
    }


def _frozen(binding: Any, trace: TorchTrace) -> dict[str, list[str]]:
    """Return the side that alone does not train an array -> its names."""
    found: dict[str, list[str]] = {"PyTorch": [], "Keras": []}
    for variable, _, place in binding.places.values():
        name = place.names[0].partition("[")[0]
        if "running_" in name or variable.name.startswith("moving_"):
            continue
        trained = {"PyTorch": name in trace.trainable, "Keras": bool(variable.trainable)}
        for side, other in (("PyTorch", "Keras"), ("Keras", "PyTorch")):
            if trained[other] and not trained[side]:
                found[side].append(name)
    return found


def _with_torch_alone(rows: list[Row], trace: TorchTrace, matcher: Matcher) -> list[Row]:
    """Add PyTorch's layers that Keras has not, after the layer before them."""
    matched = {key[0] for keys in matcher.binding.keys.values() for key in keys}
    alone = [call for call in trace.calls["inference"] if call.shapes and call.order not in matched]
    return [
        *rows,
        *(Row(torch=Step(name=one.function, place=one.layer, numbers=one.numbers), keras=None) for one in alone),
    ]


if __name__ == "__main__":
    sys.exit(main())
