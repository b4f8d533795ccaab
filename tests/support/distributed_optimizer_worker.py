"""One rank of the proofs of `keras_impl.distributed_optimizer`; started by horovodrun (or alone, for one process).

`python distributed_optimizer_worker.py FOLDER PART` writes FOLDER/rank<rank>.npz. PART is `two`, for two ranks;
`fewer`, the same without what no controller can change; `three`, dense gradients on three ranks; `sets`, for the
process sets of four ranks; or `alone`, without a launcher. Names of the arrays:
    <proof>/received    weights after training with the distributed optimizer on this rank's gradients
    <proof>/expected    weights after training with the plain optimizer on the average of the gradients of all ranks
                        (of a process set: of its ranks)
    <proof>/alone       weights after training with the plain optimizer on this rank's gradients: what a distributed
                        optimizer that averages nothing would give
    <proof>/wrapped     of sparse gradients: weights after training with the distributed optimizer in a process set of
                        one, on the gradients of all ranks
    calls/<proof>       Horovod calls while the distributed optimizer trained: grouped, single
    message/<name>      text of an error that must come
"""

import functools
import inspect
import sys
from pathlib import Path
from types import SimpleNamespace

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf
from horovod.tensorflow.keras.elastic import KerasState

from keras_impl import update_rules as ours
from keras_impl.distributed_optimizer import DistributedOptimizer, check_compiled_model

FOLDER, PART = Path(sys.argv[1]), sys.argv[2]
FIRST = hvd.ProcessSet([0])
EVEN, ODD = hvd.ProcessSet([0, 2]), hvd.ProcessSet([1, 3])
STEPS = 4
IN_A_GRAPH = ("keras_SGD", "keras_Adam")  # of the proofs of sparse gradients
RESULTS = {}
CALLS = {"grouped": 0, "single": 0}


def count_calls():
    """Counts every call of Horovod's two allreduces from here on."""

    def counted(call, key):
        def wrapper(*args, **kwargs):
            CALLS[key] += 1
            return call(*args, **kwargs)

        return wrapper

    hvd.grouped_allreduce = counted(hvd.grouped_allreduce, "grouped")
    hvd.allreduce = counted(hvd.allreduce, "single")


def new_variables(*, dtypes=("float64", "float64", "float64")):
    """A matrix, a vector and another matrix with the same values on all ranks."""
    draw = np.random.default_rng(1)
    shapes = [(4, 3), (3,), (5, 4)]
    return [
        keras.Variable(draw.normal(size=shape), dtype=dtype, name=f"w{index}")
        for index, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True))
    ]


def gradients_of(rank, step, variables):
    """Every rank's and every step's own gradients; any rank can compute all of them."""
    draw = np.random.default_rng([rank, step])
    return [tf.constant(draw.normal(size=variable.shape), dtype=variable.dtype) for variable in variables]


def averaged(step, variables, ranks=None):
    """Mean over some ranks, or all, of `gradients_of`."""
    each = [gradients_of(rank, step, variables) for rank in ranks or range(hvd.size())]
    return [sum(gradients) / len(each) for gradients in zip(*each, strict=True)]


def partners(process_set):
    """The ranks that this rank is to train with; itself alone outside the process set."""
    return list(process_set.ranks) if process_set.included() else [hvd.rank()]


def flat(variables):
    """All values in one float64 vector."""
    return np.concatenate([np.asarray(variable.numpy(), dtype=np.float64).ravel() for variable in variables])


def in_graph(optimizer, variables, *, xla=False):
    """The update as a `tf.function` of the gradients."""
    return tf.function(lambda gradients: optimizer.apply(gradients, variables), jit_compile=xla or None)


def train(optimizer, gradients, variables, *, graph=False, steps=STEPS):
    """Applies `gradients(step, variables)`; returns the final weights."""
    optimizer.build(variables)
    apply = in_graph(optimizer, variables) if graph else lambda g: optimizer.apply(g, variables)
    for step in range(steps):
        apply(gradients(step, variables))
    return flat(variables)


def mine(step, variables):
    """This rank's gradients."""
    return gradients_of(hvd.rank(), step, variables)


