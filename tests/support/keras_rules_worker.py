"""Runs the cases of `rule_cases` with our update rules and layers for Keras, on a server of ranks."""

import keras
import numpy as np
import tensorflow as tf
from rule_cases import BATCH_NORM_CASES, HALF, OPTIMIZER_CASES, START, STEPS, batch_norm_data, gradients

from keras_impl import update_rules
from keras_impl.batch_norm import BatchNormalization
from keras_impl.optimizers import LearningRates
from keras_impl.update_rules import export_state, import_state

CLASSES = {
    "sgd": update_rules.SGD,
    "adam": update_rules.Adam,
    "adamw": update_rules.AdamW,
    "rmsprop": update_rules.RMSprop,
}
NAMES = ["0", "1"]


def updated(optimizer, variables, steps, *, rates=None):
    """Return the weights after each step on the problem; without rates those of the optimizer's own schedule."""
    optimizer.build(variables)
    apply = tf.function(lambda gradients: optimizer.apply(gradients, variables))
    weights = []
    for step in steps:
        if rates is not None:
            optimizer.learning_rate = rates[step]
        of_step = gradients([variable.numpy() for variable in variables], step)
        apply([tf.constant(gradient) for gradient in of_step])
        weights.append(np.concatenate([variable.numpy().ravel() for variable in variables]))
    return np.stack(weights)


def optimizers(results):
    """Every case: at rates that are set before each step; by a schedule, and half-way taken over by another optimizer.

    The learning rate of the constructor is a wrong one.
    """
    for name, case in OPTIMIZER_CASES.items():
        rates = case.learning_rates()
        optimizer = CLASSES[case.rule](learning_rate=123.0, **case.keras_settings())
        variables = [keras.Variable(start, dtype="float64") for start in START]
        results[f"{name}/weights"] = updated(optimizer, variables, range(STEPS), rates=rates)
        state = export_state(optimizer, names=NAMES)
        steps = state.pop("step")
        assert steps.tolist() == [STEPS] and steps.dtype == np.int64
        results |= {f"{name}/slot/{key.replace('.', '/')}": value for key, value in state.items()}

        scheduled = CLASSES[case.rule](learning_rate=LearningRates(rates), **case.keras_settings())
        variables = [keras.Variable(start, dtype="float64") for start in START]
        first_half = updated(scheduled, variables, range(HALF))
        state = export_state(scheduled, names=NAMES)
        resumed = type(scheduled).from_config(scheduled.get_config())
        resumed.build(variables)
        import_state(resumed, state, names=NAMES)
        second_half = updated(resumed, variables, range(HALF, STEPS))
        results[f"{name}/resumed"] = np.concatenate([first_half, second_half])


def sparse_updates(results):
    """Two updates by the rows of a table."""
    rows = tf.IndexedSlices(tf.constant([[1.0], [2.0], [4.0]], tf.float64), tf.constant([2, 0, 2]), tf.constant([4, 1]))
    dense = tf.constant([[2.0], [0.0], [5.0], [0.0]], tf.float64)
    for name, gradient in {"sparse": rows, "dense": dense}.items():
        adam = update_rules.Adam(0.1, weight_decay=0.1, global_clipnorm=1.0)
        variable = keras.Variable(np.ones((4, 1)), dtype="float64")
        adam.build([variable])
        for _ in range(2):
            adam.apply([gradient], [variable])
        results[name] = variable.numpy()


def made_layer(data, dtype="float64", **settings):
    """A layer holding the data's scales, shifts and statistics."""
    layer = BatchNormalization(dtype=dtype, **settings)
    layer.build(data.x.shape[1:])
    values = data.gamma, data.beta, data.running_mean, data.running_variance
    for variable, value in zip(
        (layer.gamma, layer.beta, layer.moving_mean, layer.moving_variance), values, strict=True
    ):
        variable.assign(value)
    return layer


def batch_norm(results):
    """Training steps and an inference batch for each case: eagerly, and in a graph that knows no batch size."""
    for key, (kind, decay, eps) in BATCH_NORM_CASES.items():
        data = batch_norm_data(kind)
        settings = {} if "default" in key else {"momentum": decay, "epsilon": eps}
        for way in ("eager", "graph"):
            layer = made_layer(data, **settings)

            def step(x, weight, layer=layer):
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    y = layer(x, training=True)
                    loss = tf.reduce_sum(y * weight)
                return y, *tape.gradient(loss, [x, layer.gamma.value, layer.beta.value])

            if way == "graph":
                step = tf.function(step, input_signature=[tf.TensorSpec([None, *data.x.shape[2:]], "float64")] * 2)
            for number, (x, weight) in enumerate(zip(data.x, data.output_gradient, strict=True)):
                outputs = step(tf.constant(x), tf.constant(weight))
                for name, value in zip(("y", "x_gradient", "gamma_gradient", "beta_gradient"), outputs, strict=True):
                    results[f"{key}/{way}/{number}/{name}"] = value.numpy()
                results[f"{key}/{way}/{number}/running_mean"] = layer.moving_mean.numpy()
                results[f"{key}/{way}/{number}/running_variance"] = layer.moving_variance.numpy()
            results[f"{key}/{way}/inference"] = layer(tf.constant(data.x[0]), training=False).numpy()


def other_layers(results):
    """Another axis, not trainable, and float16 inputs."""
    data = batch_norm_data("image")
    moved = BatchNormalization(axis=1, dtype="float64")
    moved.build((None, *np.moveaxis(data.x[0], -1, 1).shape[1:]))
    moved.set_weights(made_layer(data).get_weights())
    y = moved(np.moveaxis(data.x[0], -1, 1), training=True)
    results["axis/y"] = np.moveaxis(y.numpy(), 1, -1)
    results["axis/running_variance"] = moved.moving_variance.numpy()
    fixed = made_layer(data)
    fixed.trainable = False
    results["fixed/y"] = fixed(data.x[0], training=True).numpy()
    results["fixed/running_variance"] = fixed.moving_variance.numpy()
    half = made_layer(data, "mixed_float16")
    results["half/y"] = half(data.x[0].astype("float16"), training=True).numpy()
    results["half/running_variance"] = half.moving_variance.numpy()


def errors(results):
    """Messages of what must be refused."""
    layer = made_layer(batch_norm_data("dense"))
    refused = {
        "more than one value": lambda: layer(np.ones((1, 5)), training=True),
        "mask": lambda: layer(np.ones((2, 5)), training=True, mask=np.ones(2)),
        "renorm=True": lambda: BatchNormalization(renorm=True),
        "synchronized=True": lambda: BatchNormalization(synchronized=True),
    }
    for words, function in refused.items():
        try:
            function()
            message = "accepted"
        except (ValueError, TypeError) as error:
            message = str(error)
        results[f"refused/{words}"] = np.array(message)


def write(file):
    keras.config.set_floatx("float64")
    collected = {}
    for part in (optimizers, sparse_updates, batch_norm, other_layers, errors):
        part(collected)
    np.savez(file, **collected)
