"""One rank of the proofs of `keras_impl.distributed_optimizer`; started by horovodrun (or alone, for one process).

`python distributed_optimizer_worker.py FOLDER` writes FOLDER/rank<rank>.npz. Names of its arrays:
    <proof>/received    weights after training with the distributed optimizer on this rank's gradients
    <proof>/expected    weights after training with the plain optimizer on the average of all ranks' gradients
    <proof>/alone       weights after training with the plain optimizer on this rank's gradients: what a distributed
                        optimizer that averages nothing would give
    calls/<proof>       Horovod calls while the distributed optimizer trained: grouped, single
    message/<name>      text of an error that must come
"""

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf

from keras_impl import update_rules as ours
from keras_impl.distributed_optimizer import DistributedOptimizer, check_compiled_model

FOLDER = Path(sys.argv[1])
FIRST = hvd.ProcessSet([0])
STEPS = 4
RESULTS: dict[str, np.ndarray] = {}
CALLS = {"grouped": 0, "single": 0}


def count_calls() -> None:
    """Counts every call of Horovod's two allreduces from here on."""

    def counted(call: Callable, key: str) -> Callable:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            CALLS[key] += 1
            return call(*args, **kwargs)

        return wrapper

    hvd.grouped_allreduce = counted(hvd.grouped_allreduce, "grouped")
    hvd.allreduce = counted(hvd.allreduce, "single")


def new_variables(*, dtypes: tuple[str, ...] = ("float64", "float64", "float64")) -> list[Any]:
    """A matrix, a vector and another matrix with the same values on all ranks."""
    draw = np.random.default_rng(1)
    shapes = [(4, 3), (3,), (5, 4)]
    return [
        keras.Variable(draw.normal(size=shape), dtype=dtype, name=f"w{index}")
        for index, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True))
    ]


def gradients_of(rank: int, step: int, variables: list[Any]) -> list[Any]:
    """Every rank's and every step's own gradients; any rank can compute all of them."""
    draw = np.random.default_rng([rank, step])
    return [tf.constant(draw.normal(size=variable.shape), dtype=variable.dtype) for variable in variables]


def averaged(step: int, variables: list[Any]) -> list[Any]:
    """Mean over the ranks of `gradients_of`."""
    each = [gradients_of(rank, step, variables) for rank in range(hvd.size())]
    return [sum(gradients) / hvd.size() for gradients in zip(*each, strict=True)]


def flat(variables: list[Any]) -> np.ndarray:
    """All values in one float64 vector."""
    return np.concatenate([np.asarray(variable.numpy(), dtype=np.float64).ravel() for variable in variables])


def in_graph(optimizer: Any, variables: list[Any], *, xla: bool = False) -> Callable:
    """The update as a `tf.function` of the gradients."""
    return tf.function(lambda gradients: optimizer.apply(gradients, variables), jit_compile=xla or None)


def train(optimizer: Any, gradients: Callable, variables: list[Any], *, graph: bool = False, steps: int = STEPS) -> Any:
    """Applies `gradients(step, variables)`; returns the final weights."""
    optimizer.build(variables)
    apply = in_graph(optimizer, variables) if graph else lambda g: optimizer.apply(g, variables)
    for step in range(steps):
        apply(gradients(step, variables))
    return flat(variables)


def mine(step: int, variables: list[Any]) -> list[Any]:
    """This rank's gradients."""
    return gradients_of(hvd.rank(), step, variables)


def proof(
    name: str,
    make: Callable[[], Any],
    *,
    graph: bool = False,
    edit: Callable[[list[Any]], list[Any]] = list,
    dtypes: tuple[str, ...] = ("float64", "float64", "float64"),
    **options: Any,
) -> None:
    """Trains three times and keeps the weights; `edit` changes every list of gradients."""
    before = dict(CALLS)
    RESULTS[f"{name}/received"] = train(
        DistributedOptimizer(make(), **options),
        lambda s, v: edit(mine(s, v)),
        new_variables(dtypes=dtypes),
        graph=graph,
    )
    RESULTS[f"calls/{name}"] = np.array([CALLS[key] - before[key] for key in CALLS])
    RESULTS[f"{name}/expected"] = train(make(), lambda s, v: edit(averaged(s, v)), new_variables(dtypes=dtypes))
    RESULTS[f"{name}/alone"] = train(make(), lambda s, v: edit(mine(s, v)), new_variables(dtypes=dtypes))


def message(name: str, function: Callable[[], Any]) -> None:
    """Keeps the text of the error that `function` raises."""
    try:
        function()
        RESULTS[f"message/{name}"] = np.array("no error")
    except (ValueError, TypeError, RuntimeError) as error:
        RESULTS[f"message/{name}"] = np.array(f"{type(error).__name__}: {error}")


