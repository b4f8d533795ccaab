"""Checks of the wheel's `DistributedOptimizer`, in float64, on every rank of a start (`in_turn.py`).

Most compare three trainings: by the distributed optimizer on this rank's gradients, by the plain one on the average of
those of all ranks, which gives the same weights, and by the plain one on one rank's alone, which gives others: that is
what an optimizer that averages nothing would give.
"""

import functools
import inspect
import itertools
import os
import re
import runpy
import subprocess
import sys
from contextlib import contextmanager
from unittest import mock

import horovod.tensorflow as hvd
import keras
import numpy as np
import pytest
import tensorflow as tf
from horovod_keras3 import DistributedOptimizer, check_compiled_model, requirements

TOLERANCE = 1e-12
STEPS = 4
SHAPES = [(6, 2), (4, 3), (3,), (5, 4)]  # an embedding and three other variables
ROWS = [[0, 2, 2], [2, 5, 0], [0, 1, 2], [5, 5, 3]]  # of the embedding: they repeat in a rank and between ranks
DTYPES = ("float64",) * 4
EVERYONE = hvd.global_process_set
EVEN, ODD = hvd.ProcessSet([0, 2]), hvd.ProcessSet([1, 3])

keras.config.set_floatx("float64")
keras.config.set_dtype_policy("float64")  # scripts that ran before have set that of float32
hvd.init(process_sets=[EVEN, ODD] if os.environ.get("OMPI_COMM_WORLD_SIZE") == "4" else None)


@keras.saving.register_keras_serializable("own")
class Own(keras.optimizers.RMSprop):
    """An optimizer class of a user's own."""


def relative_difference(value, reference):
    """Largest difference over the largest entry of the reference; infinite where a value is no number."""
    largest = np.max(np.abs(value - reference)) / np.max(np.abs(reference))
    return float(largest) if np.isfinite(largest) else float("inf")


def new_variables(dtypes=DTYPES):
    """The variables, with the same values on all ranks."""
    draw = np.random.default_rng(1)
    return [
        keras.Variable(draw.normal(size=shape), dtype=dtype, name=f"w{index}")
        for index, (shape, dtype) in enumerate(zip(SHAPES, dtypes, strict=True))
    ]


def gradients_of(rank, step, variables):
    """A rank's gradients of a step, which any rank can compute; the first is sparse."""
    draw = np.random.default_rng([rank, step])
    rows = tf.constant(draw.normal(size=(3, 2)), variables[0].dtype)
    others = [tf.constant(draw.normal(size=variable.shape), variable.dtype) for variable in variables[1:]]
    return [tf.IndexedSlices(rows, tf.constant(ROWS[rank]), tf.constant(SHAPES[0])), *others]


def own(step, variables):
    """This rank's gradients."""
    return gradients_of(hvd.rank(), step, variables)


def mean_of(ranks):
    """Return the function of the average over ranks of their gradients, all of them dense."""

    def mean(step, variables):
        each = [map(tf.convert_to_tensor, gradients_of(rank, step, variables)) for rank in ranks]
        return [sum(gradients) / len(ranks) for gradients in zip(*each, strict=True)]

    return mean


def partners(process_set):
    """The ranks that this rank is to train with; itself alone outside the process set."""
    return list(process_set.ranks) if process_set.included() else [hvd.rank()]


def flat(variables):
    """All values in one float64 vector."""
    return np.concatenate([np.asarray(variable.numpy(), dtype=np.float64).ravel() for variable in variables])


def in_graph(optimizer, variables, *, xla=False):
    """The update as a `tf.function` of the gradients."""
    return tf.function(lambda gradients: optimizer.apply(gradients, variables), jit_compile=xla or None)


def train(optimizer, gradients, *, graph=False, steps=range(STEPS), variables=None, dtypes=DTYPES):
    """Apply `gradients(step, variables)`; return the final weights."""
    variables = variables or new_variables(dtypes)
    optimizer.build(variables)
    apply = in_graph(optimizer, variables) if graph else lambda g: optimizer.apply(g, variables)
    for step in steps:
        apply(gradients(step, variables))
    return flat(variables)


