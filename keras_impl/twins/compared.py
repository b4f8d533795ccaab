"""Matches a Keras model to what PyTorch's process wrote down, and compares layers and whole models."""

import math
from typing import Any

import keras

from common.measurement.interference import peak_memory_bytes
from common.twins.arrays import CONSTANTS
from common.twins.contract import SAMPLES, users_code
from common.twins.processes import Task, process_seconds
from common.twins.records import Cause, Comparison, Parting, Row, Side, base_name
from common.twins.training import dropout_causes, frozen_cause, regularizer_cause, training_causes
from keras_impl.twins.kernels import is_seed, name_weights, own_arrays, own_variables, path_of
from keras_impl.twins.matcher import Binding, Case, Matcher
from keras_impl.twins.model import Built
from keras_impl.twins.runner import UNSUPPORTED, Runner
from keras_impl.twins.search import Search
from keras_impl.twins.whole import WholeModels

UNSUPPORTED_FUNCTIONS = ("lstm", "gru", "rnn_tanh", "rnn_relu")


def compare(built: Built, task: Task) -> Comparison:
    """Match the layers and compare them, then the whole models."""
    trace = task.torch_result()
    named = name_weights(built.model, trace, built.pair)
    case = Case(built, trace, task.open_arrays(), named)
    with users_code("keras_model()'s call", built.pair.place):
        for source in named:
            source.load(case.arrays)
        search = Search(case)
        matched = search.best()
        binding = matched.matcher.binding
        models = WholeModels(case, binding)
        partings, training = _partings(matched, models)
        statistics = list(models.statistics())
    whole = models.compare()
    dropouts = [*training.dropouts, *(dropout for dropout in matched.dropouts if dropout.always)]
    causes = [
        *dropout_causes(trace.dropouts, dropouts),
        *statistics,
        *_frozen(case, binding),
        *_regularizers(built.model),
    ]
    return Comparison(
        sides={"torch": _torch_side(case, binding), "keras": _keras_side(case, binding, models.multiply_adds)},
        rows=[*matched.rows, *_lone_rows(case, binding)],
        partings=partings,
        unmatched=_unmatched(case, binding, stopped_after=matched.stopped_after),
        training=training_causes(causes),
        whole=whole,
        guessed=binding.guessed,
        tried=search.tried,
    )


def _partings(matched: Runner, models: WholeModels) -> tuple[list[Parting], Runner]:
    """Return where the two part, in inference and beyond that in training, and a run in training.

    Running statistics are those after a batch of training.
    """
    partings, runner = list[Parting](), matched

    def run(mode: str, *, explain: bool) -> Runner:
        models.reset()
        runner = Runner(Matcher(models.case, mode=mode, binding=matched.matcher.binding), explain=explain)
        runner.run()
        return runner

    for mode in ("inference", "training"):
        runner = matched if mode == "inference" else run(mode, explain=False)
        new = _new(runner.partings, partings)
        # A difference that may be that of a constant in float32 needs no explanation, nor does one inside a layer.
        if any(parting.where != "inside" and parting.difference > CONSTANTS for parting in new):
            runner = run(mode, explain=True)
            new = _new(runner.partings, partings)
        partings += new
    return partings, runner


def _new(partings: list[Parting], known: list[Parting]) -> list[Parting]:
    """Return the partings at other places; in training, none that may be that of a constant."""
    places = {parting.place for parting in known}
    new = [parting for parting in partings if parting.place not in places]
    return [parting for parting in new if parting.mode == "inference" or parting.difference > CONSTANTS]


def _torch_side(case: Case, binding: Binding) -> Side:
    trace = case.trace
    # A product with an array of another layer is a function in Keras.
    work = [
        event.multiply_adds
        for event in trace.events["inference"]
        if event.number in binding.events or not binding.names.intersection(event.weights.values())
    ]
    return Side(
        arrays=len(trace.arrays),
        matched=len({base_name(name) for name in binding.names}),
        parameters=sum(math.prod(trace.arrays[name]) for name in trace.trainable),
        multiply_adds=sum(work) // SAMPLES,
        seconds=trace.seconds,
        memory_bytes=trace.memory_bytes,
    )


def _keras_side(case: Case, binding: Binding, multiply_adds: int) -> Side:
    model = case.built.model
    return Side(
        arrays=len([variable for variable in model.variables if not is_seed(variable)]),
        matched=len(binding.sources),
        parameters=sum(math.prod(variable.shape) for variable in model.trainable_variables),
        multiply_adds=multiply_adds // SAMPLES,
        seconds=process_seconds(),
        memory_bytes=peak_memory_bytes(),
    )