def proof(name, make, *, graph=False, edit=list, dtypes=("float64", "float64", "float64"), **options):
    """Trains three times and keeps the weights; `edit` changes every list of gradients."""
    before, ranks = dict(CALLS), partners(options.get("process_set", hvd.global_process_set))
    RESULTS[f"{name}/received"] = train(
        DistributedOptimizer(make(), **options),
        lambda s, v: edit(mine(s, v)),
        new_variables(dtypes=dtypes),
        graph=graph,
    )
    RESULTS[f"calls/{name}"] = np.array([CALLS[key] - before[key] for key in CALLS])
    RESULTS[f"{name}/expected"] = train(make(), lambda s, v: edit(averaged(s, v, ranks)), new_variables(dtypes=dtypes))
    RESULTS[f"{name}/alone"] = train(make(), lambda s, v: edit(mine(s, v)), new_variables(dtypes=dtypes))


def message(name, function):
    """Keeps the text of the error that `function` raises."""
    try:
        function()
        RESULTS[f"message/{name}"] = np.array("no error")
    except (ValueError, TypeError, RuntimeError) as error:
        RESULTS[f"message/{name}"] = np.array(f"{type(error).__name__}: {error}")


def _every_optimizer():
    """All of keras.optimizers and ours, with their default settings, by the names of their proofs."""
    sgd, adam, scaled = keras.optimizers.SGD, keras.optimizers.Adam, keras.optimizers.LossScaleOptimizer
    wrappers = ("Optimizer", "LossScaleOptimizer", "MultiOptimizer")
    makes = {
        f"keras_{name}": functools.partial(cls, learning_rate=0.1)
        for name, cls in vars(keras.optimizers).items()
        if inspect.isclass(cls) and issubclass(cls, keras.optimizers.Optimizer) and name not in wrappers
    }
    for name in ("SGD", "Adam", "AdamW", "RMSprop"):
        makes[f"ours_{name}"] = functools.partial(getattr(ours, name), learning_rate=0.1)
    makes["loss_scale"] = lambda: scaled(adam(0.1), initial_scale=2.0)
    choice = keras.optimizers.OptimizerMap
    makes["multi"] = lambda: keras.optimizers.MultiOptimizer(choice(adam(0.1), {"w1": sgd(0.1)}))
    return makes


EVERY_OPTIMIZER = _every_optimizer()
OF_A_GRAPH = {name: EVERY_OPTIMIZER[name] for name in IN_A_GRAPH}


def every_optimizer():
    """Dense gradients under all optimizers."""
    for name, make in EVERY_OPTIMIZER.items():
        proof(name, make)
    sgd, scaled = keras.optimizers.SGD, keras.optimizers.LossScaleOptimizer
    inner = {"momentum": 0.9, "gradient_accumulation_steps": 2, "clipnorm": 0.5}
    proof("loss_scale_accumulation", lambda: scaled(sgd(0.1, **inner), initial_scale=2.0), graph=True)


def features():
    """What an optimizer or the wrapper can be asked for, each on momentum SGD."""

    def make(**settings):
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


class Adding(keras.optimizers.Optimizer):
    """An optimizer of a user's own, which Keras does not know: adds gradients, so that weights show them."""

    def __init__(self, learning_rate=1.0, **settings):
        super().__init__(learning_rate=learning_rate, **settings)

    def update_step(self, gradient, variable, learning_rate):
        """Adds the gradient."""
        del learning_rate
        self.assign_add(variable, gradient)


def four_passes(name, factor):
    """Ten passes, four to an update, of dense, missing, sparse and local gradients; keeps the weights after each."""
    dense, none, table, local = (keras.Variable(value, dtype="float64") for value in ([0], [7], [1, 2], [1, 2]))
    variables = [dense, none, table, local]
    optimizer = DistributedOptimizer(Adding(), backward_passes_per_step=4, local_variables=[local])
    optimizer.build(variables)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            rows = tf.gather(table.value, [0]) + tf.gather(local.value, [0])
            loss = factor * (dense.value - (hvd.rank() + 1) * rows)
        optimizer.apply(tape.gradient(loss, [variable.value for variable in variables]), variables)

    before, weights = dict(CALLS), []
    for _ in range(10):
        step()
        weights.append(flat(variables))
    RESULTS[name] = np.array(weights)
    RESULTS[f"calls/{name}"] = np.array([CALLS[key] - before[key] for key in CALLS])
    RESULTS[f"{name}_iterations"] = np.array(int(optimizer.iterations))