@contextmanager
def counted_calls():
    """Count the calls of Horovod's two all-reduces: grouped, single."""
    counts = [0, 0]

    def counting(function, index):
        def call(*args, **kwargs):
            counts[index] += 1
            return function(*args, **kwargs)

        return call

    grouped, single = counting(hvd.grouped_allreduce, 0), counting(hvd.allreduce, 1)
    with mock.patch.object(hvd, "grouped_allreduce", grouped), mock.patch.object(hvd, "allreduce", single):
        yield counts


def judge(received, expected, alone=None, *, ranks=None, least=-1.0, most=TOLERANCE):
    """These ranks hold the same weights: those that `expected` returns, and not those of `alone`.

    Either is called on one of these ranks only.
    """
    ranks = ranks or range(hvd.size())
    is_last = hvd.rank() == ranks[-1] and len(ranks) > 1
    reference = expected() if hvd.rank() == ranks[0] else alone() if is_last and alone else None
    of_ranks = hvd.allgather_object((received, reference))
    assert all(np.array_equal(of_ranks[rank][0], received) for rank in ranks), "ranks differ"
    (_, expected), (_, alone) = of_ranks[ranks[0]], of_ranks[ranks[-1]]
    difference = relative_difference(received, expected)
    assert least < difference < most, difference
    assert len(ranks) == 1 or alone is None or relative_difference(alone, expected) > 1e-5, "one rank alone is the same"


def compare(make, *ways, edit=list, part=slice(None), process_set=EVERYONE, least=-1.0, most=TOLERANCE, **how):
    """Judge an optimizer that is made distributed with the options of each way; return Horovod's calls of each.

    Args:
        edit: changes every list of gradients.
        part: of the weights, that is judged.
        how: see `train`.
    """
    ranks, calls = partners(process_set), []

    def plain(ranks):
        return train(make(), lambda s, v: edit(mean_of(ranks)(s, v)), **how | {"graph": False})[part]

    expected, alone = functools.cache(lambda: plain(ranks)), functools.cache(lambda: plain([hvd.rank()]))
    for options in ways or ({},):
        with counted_calls() as counts:
            optimizer = DistributedOptimizer(make(), process_set=process_set, **options)
            received = train(optimizer, lambda s, v: edit(own(s, v)), **how)[part]
        calls.append(counts)
        judge(received, expected, alone, ranks=ranks, least=least, most=most)
    return calls


def momentum(**settings):
    """Return what makes momentum SGD with some settings."""
    return functools.partial(keras.optimizers.SGD, **({"learning_rate": 0.1, "momentum": 0.9} | settings))


def every_optimizer():
    """All of keras.optimizers and a user's own, with their default settings."""
    adam, sgd, scaled = keras.optimizers.Adam, keras.optimizers.SGD, keras.optimizers.LossScaleOptimizer
    makes = {
        name: functools.partial(value, learning_rate=0.1)
        for name, value in vars(keras.optimizers).items()
        if inspect.isclass(value)
        and issubclass(value, keras.optimizers.Optimizer)
        and name not in ("Optimizer", "LossScaleOptimizer", "MultiOptimizer")
    }
    assert len(makes) == 14, makes
    makes["own"] = functools.partial(Own, 0.1)
    makes["loss scale"] = lambda: scaled(adam(0.1), initial_scale=2.0)
    choice = keras.optimizers.OptimizerMap
    makes["multi"] = lambda: keras.optimizers.MultiOptimizer(choice(adam(0.1), {"w1": sgd(0.1)}))
    return makes


def one_optimizer():
    """Where all of them would take long."""
    check_optimizers(names=("Adam",))


def check_optimizers(names=None):
    """Every optimizer, on dense gradients and on those of an embedding, as dense ones or as rows."""
    wrong = []
    for name, make in every_optimizer().items():
        try:
            if names is None or name in names:
                compare(make, {"sparse_as_dense": True}, {"sparse_as_dense": False}, steps=range(2))
        except AssertionError as error:
            wrong.append(f"{name}: {error}")
    assert not wrong, wrong


