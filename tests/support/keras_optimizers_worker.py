"""Runs the cases of `rule_cases` with `keras_impl.update_rules` on a server of ranks (`frameworks.results`)."""

import tempfile
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from rule_cases import DTYPES, HALF, OPTIMIZER_CASES, STEPS, problem

from keras_impl import update_rules
from keras_impl.update_rules import export_state, import_state

CLASSES = {
    "sgd": update_rules.SGD,
    "adam": update_rules.Adam,
    "adamw": update_rules.AdamW,
    "rmsprop": update_rules.RMSprop,
}
NAMES = ["0", "1"]


def make(case, **more):
    """The case's optimizer; the learning rate is a wrong one, for the loop sets it."""
    return CLASSES[case.rule](**({"learning_rate": 123.0} | case.keras_settings() | more))


def variables_of(data, dtype):
    """Keras variables holding the first values."""
    return [keras.Variable(start, dtype=dtype, name=f"w{index}") for index, start in enumerate(data.start)]


def flat(variables):
    """All values in one vector."""
    return np.concatenate([variable.numpy().ravel() for variable in variables])


def run(optimizer, variables, data, rates, steps, *, graph=True):
    """Steps on the problem, in one `tf.function` or eagerly; rates None leaves the optimizer's own schedule.

    Returns:
        Weights after each step (steps, entries).
    """
    optimizer.build(variables)
    apply = tf.function(lambda gradients: optimizer.apply(gradients, variables))
    weights = []
    for step in steps:
        if rates is not None:
            optimizer.learning_rate = rates[step]
        gradients = data.gradients([variable.numpy() for variable in variables], step)
        (apply if graph else lambda g: optimizer.apply(g, variables))([tf.constant(gradient) for gradient in gradients])
        weights.append(flat(variables))
    return np.stack(weights)


@keras.saving.register_keras_serializable(package="tests")
class ListedRates(keras.optimizers.schedules.LearningRateSchedule):
    """The rates of a list, by step."""

    def __init__(self, rates):
        self.rates = rates

    def __call__(self, step):
        return tf.gather(tf.constant(self.rates, dtype=keras.config.floatx()), tf.cast(step, "int64"))

    def get_config(self):
        return {"rates": self.rates}


def rules(results):
    """Every case: in a graph, eagerly, by schedule, and interrupted half-way in two ways of keeping the state."""
    for dtype in DTYPES:
        keras.config.set_floatx(dtype)
        data = problem(dtype)
        for name, case in OPTIMIZER_CASES.items():
            key = f"{name}/{dtype}"
            rates = case.learning_rates()
            optimizer, variables = make(case), variables_of(data, dtype)
            results[f"{key}/weights"] = run(optimizer, variables, data, rates, range(STEPS))
            scalars, slots = export_state(optimizer, names=NAMES)
            assert scalars["step"] == STEPS, scalars
            assert scalars["step"].dtype == np.int64
            for index, slots_of_variable in slots.items():
                for slot, value in slots_of_variable.items():
                    results[f"{key}/slot/{index}/{slot}"] = value
            if dtype == "float32":
                continue

            variables = variables_of(data, dtype)
            results[f"{key}/eager"] = run(make(case), variables, data, rates, range(STEPS), graph=False)
            variables = variables_of(data, dtype)
            scheduled = make(case, learning_rate=ListedRates(rates))
            results[f"{key}/schedule"] = run(scheduled, variables, data, None, range(STEPS))

            first, variables = make(case), variables_of(data, dtype)
            run(first, variables, data, rates, range(HALF))
            scalars, slots = export_state(first, names=NAMES)
            second = type(first).from_config(first.get_config())
            assert second.get_config() == first.get_config()
            second.build(variables)
            import_state(second, names=NAMES, scalars=scalars, slots=slots)
            results[f"{key}/resumed"] = run(second, variables, data, rates, range(HALF, STEPS))


class Weights(keras.layers.Layer):
    """A layer that is nothing but the problem's parameters."""

    def build(self, input_shape):
        self.parameters = [self.add_weight(shape=shape, name=f"w{i}") for i, shape in enumerate([(3, 4), (5,)])]

    def call(self, inputs):
        return inputs


def saved_files(results):
    """Half of the steps, a `.keras` file, the other half with what was loaded."""
    keras.config.set_floatx("float64")
    data = problem("float64")
    for name, case in OPTIMIZER_CASES.items():
        rates = case.learning_rates()
        model = keras.Sequential([keras.Input((2,)), Weights()])
        model.compile(optimizer=make(case), loss="mse", jit_compile=False)
        for variable, start in zip(model.trainable_variables, data.start, strict=True):
            variable.assign(start)
        run(model.optimizer, model.trainable_variables, data, rates, range(HALF))
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "model.keras"
            model.save(file)
            loaded = keras.saving.load_model(file, custom_objects={"Weights": Weights})
        assert type(loaded.optimizer) is CLASSES[case.rule]
        results[f"{name}/float64/saved"] = run(
            loaded.optimizer, loaded.trainable_variables, data, rates, range(HALF, STEPS)
        )