def overflow_in_a_pass():
    """Without a loss scale an overflow ruins the weights; nothing of it may be left for the next update."""
    variables = new_variables()
    begin = [variable.numpy() for variable in variables]
    optimizer = DistributedOptimizer(ours.SGD(0.1), backward_passes_per_step=2)
    optimizer.build(variables)
    for step in range(STEPS):
        gradients = mine(step, variables)
        if step == 0 and hvd.rank() == 1:
            gradients[1] = gradients[1] * float("inf")
        optimizer.apply(gradients, variables)
        if step == 1:
            RESULTS["overflow_in_a_pass/ruined"] = flat(variables)
            for variable, value in zip(variables, begin, strict=True):
                variable.assign(value)
    RESULTS["overflow_in_a_pass/received"] = flat(variables)
    for kind, pick in {"expected": averaged, "alone": mine}.items():
        plain = ours.SGD(0.1, gradient_accumulation_steps=2)
        RESULTS[f"overflow_in_a_pass/{kind}"] = train(plain, lambda s, v, p=pick: p(s + 2, v), new_variables(), steps=2)


def rebuilt_from_config():
    """A distributed optimizer's config equals that of the plain one, and its class rebuilds a distributed one."""
    plain = keras.optimizers.Adam(0.1, clipnorm=0.5)
    distributed = DistributedOptimizer(plain)
    config = distributed.get_config()
    copies = [distributed.from_config(config), type(distributed).from_config(config)]
    RESULTS["same_config"] = np.array([made.get_config() == plain.get_config() for made in [distributed, *copies]])
    for kind, optimizer, pick in (
        ("received", copies[1], mine),
        ("expected", plain, averaged),
        ("alone", keras.optimizers.Adam(0.1, clipnorm=0.5), mine),
    ):
        RESULTS[f"from_config/{kind}"] = train(optimizer, pick, new_variables())


def sparse_gradients(makes, *, process_set=hvd.global_process_set):
    """An embedding of 6 rows beside two dense variables; rows repeat within a rank and between ranks."""
    rows, ranks = [[0, 2, 2], [2, 5, 0], [0, 1, 2], [5, 5, 3]], partners(process_set)

    def slices(ranks):
        """The gradient of the mean loss of some ranks, with a row for each of their samples."""
        values = [np.random.default_rng(rank).normal(size=(3, 2)) / len(ranks) for rank in ranks]
        indices = [row for rank in ranks for row in rows[rank]]
        return tf.IndexedSlices(tf.constant(np.concatenate(values)), tf.constant(indices), tf.constant([6, 2]))

    def trained(optimizer, gradient, who, *, graph):
        variables = [keras.Variable(np.ones((6, 2)), dtype="float64", name="embeddings"), *new_variables()[:2]]
        return train(optimizer, lambda s, v: [gradient, *averaged(s, v[1:], who)], variables, graph=graph, steps=2)

    own = [hvd.rank()]
    for name, make in makes.items():
        graph = name in IN_A_GRAPH
        expected = trained(make(), tf.convert_to_tensor(slices(ranks)), ranks, graph=graph)
        alone = trained(make(), tf.convert_to_tensor(slices(own)), own, graph=graph)
        for sparse_as_dense in (True, False):
            key, before = f"sparse_{name}_{'dense' if sparse_as_dense else 'rows'}", dict(CALLS)
            optimizer = DistributedOptimizer(make(), sparse_as_dense=sparse_as_dense, process_set=process_set)
            RESULTS[f"{key}/received"] = trained(optimizer, slices(own), own, graph=graph)
            RESULTS[f"calls/{key}"] = np.array([CALLS[call] - before[call] for call in CALLS])
            one = DistributedOptimizer(make(), sparse_as_dense=sparse_as_dense, process_set=FIRST)
            RESULTS[f"{key}/wrapped"] = trained(one, slices(ranks), ranks, graph=graph)
            RESULTS[f"{key}/expected"], RESULTS[f"{key}/alone"] = expected, alone