def check_settings_of_optimizers():
    """Clipping, decay and averages act on the averaged gradients; rates may be schedules and functions."""
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
    compare(momentum(clipvalue=0.3, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2))
    compare(momentum(global_clipnorm=0.7, weight_decay=0.1), graph=True)
    compare(momentum(learning_rate=schedule), graph=True)
    compare(momentum(learning_rate=lambda: tf.constant(0.1, tf.float64)))
    compare(momentum(), edit=lambda gradients: [*gradients[:2], None, gradients[3]], graph=True)
    accumulating = momentum(gradient_accumulation_steps=2, clipnorm=0.5)
    assert compare(accumulating) == [[2, 0]]  # two updates of two gradients each
    assert compare(accumulating, graph=True) == [[1, 0]]
    inner = functools.partial(keras.optimizers.SGD, 0.1, momentum=0.9, gradient_accumulation_steps=2, clipnorm=0.5)
    compare(lambda: keras.optimizers.LossScaleOptimizer(inner(), initial_scale=2.0))


def check_ways_of_exchange():
    """Groups, one call for each tensor, rows, float16, two dtypes; and how often Horovod is called in four steps."""
    groups = [{"groups": number} for number in (1, 2, 100, None)]  # never more groups than tensors
    assert compare(momentum(), *groups, {"sparse_as_dense": False}) == [[4, 0], [8, 0], [16, 0], [0, 16], [8, 0]]
    in_a_graph = compare(momentum(), *groups, {"sparse_as_dense": False}, graph=True)  # traced once
    assert in_a_graph == [[1, 0], [2, 0], [4, 0], [0, 4], [2, 0]]
    compare(momentum(), {"compression": "fp16"}, least=1e-7, most=1e-3)  # float16 was really on the wire
    dtypes = ("float32", "float32", "float64", "float32")
    assert compare(momentum(), dtypes=dtypes, graph=True, most=1e-6) == [[2, 0]]
    compare(momentum(), dtypes=dtypes, graph=True, part=slice(24, 27))  # the float64 one
    size = hvd.size()
    total = train(DistributedOptimizer(momentum()(), op=hvd.Sum), own)
    # Momentum SGD is linear in the gradients.
    judge(total, lambda: train(momentum(learning_rate=0.1 * size)(), mean_of(range(size))))


def check_local_variables(process_set=EVERYONE):
    """The gradient of a variable that stays local is divided by the number of ranks, and not exchanged."""
    ranks = partners(process_set)
    for first_local in (3, 0):
        variables = new_variables()
        local = variables[first_local:]
        optimizer = DistributedOptimizer(momentum()(), local_variables=local, process_set=process_set)

        def expected(step, variables, first_local=first_local):
            shared, alone = mean_of(ranks)(step, variables), mean_of([hvd.rank()])(step, variables)
            return [*shared[:first_local], *(gradient / len(ranks) for gradient in alone[first_local:])]

        received = train(optimizer, own, variables=variables)
        assert relative_difference(received, train(momentum()(), expected)) < TOLERANCE


def check_wrapped_late():
    """State that an optimizer has is copied; the config is that of the plain one and makes a distributed one."""
    variables, half_way = new_variables(), momentum()()
    train(half_way, mean_of(range(hvd.size())), steps=range(2), variables=variables)
    received = train(DistributedOptimizer(half_way), own, steps=(2, 3), variables=variables)
    judge(received, lambda: train(momentum()(), mean_of(range(hvd.size()))), lambda: train(momentum()(), own))

    plain = keras.optimizers.Adam
    config = plain(0.1, clipnorm=0.5).get_config()
    distributed = DistributedOptimizer(plain.from_config(config))
    for copy in (distributed.from_config(config), type(distributed).from_config(config)):
        assert distributed.get_config() == copy.get_config() == config
        received = train(copy, own)
        judge(
            received,
            lambda: train(plain.from_config(config), mean_of(range(hvd.size()))),
            lambda: train(plain.from_config(config), mean_of([hvd.rank()])),
        )


