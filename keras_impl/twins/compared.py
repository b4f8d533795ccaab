"""Matches a Keras model to what PyTorch's process wrote down, and compares layers and whole models."""

from typing import Any

import numpy as np

from common.measurement.interference import peak_memory_bytes
from common.twins.arrays import CONSTANTS
from common.twins.comparison import Comparison, Parting, Row, Step
from common.twins.contract import users_code
from common.twins.trace import ArrayFolder, TorchTrace, read_trace
from common.twins.training import training_differences
from common.twins.worker import Worker, updates_for
from keras_impl.twins.events import path_of
from keras_impl.twins.matcher import Binding, Choices, Matcher, is_seed, own_variables, unsupported_layers
from keras_impl.twins.model import Built
from keras_impl.twins.named import name_weights
from keras_impl.twins.runner import Runner
from keras_impl.twins.search import Search
from keras_impl.twins.whole import WholeModels, count_entries, regularized


def compare(built: Built, worker: Worker) -> Comparison:
    """Match the layers and compare them, then the whole models."""
    trace, arrays, pair = read_trace(worker.wait_for_trace()), worker.arrays(), built.pair
    named = name_weights(built.model, trace, pair)
    layers = Layers(built, trace, arrays, mapped=set(named))
    with users_code("keras_model()'s call", pair.place):
        for variable, place in named.values():
            whole = np.sum([arrays[f"weights/{name}"] for name in place.names], axis=0)
            variable.assign(place.to_keras(whole, None, variable))
        found = layers.match()
        binding = found.matcher.binding
        binding.places.update({key: (variable, None, place) for key, (variable, place) in named.items()})
        models = WholeModels(built.model, binding, trace, arrays, pair=pair, batch=built.batch)
        training, partings = layers.part(found, models)
        normalizations = _normalizations(binding, trace)
        statistics = models.statistics(normalizations)
    whole = models.compare(updates=updates_for(trace.multiply_adds))
    samples = len(pair.batch(0))
    return Comparison(
        rows=_with_torch_alone(found.rows, trace, found.matcher),
        partings=partings,
        unsupported=unsupported_layers(built.model, trace, set(named), set(pair.weights)),
        guessed=binding.guessed,
        tied=_tied(binding),
        training=training_differences(
            trace=trace,
            keras_dropouts=[*training.dropouts, *(one for one in found.dropouts if one.always)],
            statistics=statistics,
            layers=normalizations,
            frozen=_frozen(binding, trace),
            regularizers=regularized(built.model),
        ),
        whole=whole,
        multiply_adds={
            "torch": _multiply_adds(found.matcher) // samples,
            "keras": models.multiply_adds // samples,
        },
        tried=layers.tried,
        stopped_after=found.stopped_after,
        seconds={"torch": trace.seconds, "keras": worker.seconds()},
        memory_bytes={"torch": trace.memory_bytes, "keras": peak_memory_bytes()},
        **_counted(built.model, binding, trace),
    )


class Layers:
    """Compares a model layer by layer.

    Attributes:
        tried: choices between layers with equal inputs.
    """

    def __init__(self, built: Built, trace: TorchTrace, arrays: ArrayFolder, *, mapped: set[int]) -> None:
        self._built = built
        self._settings: dict[str, Any] = {"trace": trace, "arrays": arrays, "mapped": mapped}
        self.tried = 0

    def match(self) -> Runner:
        """Return the run in which the layers are matched."""
        search = Search(self._built.model, self._built.batch(0), rates=self._built.rates, settings=self._settings)
        found = search.best()
        self.tried = search.tried
        return found

    def part(self, found: Runner, models: WholeModels) -> tuple[Runner, list[Parting]]:
        """Return a run in training, and where the two part: in inference and, beyond that, in training.

        Running statistics are those after a batch of training.
        """
        binding = found.matcher.binding
        unclear = any(one.where != "inside" and not is_small(one) for one in found.partings)
        partings = self._repeated("inference", binding, explain=True).partings if unclear else found.partings
        places = {(one.where, one.keras and one.keras.place) for one in partings}
        models.load()
        training = self._repeated("training", binding, explain=False)
        for explain in (False, True):
            new = [one for one in training.partings if (one.where, one.keras and one.keras.place) not in places]
            new = [one for one in new if not is_small(one)]
            if not new or explain:
                partings += new
                break
            models.load()
            training = self._repeated("training", binding, explain=True)
        return training, partings

    def _repeated(self, mode: str, binding: Binding, *, explain: bool) -> Runner:
        matcher = Matcher(self._built.model, mode=mode, choices=Choices(), binding=binding, **self._settings)
        runner = Runner(self._built.model, matcher, rates=self._built.rates, explain=explain)
        runner.run(self._built.batch(0))
        return runner


def is_small(parting: Parting) -> bool:
    """Return whether a difference may be that of a constant in float32, which needs no explanation."""
    return parting.difference is not None and parting.difference <= CONSTANTS


def _counted(model: Any, binding: Binding, trace: TorchTrace) -> dict[str, Any]:
    """Return the arrays of both sides: how many, and which have no counterpart."""
    variables = [one for one in model.variables if not is_seed(one)]
    taken = {name.partition("[")[0] for _, _, place in binding.places.values() for name in place.names}
    used = {one.partition("[")[0] for call in trace.calls["inference"] for one in call.weights.values()}
    torch = {name: shape for name, shape in trace.arrays.items() if name not in taken}
    # Tables of the user's are constants, whether they are buffers or not there at all.
    torch = {name: shape for name, shape in torch.items() if name not in trace.buffers or "running_" in name}
    torch = {name: shape for name, shape in torch.items() if name in used or name in trace.trainable}
    keras = [one for one in variables if id(one) not in binding.places and not _preprocesses(model, one)]
    entries = sum(int(np.prod(trace.arrays[name])) for name in trace.trainable)
    return {
        "arrays": {"torch": len(trace.arrays), "keras": len(variables)},
        "matched": {"torch": len(taken), "keras": len(binding.places)},
        "parameters": {"torch": entries, "keras": count_entries(model.trainable_variables)},
        "only_torch": torch,
        "only_keras": {one.path: list(one.shape) for one in keras},
    }


def _multiply_adds(matcher: Matcher) -> int:
    """Return those of PyTorch's layers; a product with an array of another layer is a function in Keras."""
    matched = {key[0] for keys in matcher.binding.keys.values() for key in keys}
    taken = {name for _, _, place in matcher.binding.places.values() for name in place.names}
    return sum(
        call.multiply_adds
        for call in matcher.calls
        if call.order in matched or not taken.intersection(call.weights.values())
    )


def _preprocesses(model: Any, variable: Any) -> bool:
    """Return whether a variable is a number that a layer was given, or a count."""
    owners = [one for one in model._flatten_layers() if any(variable is own for own in one._non_trainable_variables)]
    return any(variable.name not in own_variables(one) for one in owners)


def _tied(binding: Binding) -> list[str]:
    """Return arrays that are one in PyTorch and several in Keras."""
    paths: dict[Any, list[str]] = {}
    for variable, _, place in binding.places.values():
        paths.setdefault((place.names, place.part), []).append(variable.path)
    return [f"{names[0]}: {' and '.join(found)}" for (names, _), found in paths.items() if len(found) > 1]


def _normalizations(binding: Binding, trace: TorchTrace) -> dict[str, tuple[str, float, float]]:
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


def _frozen(binding: Binding, trace: TorchTrace) -> dict[str, list[str]]:
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