def overflow(process_set=hvd.global_process_set):
    """Loss scaling in a graph: rank 1 overflows in the second of three steps; all must skip it, and none may wait.

    Of process sets only the one that rank 1 is in.
    """
    ranks = partners(process_set)
    optimizer = keras.optimizers.LossScaleOptimizer(ours.Adam(0.1), initial_scale=4.0)
    optimizer = DistributedOptimizer(optimizer, process_set=process_set)
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
        skipped = step == 1 and 1 in ranks
        plain.apply([g * float("inf") if skipped else g for g in averaged(step, variables, ranks)], variables)
    RESULTS["overflow/expected"] = flat(variables)


def loss_scale_outside():
    """The wrong way round, in a graph."""
    variables = new_variables()
    wrong = keras.optimizers.LossScaleOptimizer(DistributedOptimizer(ours.Adam(0.1)))
    wrong.build(variables)
    message("loss_scale_outside", lambda: in_graph(wrong, variables)(mine(0, variables)))
    accumulating = ours.SGD(0.1, gradient_accumulation_steps=2)
    wrong = keras.optimizers.LossScaleOptimizer(DistributedOptimizer(accumulating))
    wrong.build(variables)
    message("loss_scale_outside_accumulation", lambda: in_graph(wrong, variables)(mine(0, variables)))


def retracing():
    """Ranks trace different graphs: other batch sizes, other name scopes, one trace more on rank 0."""
    data, start = np.random.default_rng(3).normal(size=(8, 4)), new_variables()[0].numpy()
    own = data[:3] if hvd.rank() == 0 else data[3:]

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
    optimizer = DistributedOptimizer(ours.SGD(0.01))
    RESULTS["retracing/received"] = steps(optimizer, [own, own[:2], own], f"scope{hvd.rank()}", 2.0)
    both = [data, np.concatenate([data[:2], data[3:5]]), data]
    RESULTS["retracing/expected"] = steps(ours.SGD(0.01), both, "scope", 1.0)


def model_of(policy="float64"):
    """A model with a layer used twice, one frozen and one that the loss does not reach."""
    keras.utils.set_random_seed(5)
    inputs = keras.Input((4,))
    shared = keras.layers.Dense(4, activation="tanh", dtype=policy)
    frozen = keras.layers.Dense(4, dtype=policy)
    frozen.trainable = False
    outputs = keras.layers.Dense(3, dtype=policy)(shared(frozen(shared(inputs))))
    unused = keras.layers.Dense(2, dtype=policy)(inputs)
    return keras.Model(inputs, {"used": outputs, "unused": unused})


def models():
    """`compile` and `fit`: ranks with batches of 8 against one process with 16; a layer added later; saved files."""
    draw = np.random.default_rng(4)
    x, y = draw.normal(size=(64, 4)), draw.normal(size=(64, 3))
    order = np.arange(64).reshape(4, 2, 8)  # step, rank, sample
    ranks = {"received": [hvd.rank()], "expected": [0, 1], "alone": [hvd.rank()]}

    def fit(kind, model, optimizer, *, graph=False, callbacks=(), **options):
        if kind == "received":
            optimizer = DistributedOptimizer(optimizer, **options)
        how = {"steps_per_execution": 2} if graph else {"run_eagerly": True}  # eager where tracing would only take time
        model.compile(optimizer=optimizer, loss={"used": "mse"}, jit_compile=False, **how)
        if kind == "received":
            check_compiled_model(model)
        rows = order[:, ranks[kind]].reshape(-1)
        batch_size = 8 * len(ranks[kind])
        targets = {"used": y[rows]}
        model.fit(x[rows], targets, batch_size=batch_size, epochs=2, shuffle=False, verbose=0, callbacks=[*callbacks])

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

        if PART == "fewer":
            continue
        model = model_of()
        halved = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5**epoch)
        fit(kind, model, ours.SGD(0.1, momentum=0.9), callbacks=[halved])
        RESULTS[f"fit_callback/{kind}"] = flat(model.variables)
        model = model_of()
        if kind == "received":
            fit(kind, model, ours.SGD(0.1, momentum=0.9), graph=True, backward_passes_per_step=2)
        else:
            fit(kind, model, ours.SGD(0.1, momentum=0.9, gradient_accumulation_steps=2))
        RESULTS[f"fit_passes/{kind}"] = flat(model.variables)

    for name, optimizer in {
        "our_adam": ours.Adam(0.01),
        "loss_scale": keras.optimizers.LossScaleOptimizer(ours.SGD(0.01, momentum=0.9)),
    }.items():
        model = model_of()
        fit("received", model, optimizer)
        if hvd.rank() == 0:
            model.save(FOLDER / f"{name}.keras")