def check_four_passes_an_update():
    """Dense, missing, sparse and local gradients: of rank r 1, none, and -(r + 1) for the first row of two tables."""
    for graph in (True, False):
        _four_passes(1.0, graph)  # the mean of the passes
        _four_passes(4.0, graph)  # their sum


def _four_passes(factor, graph):
    variables = [keras.Variable(value, dtype="float64") for value in ([0], [7], [1, 2], [1, 2])]
    dense, _, table, local = variables
    adding = keras.optimizers.SGD(-1.0)  # so that weights show the gradients
    optimizer = DistributedOptimizer(adding, backward_passes_per_step=4, local_variables=[local])
    optimizer.build(variables)

    def step():
        with tf.GradientTape() as tape:
            rows = tf.gather(table.value, [0]) + tf.gather(local.value, [0])
            loss = factor * (dense.value - (hvd.rank() + 1) * rows)
        optimizer.apply(tape.gradient(loss, [variable.value for variable in variables]), variables)

    step = tf.function(step) if graph else step
    with counted_calls() as calls:
        for passes in range(1, 11):
            step()
            total = factor * (passes // 4)
            expected = [total, 7, 1 - 1.5 * total, 2, 1 - (hvd.rank() + 1) / 2 * total, 2]
            assert np.allclose(flat(variables), expected, rtol=0, atol=TOLERANCE), f"after pass {passes}"
    assert calls == [1 if graph else 2, 0]
    assert int(optimizer.iterations) == 2  # Keras counts updates, Horovod passes


def check_overflow(process_set=EVERYONE):
    """Loss scaling in a graph: rank 1 overflows in the second of three steps; all must skip it, and none may wait."""
    ranks = partners(process_set)

    def scaled():
        return keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.1), initial_scale=4.0)

    def gradients(of, skipping):
        def edited(step, variables):
            found = [tf.convert_to_tensor(gradient) for gradient in of(step, variables)]
            return [gradient * float("inf") for gradient in found] if step == 1 and skipping else found

        return edited

    optimizer = DistributedOptimizer(scaled(), process_set=process_set)
    received = train(optimizer, gradients(own, hvd.rank() == 1), graph=True, steps=range(3))
    judge(received, lambda: train(scaled(), gradients(mean_of(ranks), 1 in ranks), steps=range(3)), ranks=ranks)
    assert [optimizer.iterations, optimizer.dynamic_scale] == ([2, 2.0] if 1 in ranks else [3, 4.0])


def check_ranks_may_trace_different_graphs():
    """Other batch sizes, other name scopes, one trace more on rank 0."""
    data, start = np.random.default_rng(3).normal(size=(8, 4)), np.random.default_rng(1).normal(size=(4, 3))
    mine = data[:3] if hvd.rank() == 0 else data[3:]

    def steps(optimizer, batches, scope, share):
        variable = keras.Variable(start, dtype="float64")
        optimizer.build([variable])

        @tf.function
        def step(x):
            with tf.name_scope(scope), tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.square(x @ variable)) * share
            with tf.name_scope(scope):
                optimizer.apply(tape.gradient(loss, [variable.value]), [variable])

        for batch in batches:
            step(tf.constant(batch))
        return flat([variable])

    if hvd.rank() == 0:
        tf.function(lambda x: x + 1)(tf.constant(1.0))
    plain, distributed = keras.optimizers.SGD(0.01), DistributedOptimizer(keras.optimizers.SGD(0.01))
    received = steps(distributed, [mine, mine[:2], mine], f"scope{hvd.rank()}", 2.0)
    both = [data, np.concatenate([data[:2], data[3:5]]), data]
    judge(received, lambda: steps(plain, both, "scope", 1.0))


def model_of():
    """A model with a layer used twice, one frozen and one that the loss does not reach."""
    keras.utils.set_random_seed(5)
    inputs = keras.Input((4,))
    shared, frozen, last, unused = (keras.layers.Dense(units, activation="tanh") for units in (4, 4, 3, 2))
    frozen.trainable = False
    return keras.Model(inputs, {"used": last(shared(frozen(shared(inputs)))), "unused": unused(inputs)})


