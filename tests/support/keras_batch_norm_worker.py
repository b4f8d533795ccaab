"""Runs the cases of `rule_cases` with `keras_impl.batch_norm` on a server of ranks (`frameworks.results`)."""

import tempfile
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from rule_cases import BATCH_NORM_SETTINGS, BATCH_NORM_SHAPES, DTYPES, batch_norm_data

from keras_impl.batch_norm import BatchNormalization


def make(data, dtype, **settings):
    """A layer holding the data's scales, shifts and statistics."""
    layer = BatchNormalization(dtype=dtype, **settings)
    layer.build(data.x.shape[1:])
    for variable, value in zip(
        (layer.gamma, layer.beta, layer.moving_mean, layer.moving_variance),
        (data.gamma, data.beta, data.running_mean, data.running_variance),
        strict=True,
    ):
        variable.assign(value)
    return layer


def cases(results):
    """Training steps and an inference batch for each case: eagerly, and in a graph that knows no batch size."""
    for dtype in DTYPES:
        for kind, shape in BATCH_NORM_SHAPES.items():
            for setting, (decay, eps) in BATCH_NORM_SETTINGS.items():
                data = batch_norm_data(kind, dtype)
                settings = {} if setting == "default" else {"momentum": decay, "epsilon": eps}
                for way in ("eager", "graph"):
                    layer = make(data, dtype, **settings)
                    signature = [tf.TensorSpec([None, *shape[1:]], dtype)] * 2

                    def step(x, weight, layer=layer):
                        with tf.GradientTape() as tape:
                            tape.watch(x)
                            y = layer(x, training=True)
                            loss = tf.reduce_sum(y * weight)
                        return y, *tape.gradient(loss, [x, layer.gamma.value, layer.beta.value])

                    run = step if way == "eager" else tf.function(step, input_signature=signature)
                    key = f"{kind}/{setting}/{dtype}/{way}"
                    for number, (x, weight) in enumerate(zip(data.x, data.output_gradient, strict=True)):
                        y, *gradients = run(tf.constant(x), tf.constant(weight))
                        results[f"{key}/{number}/y"] = y.numpy()
                        for name, gradient in zip(("x", "gamma", "beta"), gradients, strict=True):
                            results[f"{key}/{number}/{name}_gradient"] = gradient.numpy()
                        results[f"{key}/{number}/running_mean"] = layer.moving_mean.numpy()
                        results[f"{key}/{number}/running_variance"] = layer.moving_variance.numpy()
                    results[f"{key}/inference"] = layer(tf.constant(data.x[0]), training=False).numpy()


def other_ways(results):
    """Another axis, frozen, float16 inputs, through `fit`, a saved file; and what is refused."""
    data = batch_norm_data("image", "float64")
    channels_first = make(data, "float64")
    moved = BatchNormalization(axis=1, dtype="float64")
    moved.build((None, *np.moveaxis(data.x[0], -1, 1).shape[1:]))
    moved.set_weights(channels_first.get_weights())
    y = moved(np.moveaxis(data.x[0], -1, 1), training=True)
    results["axis/y"] = np.moveaxis(y.numpy(), 1, -1)
    results["axis/running_variance"] = moved.moving_variance.numpy()

    frozen = make(data, "float64")
    frozen.trainable = False
    results["frozen/y"] = frozen(data.x[0], training=True).numpy()
    results["frozen/running_variance"] = frozen.moving_variance.numpy()

    half = make(batch_norm_data("image", "float32"), "mixed_float16")
    y = half(data.x[0].astype("float16"), training=True)
    results["half/y"], results["half/running_variance"] = y.numpy(), half.moving_variance.numpy()

    keras.config.set_floatx("float64")
    model = keras.Sequential([keras.Input(data.x.shape[2:]), make(data, "float64")])
    model.compile(optimizer=keras.optimizers.SGD(0.0), loss="mse", jit_compile=False)
    model.fit(data.x[0], data.x[0], batch_size=len(data.x[0]), epochs=1, verbose=0)
    results["fit/running_variance"] = model.layers[-1].moving_variance.numpy()
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model.keras")
        loaded = keras.saving.load_model(Path(folder) / "model.keras")
    assert type(loaded.layers[-1]) is BatchNormalization
    assert loaded.layers[-1].get_config() == model.layers[-1].get_config()
    results["saved/inference"] = loaded(data.x[0]).numpy()
    results["fit/inference"] = model(data.x[0]).numpy()

    layer = make(batch_norm_data("dense", "float64"), "float64")
    refused = {
        "one_value": lambda: layer(np.ones((1, 5)), training=True),
        "mask": lambda: layer(np.ones((2, 5)), training=True, mask=np.ones(2)),
        "renorm": lambda: BatchNormalization(renorm=True),
        "synchronized": lambda: BatchNormalization(synchronized=True),
    }
    for name, function in refused.items():
        try:
            function()
            results[f"error_{name}"] = np.array("accepted")
        except ValueError as error:
            results[f"error_{name}"] = np.array(str(error))


def write(file):
    """Save the results."""
    collected = {}
    cases(collected)
    other_ways(collected)
    np.savez(file, **collected)