def embeddings():
    """An `Embedding` under AdamW, trained by `train_on_batch`: 32 samples a step, which meet rows many times."""
    draw = np.random.default_rng(6)
    x = draw.integers(48, size=(3, 32, 6))  # step, sample, position
    y = draw.normal(size=(3, 32, 6, 2))
    mine = slice(hvd.rank(), None, hvd.size())

    def train_embedding(samples, optimizer, *, eager=True):
        keras.utils.set_random_seed(7)
        table = keras.layers.Embedding(48, 3, dtype="float64")
        model = keras.Sequential([keras.Input((6,), dtype="int32"), table, keras.layers.Dense(2, dtype="float64")])
        model.compile(optimizer=optimizer, loss="mse", jit_compile=False, run_eagerly=eager)
        for step in range(3):
            model.train_on_batch(x[step, samples], y[step, samples])
        return flat(model.variables)

    def rule(**settings):
        return keras.optimizers.AdamW(0.1, **settings)

    def dense(optimizer):
        apply = optimizer.apply
        optimizer.apply = lambda grads, variables: apply([tf.convert_to_tensor(g) for g in grads], variables)
        return optimizer

    cases = {
        "dense": ({"sparse_as_dense": True}, {}),
        "rows": ({"sparse_as_dense": False}, {}),
        "passes": ({"sparse_as_dense": True, "backward_passes_per_step": 2}, {"gradient_accumulation_steps": 2}),
    }
    for name, (options, settings) in cases.items():
        key, everyone = f"embedding_{name}", slice(None)
        optimizer = DistributedOptimizer(rule(), **options)
        RESULTS[f"{key}/received"] = train_embedding(mine, optimizer, eager=name != "rows")
        RESULTS[f"{key}/wrapped"] = train_embedding(
            everyone, DistributedOptimizer(rule(), **options, process_set=FIRST)
        )
        RESULTS[f"{key}/expected"] = train_embedding(everyone, dense(rule(**settings)))
        RESULTS[f"{key}/alone"] = train_embedding(mine, dense(rule(**settings)))
    RESULTS["embedding_plain"] = train_embedding(everyone, rule())
    RESULTS["embedding_pending"] = np.array(int(optimizer._iterations) % 2)


def local_layers():
    """Ranks begin apart; all but the local layers are broadcast from the last rank, then there is one step of SGD."""
    draw = np.random.default_rng(8)
    x, y = draw.normal(size=(2, 8, 3)), draw.normal(size=(2, 8, 2))  # rank, sample, feature

    def build():
        model = keras.Sequential([keras.Input((3,)), *(keras.layers.Dense(n, dtype="float64") for n in (4, 2))])
        for layer in model.layers:
            weights = [np.random.default_rng([hvd.rank(), len(v.shape)]).normal(size=v.shape) for v in layer.variables]
            layer.set_weights(weights)
        return model

    for number in range(3):
        model = build()
        local = [variable for layer in model.layers[:number] for variable in layer.variables]
        shared = model.variables[len(local) :]
        before = [variable.numpy() for variable in model.variables]
        hvd.broadcast_variables([variable.value for variable in shared], root_rank=hvd.size() - 1)
        roots = hvd.broadcast_object(before, root_rank=hvd.size() - 1)
        wanted = [*before[: len(local)], *roots[len(local) :]]
        broadcast = [np.array_equal(v.numpy(), w) for v, w in zip(model.variables, wanted, strict=True)]
        RESULTS[f"local_layers_{number}/broadcast"] = np.array(broadcast)

        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x[hvd.rank()]) - y[hvd.rank()]))
        own = [np.asarray(g) for g in tape.gradient(loss, [v.value for v in model.trainable_variables])]
        each = hvd.allgather_object(own)
        means = [sum(gradients) / hvd.size() for gradients in zip(*each, strict=True)]
        steps = [g / hvd.size() for g in own[: len(local)]] + means[len(local) :]
        RESULTS[f"local_layers_{number}/expected"] = np.concatenate(
            [(weights - step).ravel() for weights, step in zip(wanted, steps, strict=True)]
        )
        optimizer = DistributedOptimizer(keras.optimizers.SGD(1.0), local_variables=local)
        model.compile(optimizer=optimizer, loss="mse", jit_compile=False, run_eagerly=True)
        model.train_on_batch(x[hvd.rank()], y[hvd.rank()])
        RESULTS[f"local_layers_{number}/received"] = flat(model.variables)