def check_fit():
    """Ranks with batches of 8 are one process with 16; a callback halves the rate."""
    draw = np.random.default_rng(4)
    x, y = draw.normal(size=(64, 4)), draw.normal(size=(64, 3))
    order = np.arange(64).reshape(4, 2, 8)  # step, rank, sample
    halving = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5**epoch)

    def trained(optimizer, ranks, **how):
        model, rows = model_of(), order[:, ranks].reshape(-1)
        model.compile(optimizer=optimizer, loss={"used": "mse"}, jit_compile=False, **how)
        how = {"batch_size": 8 * len(ranks), "epochs": 2, "shuffle": False, "verbose": 0, "callbacks": [halving]}
        model.fit(x[rows], {"used": y[rows]}, **how)
        return flat(model.variables)

    def plain(ranks):
        return trained(momentum()(), ranks, run_eagerly=True)

    with counted_calls() as calls:
        received = trained(DistributedOptimizer(momentum()()), [hvd.rank()], steps_per_execution=2)
    assert calls in ([1, 0], [2, 0])  # Keras may trace a step more than once
    judge(received, lambda: plain([0, 1]), lambda: plain([hvd.rank()]))


def train_on_batches(model, optimizer, batches):
    """Train; return the values of the model and of the optimizer."""
    model.compile(optimizer=optimizer, loss="mse", jit_compile=False, run_eagerly=True)
    for x, y in batches:
        model.train_on_batch(x, y)
    return flat([*model.variables, *model.optimizer.variables])


def check_resumed():
    """Rank 0 alone loads what it saved and the others begin anew; after the broadcast they train on as if unbroken."""
    draw = np.random.default_rng(9)
    x, y = draw.normal(size=(4, 2, 8, 4)), draw.normal(size=(4, 2, 8, 3))  # step, rank, sample, feature

    def batches(numbers, ranks):
        return [(np.concatenate(x[step, ranks]), np.concatenate(y[step, ranks])) for step in numbers]

    def build(seed):
        keras.utils.set_random_seed(seed)
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])

    def plain(ranks):
        return train_on_batches(build(1), Own(0.1, momentum=0.9), batches(range(4), ranks))

    mine, model = [hvd.rank()], build(1)
    train_on_batches(model, DistributedOptimizer(Own(0.1, momentum=0.9)), batches(range(2), mine))
    if hvd.rank() == 0:
        saved = flat(model.optimizer.variables)
        model.save("own.model.keras")
        model = keras.saving.load_model("own.model.keras", custom_objects={"Own": Own})
        assert type(model.optimizer) is Own
        assert np.array_equal(flat(model.optimizer.variables), saved)
        optimizer = DistributedOptimizer(model.optimizer)
    else:
        model, optimizer = build(2), DistributedOptimizer(Own(0.7, momentum=0.9))  # a rate that is to be replaced
        optimizer.build(model.trainable_variables)
    variables = [*model.variables, *optimizer.variables]
    # `hvd.broadcast_variables` would wait for ever: it goes by the names, and those of a loaded model are others.
    values = hvd.broadcast_object([variable.numpy() for variable in variables], root_rank=0)
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
    received = train_on_batches(model, optimizer, batches((2, 3), mine))
    judge(received, lambda: plain([0, 1]), lambda: plain(mine))


LOAD = """
import sys
sys.modules |= {"horovod": None, "horovod_keras3": None}  # any import of them now raises ImportError
import keras, numpy as np

@keras.saving.register_keras_serializable("own")
class Own(keras.optimizers.RMSprop):
    pass

for name in sys.argv[1:]:
    model = keras.saving.load_model(f"{name}.keras")
    before = int(model.optimizer.iterations)
    model.fit(np.zeros((8, 4)), np.ones((8, 3)), verbose=0)
    print(type(model.optimizer).__name__, type(model.optimizer).__module__, before, int(model.optimizer.iterations))
"""