def features(results):
    """What Keras adds to any optimizer, on one update from known numbers (w = 2, lr 0.5, weight decay 0.1)."""
    keras.config.set_floatx("float64")

    def updated(optimizer, *gradients, start=2.0):
        variable = keras.Variable(start, dtype="float64", name="kernel")
        optimizer.build([variable])
        for gradient in gradients:
            optimizer.apply([gradient], [variable])
        return variable.numpy()

    sgd = update_rules.SGD
    results["clipvalue"] = updated(sgd(0.5, weight_decay=0.1, clipvalue=1.0), tf.constant(8.0, tf.float64))
    results["accumulation"] = updated(
        update_rules.Adam(0.5, gradient_accumulation_steps=2),
        *[tf.constant(g, tf.float64) for g in (1.0, 3.0, 2.0, 4.0)],
    )
    results["accumulation_as_one"] = updated(update_rules.Adam(0.5), *[tf.constant(g, tf.float64) for g in (2.0, 3.0)])
    excluded = sgd(0.5, weight_decay=0.1)
    excluded.exclude_from_weight_decay(var_names=["kernel"])
    results["excluded"] = updated(excluded, tf.constant(1.0, tf.float64))
    rows = tf.IndexedSlices(tf.constant([[1.0], [2.0], [4.0]], tf.float64), tf.constant([2, 0, 2]), tf.constant([4, 1]))
    dense = tf.constant([[2.0], [0.0], [5.0], [0.0]], tf.float64)
    for name, make_optimizer in {
        "adam": lambda: update_rules.Adam(0.1, weight_decay=0.1),
        "clipped": lambda: sgd(0.1, momentum=0.9, global_clipnorm=1.0),
    }.items():
        results[f"sparse_{name}"] = updated(make_optimizer(), rows, rows, start=np.ones((4, 1)))
        results[f"dense_{name}"] = updated(make_optimizer(), dense, dense, start=np.ones((4, 1)))
    scaled = keras.optimizers.LossScaleOptimizer(update_rules.Adam(0.5), initial_scale=4.0)
    results["loss_scale"] = updated(scaled, tf.constant(4.0, tf.float64), tf.constant(float("inf"), tf.float64))
    scalars, slots = export_state(scaled, names=["kernel"])
    results["loss_scale_exp_avg"] = slots["kernel"]["exp_avg"]
    copy = keras.optimizers.LossScaleOptimizer(update_rules.Adam(0.5), initial_scale=4.0)
    copy.build([keras.Variable(0.0, dtype="float64", name="kernel")])
    import_state(copy, names=["kernel"], scalars=scalars, slots=slots)
    results["loss_scale_scalars"] = np.array(
        [scalars["step"], scalars["loss_scale"], scalars["loss_scale_growth_step"], copy.iterations, copy.dynamic_scale]
    )


def errors(results):
    """Messages of what must be refused."""
    built, half = update_rules.Adam(0.1), update_rules.SGD(0.1, gradient_accumulation_steps=2)
    built.build([keras.Variable(np.zeros(3), name="kernel")])
    variable = keras.Variable(0.0, dtype="float64", name="kernel")
    half.build([variable])
    half.apply([tf.constant(1.0, tf.float64)], [variable])
    slots = {"kernel": {"exp_avg": np.zeros(3), "exp_avg_sq": np.zeros(2)}}
    refused = {
        "beta": lambda: update_rules.Adam(0.1, beta_1=1.0),
        "decay": lambda: update_rules.SGD(0.1, weight_decay=-1.0),
        "nesterov": lambda: update_rules.SGD(0.1, nesterov=True),
        "rho": lambda: update_rules.RMSprop(0.1, rho=1.5),
        "unbuilt": lambda: export_state(update_rules.Adam(0.1), names=["kernel"]),
        "count": lambda: export_state(built, names=["kernel", "bias"]),
        "half": lambda: export_state(half, names=["kernel"]),
        "foreign": lambda: export_state(keras.optimizers.Adam(0.1), names=["kernel"]),
        "slots": lambda: import_state(built, names=["kernel"], scalars={"step": 1}, slots={"kernel": {}}),
        "shape": lambda: import_state(built, names=["kernel"], scalars={"step": 1}, slots=slots),
    }
    for name, function in refused.items():
        try:
            function()
            message = "accepted"
        except (ValueError, TypeError) as error:
            message = f"{type(error).__name__}: {error}"
        results[f"error_{name}"] = np.array(message)


def write(file):
    """Save the results."""
    collected = {}
    rules(collected)
    saved_files(collected)
    features(collected)
    errors(collected)
    np.savez(file, **collected)