class Own(keras.optimizers.RMSprop):
    """An optimizer class of a user's own, unknown to Keras until it is named at loading."""


def resumed():
    """Rank 0 alone loads what it saved and the others begin anew; after the broadcast they train on as if unbroken."""
    draw = np.random.default_rng(9)
    x, y = draw.normal(size=(4, 2, 8, 4)), draw.normal(size=(4, 2, 8, 3))  # step, rank, sample, feature
    file = FOLDER / "own.model.keras"

    def build(seed):
        keras.utils.set_random_seed(seed)
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, dtype="float64")])

    def steps(model, numbers, ranks):
        for step in numbers:
            model.train_on_batch(np.concatenate(x[step, ranks]), np.concatenate(y[step, ranks]))

    def compiled(model, optimizer):
        model.compile(optimizer=optimizer, loss="mse", jit_compile=False, run_eagerly=True)
        return model

    for kind, ranks in {"expected": [0, 1], "alone": [hvd.rank()]}.items():
        model = compiled(build(1), Own(0.1, momentum=0.9))
        steps(model, range(4), ranks)
        RESULTS[f"resumed/{kind}"] = np.concatenate([flat(model.variables), flat(model.optimizer.variables)])

    model = compiled(build(1), DistributedOptimizer(Own(0.1, momentum=0.9)))
    steps(model, range(2), [hvd.rank()])
    saved = flat(model.optimizer.variables)
    if hvd.rank() == 0:
        model.save(file)
        model = keras.saving.load_model(file, custom_objects={"Own": Own})
        file.unlink()
        facts = [type(model.optimizer) is Own, np.array_equal(flat(model.optimizer.variables), saved)]
        RESULTS["resumed_facts"] = np.array(facts)
        compiled(model, DistributedOptimizer(model.optimizer))
    else:
        model = compiled(build(2), DistributedOptimizer(Own(0.7, momentum=0.9)))  # a rate of its own, to be replaced
        model.optimizer.build(model.trainable_variables)
    variables = [*model.variables, *model.optimizer.variables]
    # `hvd.broadcast_variables` would wait for ever: it goes by the names, and those of a loaded model are others.
    values = hvd.broadcast_object([variable.numpy() for variable in variables], root_rank=0)
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
    steps(model, range(2, 4), [hvd.rank()])
    RESULTS["resumed/received"] = np.concatenate([flat(model.variables), flat(model.optimizer.variables)])


def elastic_state():
    """Horovod's `KerasState` keeps the weights and the optimizer's state, given TensorFlow's variables of both."""
    variables = [keras.Variable(np.full(3, hvd.rank() + 1.0), dtype="float64")]
    optimizer = DistributedOptimizer(ours.SGD(0.1, momentum=0.9))
    optimizer.build(variables)

    def now():
        return [*flat(variables), *flat(optimizer.variables), state.batch, state.epoch]

    def move(batch):
        optimizer.apply(mine(batch, variables), variables)
        state.batch, state.epoch = batch, batch + 1

    state = KerasState(
        SimpleNamespace(variables=[variable.value for variable in variables]),
        SimpleNamespace(variables=lambda: [variable.value for variable in optimizer.variables]),
        batch=20 + hvd.rank(),
        epoch=10 + hvd.rank(),
    )
    state.sync()
    history = {"synchronized": now()}
    move(21)
    history["moved"] = now()
    state.restore()
    history["restored"] = now()
    move(22)
    state.commit()
    history["committed"] = now()
    move(23)
    state.restore()
    history["restored_again"] = now()
    RESULTS.update({f"elastic/{name}": np.array(values) for name, values in history.items()})