def check_a_saved_model_loads_without_horovod():
    """And without the package; it names the plain class."""
    optimizers = {
        "adam": keras.optimizers.Adam(0.01),
        "own": Own(0.01),
        "loss_scale": keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01, momentum=0.9)),
    }
    for name, optimizer in optimizers.items():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
        train_on_batches(model, DistributedOptimizer(optimizer), [(np.ones((8, 4)), np.zeros((8, 3)))])
        if hvd.rank() == 0:
            model.save(f"{name}.keras")
    if hvd.rank() == 0:
        command = [sys.executable, "-I", "-c", LOAD, *optimizers]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr[-6000:]
        assert done.stdout.splitlines() == [
            "Adam keras.src.optimizers.adam 1 2",
            "Own __main__ 1 2",
            "LossScaleOptimizer keras.src.optimizers.loss_scale_optimizer 1 2",
        ]


@contextmanager
def not_built():
    """Let Horovod be without TensorFlow."""
    error = ImportError("Extension horovod.tensorflow has not been built\nReinstall Horovod")
    with mock.patch.dict(sys.modules), mock.patch("horovod.common.util.check_extension", side_effect=error):
        del sys.modules["horovod.tensorflow"]
        yield


def check_what_is_missing_is_one_line():
    """As the package is imported."""
    refused = [
        (not_built(), r"for it. Received: Extension horovod.tensorflow has not been built. See its README.md"),
        (mock.patch.dict(sys.modules, {"keras": None}), "for it. Received: import of keras halted"),
        (mock.patch.object(keras, "__version__", "2.15.0"), "Received: Keras 2.15.0 on tensorflow. Install a newer"),
        (mock.patch.object(keras.backend, "backend", lambda: "jax"), r"on jax. Install .* or unset KERAS_BACKEND"),
    ]
    for what, words in refused:
        with what, pytest.raises(ImportError, match=f"^horovod_keras3 needs Keras .*{words}") as error:
            runpy.run_path(requirements.__file__)
        assert "\n" not in str(error.value)


def check_refusals():
    """Everything that must end in a message."""
    sgd, scaled, variables = keras.optimizers.SGD, keras.optimizers.LossScaleOptimizer, new_variables()

    def compiled(optimizer, **settings):
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(optimizer=optimizer, loss="mse", **settings)
        check_compiled_model(model)

    def apply(optimizer, **settings):
        optimizer.build(variables)
        in_graph(optimizer, variables, **settings)(own(0, variables))

    def passes(optimizer):
        return DistributedOptimizer(optimizer, backward_passes_per_step=2)

    wrong_way_round = "DistributedOptimizer(LossScaleOptimizer(...))"
    refused = [
        (TypeError, "Keras 3 optimizer", lambda: DistributedOptimizer("sgd")),
        (ValueError, "already", lambda: DistributedOptimizer(DistributedOptimizer(sgd()))),
        (ValueError, "hvd.Average, hvd.Sum or", lambda: DistributedOptimizer(sgd(), op=hvd.Max)),
        (ValueError, "'zip'", lambda: DistributedOptimizer(sgd(), compression="zip")),
        (ValueError, "groups=0", lambda: DistributedOptimizer(sgd(), groups=0)),
        (ValueError, "backward_passes_per_step", lambda: passes(sgd(gradient_accumulation_steps=2))),
        (ValueError, "backward_passes_per_step", lambda: passes(scaled(sgd()))),
        (
            ValueError,
            "hvd.init(process_sets=[...])",
            lambda: DistributedOptimizer(sgd(), process_set=hvd.ProcessSet([0])),
        ),
        (ValueError, "this rank's gradients alone", lambda: compiled(sgd(), jit_compile=False)),
        (ValueError, "jit_compile=False", lambda: compiled(DistributedOptimizer(sgd()), jit_compile=True)),
        (ValueError, "jit_compile=False", lambda: apply(DistributedOptimizer(sgd()), xla=True)),
        (ValueError, wrong_way_round, lambda: compiled(scaled(DistributedOptimizer(sgd())), jit_compile=False)),
        (ValueError, wrong_way_round, lambda: apply(scaled(DistributedOptimizer(Own())))),
        (ValueError, wrong_way_round, lambda: apply(scaled(DistributedOptimizer(sgd(gradient_accumulation_steps=2))))),
    ]
    for error, words, call in refused:
        with pytest.raises(error, match=re.escape(words)):
            call()
    with mock.patch.object(hvd, "is_initialized", lambda: False), pytest.raises(RuntimeError, match=r"hvd\.init\(\)"):
        DistributedOptimizer(sgd())
    compiled(DistributedOptimizer(sgd()), jit_compile=False)