def every_optimizer() -> None:
    """All of keras.optimizers and ours, with their default settings."""
    for name, cls in vars(keras.optimizers).items():
        wrappers = ("Optimizer", "LossScaleOptimizer", "MultiOptimizer")
        if inspect.isclass(cls) and issubclass(cls, keras.optimizers.Optimizer) and name not in wrappers:
            proof(f"keras_{name}", lambda cls=cls: cls(learning_rate=0.1))
    for name in ("SGD", "Adam", "AdamW", "RMSprop"):
        proof(f"ours_{name}", lambda name=name: getattr(ours, name)(learning_rate=0.1))
    sgd = keras.optimizers.SGD
    proof("loss_scale", lambda: keras.optimizers.LossScaleOptimizer(sgd(0.1), initial_scale=2.0))
    choice = keras.optimizers.OptimizerMap
    proof("multi", lambda: keras.optimizers.MultiOptimizer(choice(sgd(0.1), {"w1": keras.optimizers.Adam(0.1)})))


def features() -> None:
    """What an optimizer or the wrapper can be asked for, each on momentum SGD."""

    def make(**settings: Any) -> Callable[[], Any]:
        return lambda: ours.SGD(**({"learning_rate": 0.1, "momentum": 0.9} | settings))

    proof("graph", make(), graph=True)
    proof("none", make(), edit=lambda g: [g[0], None, g[2]], graph=True)
    proof("two_groups", make(), groups=2)
    proof("many_groups", make(), groups=100)
    proof("per_tensor", make(), groups=None)
    proof("per_tensor_graph", make(), groups=None, graph=True)
    proof("two_dtypes", make(), dtypes=("float32", "float64", "float32"), graph=True)
    proof("fp16", make(), compression="fp16")
    proof("clipvalue", make(clipvalue=0.3))
    proof("clipnorm", make(clipnorm=0.5))
    proof("global_clipnorm", make(global_clipnorm=0.7), graph=True)
    proof("weight_decay", make(weight_decay=0.1))
    proof("ema", make(use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2))
    proof("accumulation", make(gradient_accumulation_steps=2))
    proof("accumulation_graph", make(gradient_accumulation_steps=2, clipnorm=0.5), graph=True)
    proof("schedule", make(learning_rate=keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)), graph=True)
    proof("callable_rate", make(learning_rate=lambda: tf.constant(0.1, tf.float64)))
    proof("own_process_set", make(), process_set=FIRST)
    proof("sum", make(), op=hvd.Sum)

    before = CALLS["grouped"]
    passes = train(DistributedOptimizer(make()(), backward_passes_per_step=2), mine, new_variables())
    RESULTS["calls/passes"] = np.array([CALLS["grouped"] - before, 0])
    RESULTS["passes/received"], RESULTS["passes/expected"] = passes, RESULTS["accumulation/expected"]
    RESULTS["passes/alone"] = RESULTS["accumulation/alone"]

    variables = new_variables()
    RESULTS["local/received"] = train(DistributedOptimizer(make()(), local_variables=[variables[2]]), mine, variables)
    halved = new_variables()
    RESULTS["local/expected"] = train(make()(), lambda s, v: [*averaged(s, v)[:2], mine(s, v)[2] / hvd.size()], halved)

    half_way = make()()
    variables = new_variables()
    train(half_way, averaged, variables, steps=2)
    wrapped = DistributedOptimizer(half_way)
    for step in (2, 3):
        wrapped.apply(mine(step, variables), variables)
    RESULTS["wrapped_late/received"], RESULTS["wrapped_late/expected"] = flat(variables), RESULTS["graph/expected"]
    RESULTS["wrapped_late/alone"] = RESULTS["graph/alone"]


