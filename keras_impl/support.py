"""What TensorFlow's strategies do with Keras 3 here: each is tried with `fit` and with a loop of one's own.

    python keras_impl/support.py        prints the table of README.md

A strategy works if it trains a small model to the weights of one process, or, where workers do not wait for each other,
to a lower loss. `torch_impl/support.py` is its twin.
"""

import json
import os
from typing import Any

import keras_impl.quiet_tensorflow  # isort: skip  # noqa: F401 - before Keras: TensorFlow without its start-up lines
import keras
import tensorflow as tf

from common.checks.support import BATCH, MOMENTUM, RATE, STEPS, Case, compared, data, first_weights, improved, main

WORKERS = 2
CASES = [
    Case("MirroredStrategy", "fit"),
    Case("MirroredStrategy", "loop"),
    Case("MultiWorkerMirroredStrategy", "fit", processes=WORKERS),
    Case("MultiWorkerMirroredStrategy", "loop", processes=WORKERS),
    Case("ParameterServerStrategy", "fit", processes=1 + WORKERS + 1),
    Case("ParameterServerStrategy", "loop", processes=1 + WORKERS + 1),
]


def try_case(case: Case, number: int, addresses: list[str]) -> str:
    """Train as one process of a case; return what came of it."""
    keras.backend.set_floatx("float64")
    strategy = _build_strategy(case, number, addresses)
    with strategy.scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
        optimizer = keras.optimizers.SGD(RATE, momentum=MOMENTUM)
        optimizer.build(model.trainable_variables)
    model.set_weights(first_weights())
    (_fit if case.way == "fit" else _loop)(strategy, model, optimizer)
    return (improved if case.strategy == "ParameterServerStrategy" else compared)(model.get_weights())


def _build_strategy(case: Case, number: int, addresses: list[str]) -> tf.distribute.Strategy:
    """Return the strategy of a process; a server of parameters, and the workers it serves, wait here for their end."""
    if case.strategy == "MirroredStrategy":
        (cpu,) = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * WORKERS)
        return tf.distribute.MirroredStrategy([f"CPU:{one}" for one in range(WORKERS)])
    if case.strategy == "MultiWorkerMirroredStrategy":
        _set_cluster({"worker": addresses}, job="worker", task=number)
        return tf.distribute.MultiWorkerMirroredStrategy()
    chief, *workers, server = addresses
    cluster = {"chief": [chief], "worker": workers, "ps": [server]}
    if number:
        job, task = ("worker", number - 1) if number <= WORKERS else ("ps", 0)
        tf.distribute.Server(tf.train.ClusterSpec(cluster), job_name=job, task_index=task, protocol="grpc").join()
    _set_cluster(cluster, job="chief", task=0)
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver(rpc_layer="grpc")
    return tf.distribute.ParameterServerStrategy(resolver)


def _set_cluster(cluster: dict[str, list[str]], *, job: str, task: int) -> None:
    """Tell TensorFlow which process this is."""
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": job, "index": task}})


def _loss_function(reduction: str | None) -> keras.losses.Loss:
    """Return the loss of all ways of training."""
    return keras.losses.MeanSquaredError(reduction=reduction)


def _fit(strategy: tf.distribute.Strategy, model: keras.Model, optimizer: Any) -> None:
    """Train as Keras' documentation has it."""
    model.compile(optimizer=optimizer, loss=_loss_function("sum_over_batch_size"), jit_compile=False)
    model.fit(_batches(), epochs=1, steps_per_epoch=STEPS, verbose=0)


def _batches(_: Any = None) -> tf.data.Dataset:
    """Return the global batches."""
    return tf.data.Dataset.from_tensor_slices(data()).batch(BATCH, drop_remainder=True)


def _loop(strategy: tf.distribute.Strategy, model: keras.Model, optimizer: Any) -> None:
    """Train by a step of one's own, on every replica."""
    replicas = max(strategy.num_replicas_in_sync, 1)

    @tf.function
    def step(iterator: Any) -> None:
        def on_replica(inputs: tf.Tensor, labels: tf.Tensor) -> None:
            with tf.GradientTape() as tape:
                losses = _loss_function(None)(labels, model(inputs, training=True))
                loss = tf.reduce_mean(losses) / replicas
            weights = model.trainable_variables
            optimizer.apply(tape.gradient(loss, [weight.value for weight in weights]), weights)

        strategy.run(on_replica, args=next(iterator))

    if not isinstance(strategy, tf.distribute.ParameterServerStrategy):
        iterator = iter(strategy.experimental_distribute_dataset(_batches()))
        for _ in range(STEPS):
            step(iterator)
        return
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    iterator = iter(coordinator.create_per_worker_dataset(lambda: _batches().repeat()))
    for _ in range(STEPS):
        coordinator.schedule(step, args=(iterator,))
    coordinator.join()


if __name__ == "__main__":
    main(CASES, try_case, versions=f"TensorFlow {tf.__version__}, Keras {keras.__version__}")