def decayed(optimizer, *variables):
    """Return which of some variables an optimizer makes smaller where their gradients are 0."""
    for variable in variables:
        variable.assign(tf.ones_like(variable))
    optimizer.apply([tf.zeros_like(variable) for variable in variables], list(variables))
    return [bool(np.all(variable.numpy() < 1)) for variable in variables]


def check_what_calls_have_set_on_an_optimizer_survives_the_wrapper():
    kernel, bias = keras.Variable(np.ones(3), name="kernel"), keras.Variable(np.ones(2), name="bias")
    ways = [{"var_names": ["bias"]}, {"var_list": [bias]}]
    for way, is_built, is_inner in itertools.product(ways, (False, True), (False, True)):
        adam = keras.optimizers.AdamW(0.1, weight_decay=0.1)
        adam.exclude_from_weight_decay(**way)
        optimizer = keras.optimizers.LossScaleOptimizer(adam) if is_inner else adam
        adam.iterations.assign(7)
        if is_built:
            optimizer.build([kernel, bias])
        distributed = DistributedOptimizer(optimizer)
        assert decayed(distributed, kernel, bias) == [True, False], (way, is_built, is_inner)
        assert int((distributed.inner_optimizer if is_inner else distributed).iterations) == 8


def check_passes_whose_gradients_are_not_averaged_are_an_error():
    """As with a version of Keras that accumulates in another way."""

    def update_at_once(self, grads, trainable_variables):
        self._backend_update_step(grads, trainable_variables, self.learning_rate)

    weight = keras.Variable(np.zeros(2), dtype="float64")
    with mock.patch.object(keras.optimizers.Optimizer, "_backend_apply_gradients", update_at_once):
        optimizer = DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=2)
        optimizer.apply([tf.ones_like(weight)], [weight])
        with pytest.raises(RuntimeError, match=r"averaged once per update but 0 times. Received: Keras 3\."):
            optimizer.apply([tf.ones_like(weight)], [weight])


def one_process():
    """Alone nothing is sent, rows count once as among ranks, and XLA is allowed."""
    check_optimizers()
    assert compare(momentum(), graph=True) == [[0, 0]]
    optimizer, variables = DistributedOptimizer(momentum()()), new_variables()
    optimizer.build(variables)
    apply = in_graph(optimizer, variables, xla=True)
    for step in range(STEPS):
        apply(mean_of([0])(step, variables))
    assert relative_difference(flat(variables), train(momentum()(), mean_of([0]))) < TOLERANCE


def process_sets():
    """Four ranks: [0, 2] and [1, 3] each average among themselves; then [0, 2] do, and 1 and 3 train alone."""
    of_rank = EVEN if EVEN.included() else ODD
    ways = ({}, {"groups": None}, {"sparse_as_dense": False})
    assert compare(momentum(), *ways, process_set=of_rank) == [[4, 0], [0, 16], [8, 0]]
    compare(momentum(global_clipnorm=0.7), graph=True, process_set=of_rank)
    compare(momentum(gradient_accumulation_steps=2), graph=True, process_set=of_rank)
    compare(momentum(), {"compression": "fp16"}, process_set=of_rank, least=1e-7, most=1e-3)
    check_local_variables(of_rank)
    check_overflow(of_rank)
    for graph, calls in ((False, 4), (True, 1)):
        assert compare(momentum(), process_set=EVEN, graph=graph) == [[calls if EVEN.included() else 0, 0]]