def sparse_gradients() -> None:
    """An embedding of 6 rows; rows repeat within a rank and between ranks."""
    rows = {0: [0, 2, 2], 1: [2, 5, 0]}

    def slices(rank: int) -> tf.IndexedSlices:
        values = tf.constant(np.random.default_rng(rank).normal(size=(3, 2)))
        return tf.IndexedSlices(values, tf.constant(rows[rank]), tf.constant([6, 2]))

    for name, make in {"sgd": lambda: keras.optimizers.SGD(0.1), "adam": lambda: ours.Adam(0.1)}.items():
        for sparse_as_dense in (True, False):
            key = f"sparse_{name}_{'dense' if sparse_as_dense else 'rows'}"
            for kind, gradient in (
                ("expected", sum(tf.convert_to_tensor(slices(rank)) for rank in range(2)) / 2),
                ("alone", tf.convert_to_tensor(slices(hvd.rank()))),
                ("received", slices(hvd.rank())),
            ):
                variables = [keras.Variable(np.ones((6, 2)), dtype="float64"), *new_variables()[:2]]
                optimizer, before = make(), dict(CALLS)
                if kind == "received":
                    optimizer = DistributedOptimizer(optimizer, sparse_as_dense=sparse_as_dense)
                pick = averaged if kind == "expected" else mine
                train(optimizer, lambda s, v, g=gradient, pick=pick: [g, *pick(s, v[1:])], variables, graph=True)
                RESULTS[f"{key}/{kind}"] = flat(variables)
                if kind == "received":
                    RESULTS[f"calls/{key}"] = np.array([CALLS[call] - before[call] for call in CALLS])


def overflow() -> None:
    """Loss scaling in a graph: rank 1 overflows in the second of three steps; all must skip it, and none may wait."""
    optimizer = DistributedOptimizer(keras.optimizers.LossScaleOptimizer(ours.Adam(0.1), initial_scale=4.0))
    variables = new_variables()
    optimizer.build(variables)
    apply = in_graph(optimizer, variables)
    for step in range(3):
        gradients = mine(step, variables)
        if step == 1 and hvd.rank() == 1:
            gradients[1] = gradients[1] * float("inf")
        apply(gradients)
    RESULTS["overflow/received"] = flat(variables)
    RESULTS["overflow_state"] = np.array([optimizer.iterations, optimizer.dynamic_scale])
    plain = keras.optimizers.LossScaleOptimizer(ours.Adam(0.1), initial_scale=4.0)
    variables = new_variables()
    plain.build(variables)
    for step in range(3):
        plain.apply([g * float("inf") if step == 1 else g for g in averaged(step, variables)], variables)
    RESULTS["overflow/expected"] = flat(variables)

    wrong = keras.optimizers.LossScaleOptimizer(DistributedOptimizer(ours.Adam(0.1)))
    wrong.build(variables)
    message("loss_scale_outside", lambda: in_graph(wrong, variables)(mine(0, variables)))


def retracing() -> None:
    """Ranks trace different graphs: other batch sizes, other name scopes, one trace more on rank 0."""
    data, start = np.random.default_rng(3).normal(size=(8, 4)), new_variables()[0].numpy()
    own = data[:3] if hvd.rank() == 0 else data[3:]

    def steps(optimizer: Any, batches: list[np.ndarray], scope: str, share: float) -> np.ndarray:
        variable = keras.Variable(start, dtype="float64")
        optimizer.build([variable])

        @tf.function
        def step(x: Any) -> None:
            with tf.name_scope(scope), tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.square(x @ variable)) * share
            with tf.name_scope(scope):
                optimizer.apply(tape.gradient(loss, [variable.value]), [variable])

        for batch in batches:
            step(tf.constant(batch))
        return flat([variable])

    if hvd.rank() == 0:
        tf.function(lambda x: x + 1)(tf.constant(1.0))
    optimizer = DistributedOptimizer(ours.SGD(0.01))
    RESULTS["retracing/received"] = steps(optimizer, [own, own[:2], own], f"scope{hvd.rank()}", 2.0)
    both = [data, np.concatenate([data[:2], data[3:5]]), data]
    RESULTS["retracing/expected"] = steps(ours.SGD(0.01), both, "scope", 1.0)


def model_of(policy: str = "float64") -> Any:
    """A model with a layer used twice, one frozen and one that the loss does not reach."""
    keras.utils.set_random_seed(5)
    inputs = keras.Input((4,))
    shared = keras.layers.Dense(4, activation="tanh", dtype=policy)
    frozen = keras.layers.Dense(4, dtype=policy)
    frozen.trainable = False
    outputs = keras.layers.Dense(3, dtype=policy)(shared(frozen(shared(inputs))))
    unused = keras.layers.Dense(2, dtype=policy)(inputs)
    return keras.Model(inputs, {"used": outputs, "unused": unused})