def _unmatched(case: Case, binding: Binding, *, stopped_after: str) -> list[Cause]:
    """Return what cannot be compared, or only one side has."""
    variables, tied = _lone_variables(case, binding), _tied(binding)
    in_keras = [f"{variable.path} {tuple(variable.shape)}" for variable in variables]
    remedy = "Keras: use_bias=False" if all(variable.name == "bias" for variable in variables) else ""
    causes = [
        Cause(kind="unsupported", text="cannot be matched", names=_unsupported(case, binding), level="undecided"),
        Cause(kind="arrays", text="only in PyTorch", names=_lone_arrays(case, binding), level="work"),
        Cause(kind="arrays", text="only in Keras", names=in_keras, remedy=remedy, level="work"),
        Cause(kind="arrays", text="one array in PyTorch, several in Keras", names=tied, level="work"),
    ]
    causes = [cause for cause in causes if cause.names]
    if stopped_after:
        text = f"compared up to {stopped_after}; what follows does not work with PyTorch's shapes"
        causes.append(Cause(kind="shapes", text=text, level="work"))
    return causes


def _lone_arrays(case: Case, binding: Binding) -> list[str]:
    """Return arrays without a counterpart, with their shapes."""
    trace, matched = case.trace, {base_name(name) for name in binding.names}
    used = {base_name(name) for event in trace.events["inference"] for name in event.weights.values()}
    # Tables of the user's are constants, whether they are buffers or not there at all.
    tables = {name for name in trace.buffers if "running_" not in name}
    lone = [name for name in trace.arrays if name not in matched | tables and name in used.union(trace.trainable)]
    return [f"{name} {tuple(trace.arrays[name])}" for name in lone]


def _lone_variables(case: Case, binding: Binding) -> list[Any]:
    model = case.built.model
    lone = {
        id(variable) for layer in model._flatten_layers() for variable in own_arrays(layer)
    } - binding.sources.keys()
    return [variable for variable in model.variables if id(variable) in lone]


def _lone_rows(case: Case, binding: Binding) -> list[Row]:
    """Return PyTorch's layers that Keras has not."""
    events = case.trace.events["inference"]
    alone = [event for event in events if event.shapes and event.number not in binding.events]
    return [Row(torch=event, keras=None) for event in alone]


def _tied(binding: Binding) -> list[str]:
    """Return arrays that are one in PyTorch and several in Keras."""
    paths: dict[Any, list[str]] = {}
    for source in binding.sources.values():
        paths.setdefault((source.names, source.part), []).append(source.variable.path)
    return [f"{names[0]}: {' and '.join(several)}" for (names, _), several in paths.items() if len(several) > 1]


def _frozen(case: Case, binding: Binding) -> list[Cause]:
    """Return arrays that one side alone does not train."""
    causes = []
    for source in binding.sources.values():
        in_torch, in_keras = source.array in case.trace.trainable, bool(source.variable.trainable)
        is_statistic = "running_" in source.array or source.variable.name.startswith("moving_")
        if in_torch != in_keras and not is_statistic:
            causes.append(frozen_cause("Keras" if in_torch else "PyTorch", source.array))
    return causes


def _unsupported(case: Case, binding: Binding) -> list[str]:
    """Return layers whose arrays cannot be matched, and are not all in WEIGHTS, and what they are."""
    kinds, named = {}, {name for source in case.named for name in source.names}
    for layer in case.built.model._flatten_layers():
        kind = next((words for kind, words in UNSUPPORTED.items() if isinstance(layer, kind)), "")
        if kind and not all(id(variable) in binding.sources for variable in own_variables(layer).values()):
            kinds[f"Keras {path_of(layer)}"] = kind
    for event in case.trace.events["inference"]:
        if event.name.startswith(UNSUPPORTED_FUNCTIONS) and not named & set(event.weights.values()):
            kinds[f"PyTorch {event.place}"] = "a recurrent layer"
    return [f"{name} ({kind})" for name, kind in kinds.items()]


def _regularizers(model: Any) -> list[Cause]:
    """Return layers that add to the loss or hold their arrays within bounds, with what they do."""
    kinds, causes = keras.regularizers.Regularizer | keras.constraints.Constraint, []
    for layer in model._flatten_layers():
        for name, value in vars(layer).items():
            if isinstance(value, kinds):
                config = value.get_config().items()
                numbers = (f"{key}={n:g}" if isinstance(n, float) else f"{key}={n}" for key, n in config)
                words = f"{name.lstrip('_')}={type(value).__name__}({', '.join(numbers)})"
                causes.append(regularizer_cause(f"{words} of {path_of(layer)}"))
    return causes