def process_sets():
    """Four ranks: [0, 2] and [1, 3] each average among themselves; then [0, 2] do, and 1 and 3 train alone."""
    own = EVEN if EVEN.included() else ODD

    def make(**settings):
        return lambda: ours.SGD(**({"learning_rate": 0.1, "momentum": 0.9} | settings))

    proof("sets_eager", make(), process_set=own)
    proof("sets_graph", make(global_clipnorm=0.7), graph=True, process_set=own)
    proof("sets_per_tensor", make(), groups=None, process_set=own)
    proof("sets_passes", make(gradient_accumulation_steps=2), graph=True, process_set=own)
    proof("sets_fp16", make(), compression="fp16", process_set=own)
    proof("even_eager", make(), process_set=EVEN)
    proof("even_graph", make(), graph=True, process_set=EVEN)
    everyone = train(make()(), averaged, new_variables())
    RESULTS["everyone"] = everyone
    sparse_gradients(OF_A_GRAPH, process_set=hvd.global_process_set)
    sparse_gradients({"sets": functools.partial(ours.Adam, 0.1)}, process_set=own)
    embeddings()

    variables = new_variables()
    optimizer = DistributedOptimizer(make()(), local_variables=[variables[2]], process_set=own)
    RESULTS["sets_local/received"] = train(optimizer, mine, variables)

    def halved(step, variables):
        return [*averaged(step, variables, own.ranks)[:2], mine(step, variables)[2] / 2]

    RESULTS["sets_local/expected"] = train(make()(), halved, new_variables())
    overflow(own)
    hvd.broadcast_object(None, root_rank=0)  # a rank that ends shuts Horovod down for the other set, too


def refusals():
    """Everything that must end in a message."""
    sgd = keras.optimizers.SGD
    accumulating = sgd(0.1, gradient_accumulation_steps=2)
    message("not_keras", lambda: DistributedOptimizer("sgd"))
    message("twice", lambda: DistributedOptimizer(DistributedOptimizer(sgd())))
    message("op", lambda: DistributedOptimizer(sgd(), op=hvd.Max))
    message("compression", lambda: DistributedOptimizer(sgd(), compression="zip"))
    message("groups", lambda: DistributedOptimizer(sgd(), groups=0))
    message("passes", lambda: DistributedOptimizer(accumulating, backward_passes_per_step=2))
    scaled = keras.optimizers.LossScaleOptimizer(sgd(0.1))
    message("passes_loss_scale", lambda: DistributedOptimizer(scaled, backward_passes_per_step=2))
    message("process_set", lambda: DistributedOptimizer(sgd(), process_set=EVEN))

    def check(optimizer, **settings):
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


def one_process():
    """Started without a launcher: no Horovod call at all, and XLA is allowed."""
    proof("one_process", lambda: ours.SGD(0.1, momentum=0.9), graph=True)
    optimizer, variables = DistributedOptimizer(ours.SGD(0.1, momentum=0.9)), new_variables()
    optimizer.build(variables)
    apply = in_graph(optimizer, variables, xla=True)
    for step in range(STEPS):
        apply(mine(step, variables))
    RESULTS["one_process_xla/received"] = flat(variables)
    RESULTS["one_process_xla/expected"] = RESULTS["one_process/expected"]


def main():
    """All proofs, in the same order on all ranks."""
    keras.config.set_floatx("float64")
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    message("not_initialized", lambda: DistributedOptimizer(keras.optimizers.SGD()))
    if PART == "alone":
        hvd.init()
        count_calls()
        one_process()
    elif PART == "sets":
        hvd.init(process_sets=[EVEN, ODD, FIRST])
        assert hvd.size() == 4, hvd.size()
        count_calls()
        process_sets()
    elif PART == "three":
        hvd.init(process_sets=[FIRST])
        assert hvd.size() == 3, hvd.size()
        every_optimizer()
    else:
        hvd.init(process_sets=[FIRST])
        assert hvd.size() == 2, hvd.size()
        count_calls()
        every_optimizer()
        features()
        four_passes("four_passes_mean", 1.0)
        four_passes("four_passes_sum", 4.0)
        sparse_gradients(EVERY_OPTIMIZER if PART == "two" else OF_A_GRAPH)
        overflow()
        loss_scale_outside()
        retracing()
        models()
        refusals()
        if PART == "two":
            overflow_in_a_pass()
            rebuilt_from_config()
            embeddings()
            local_layers()
            resumed()
            elastic_state()
    np.savez(FOLDER / f"rank{hvd.rank()}.npz", **RESULTS)


if __name__ == "__main__":
    main()