def models() -> None:
    """`compile` and `fit`: ranks with batches of 8 against one process with 16; a layer added later; saved files."""
    draw = np.random.default_rng(4)
    x, y = draw.normal(size=(64, 4)), draw.normal(size=(64, 3))
    order = np.arange(64).reshape(4, 2, 8)  # step, rank, sample
    ranks = {"received": [hvd.rank()], "expected": [0, 1], "alone": [hvd.rank()]}

    def fit(kind: str, model: Any, optimizer: Any, *, graph: bool = False) -> None:
        if kind == "received":
            optimizer = DistributedOptimizer(optimizer)
        how = {"steps_per_execution": 2} if graph else {"run_eagerly": True}  # eager where tracing would only take time
        model.compile(optimizer=optimizer, loss={"used": "mse"}, jit_compile=False, **how)
        if kind == "received":
            check_compiled_model(model)
        rows = order[:, ranks[kind]].reshape(-1)
        batch_size = 8 * len(ranks[kind])
        model.fit(x[rows], {"used": y[rows]}, batch_size=batch_size, epochs=2, shuffle=False, verbose=0)

    for kind in ranks:
        before = dict(CALLS)
        model = model_of()
        fit(kind, model, ours.SGD(0.1, momentum=0.9), graph=kind == "received")
        RESULTS[f"fit/{kind}"] = flat(model.variables)
        if kind == "received":
            RESULTS["calls/fit"] = np.array([CALLS[key] - before[key] for key in CALLS])
        added = keras.layers.Dense(3, dtype="float64", kernel_initializer="ones")(model.output["used"])
        model = keras.Model(model.input, {"used": added, "unused": model.output["unused"]})
        fit(kind, model, keras.optimizers.Adam(0.01))
        RESULTS[f"late_layer/{kind}"] = flat(model.variables)
        if kind == "received" and hvd.rank() == 0:
            model.save(FOLDER / "keras_adam.keras")

    for name, optimizer in {
        "our_adam": ours.Adam(0.01),
        "loss_scale": keras.optimizers.LossScaleOptimizer(ours.SGD(0.01, momentum=0.9)),
    }.items():
        model = model_of()
        fit("received", model, optimizer)
        if hvd.rank() == 0:
            model.save(FOLDER / f"{name}.keras")


def refusals() -> None:
    """Everything that must end in a message."""
    sgd = keras.optimizers.SGD
    accumulating = sgd(0.1, gradient_accumulation_steps=2)
    message("not_keras", lambda: DistributedOptimizer("sgd"))
    message("twice", lambda: DistributedOptimizer(DistributedOptimizer(sgd())))
    message("op", lambda: DistributedOptimizer(sgd(), op=hvd.Max))
    message("compression", lambda: DistributedOptimizer(sgd(), compression="zip"))
    message("groups", lambda: DistributedOptimizer(sgd(), groups=0))
    message("passes", lambda: DistributedOptimizer(accumulating, backward_passes_per_step=2))
    message("local_passes", lambda: DistributedOptimizer(accumulating, local_variables=new_variables()))

    def check(optimizer: Any, **settings: Any) -> None:
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(optimizer=optimizer, loss="mse", **settings)
        check_compiled_model(model)

    message("model_alone", lambda: check(sgd(), jit_compile=False))
    message("model_xla", lambda: check(DistributedOptimizer(sgd()), jit_compile=True))
    outside = keras.optimizers.LossScaleOptimizer(DistributedOptimizer(sgd()))
    message("model_loss_scale", lambda: check(outside, jit_compile=False))
    message("model_right", lambda: check(DistributedOptimizer(sgd()), jit_compile=False))
    optimizer, variables = DistributedOptimizer(sgd()), new_variables()
    optimizer.build(variables)
    message("xla", lambda: in_graph(optimizer, variables, xla=True)(mine(0, variables)))


def one_process() -> None:
    """Started without a launcher: no Horovod call at all, and XLA is allowed."""
    proof("one_process", lambda: ours.SGD(0.1, momentum=0.9), graph=True)
    optimizer, variables = DistributedOptimizer(ours.SGD(0.1, momentum=0.9)), new_variables()
    optimizer.build(variables)
    apply = in_graph(optimizer, variables, xla=True)
    for step in range(STEPS):
        apply(mine(step, variables))
    RESULTS["one_process_xla/received"] = flat(variables)
    RESULTS["one_process_xla/expected"] = RESULTS["one_process/expected"]


def main() -> None:
    """All proofs, in the same order on all ranks."""
    keras.config.set_floatx("float64")
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    message("not_initialised", lambda: DistributedOptimizer(keras.optimizers.SGD()))
    if len(sys.argv) > 2:
        hvd.init()
        count_calls()
        one_process()
    else:
        hvd.init(process_sets=[FIRST])
        assert hvd.size() == 2, hvd.size()
        count_calls()
        every_optimizer()
        features()
        sparse_gradients()
        overflow()
        retracing()
        models()
        refusals()
    np.savez(FOLDER / f"rank{hvd.rank()}.npz", **RESULTS)


if __name__ == "__main__":
    main()
