"""What only a process with Keras can try: see tests/support/frameworks.py.

TensorFlow starts as by `--onednn off`, against what the user's variable says.
"""

import contextlib
import os
import sys
import threading
from types import SimpleNamespace
from unittest import mock

os.environ |= {"TF_ENABLE_ONEDNN_OPTS": "1", "HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}

with mock.patch.object(sys, "argv", [*sys.argv[:1], "--onednn", "off"]):
    import keras_impl.quiet_tensorflow  # noqa: F401

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf
from fake_ranks import alone
from frameworks import run_checks
from reference_rules import losses

from common.checks.parity_cases import LOSSES
from common.config import Config, DeviceConfig, config_from_dict
from common.errors import UserError
from common.run.epoch import Trial
from common.task.prepare import prepare
from keras_impl import distributed, onednn, update_rules
from keras_impl.data import ShardedData
from keras_impl.exchange_meter import ExchangeMeter
from keras_impl.horovod_keras3 import DistributedOptimizer
from keras_impl.models import build_model, set_precision_and_layout
from keras_impl.optimizers import LearningRates, build_optimizer, loss_per_sample
from keras_impl.strategies.profiled import Profiled
from keras_impl.strategies.strategy import Strategy, _accumulated
from keras_impl.strategies.topk import TopK
from keras_impl.weights import trainable_maps

RATES = np.array([0.1, 0.05, 0.025])


def toy_setup(**device):
    """Return a run of a small model on a few images."""
    settings = {"model": {"model": "mlp"}, "training": {"batch_size": 5}, "device": device}
    return prepare(config_from_dict({"data": {"dataset": "synthetic:60x8x8x1x3"}, **settings}), ranks=1)


def refusal(asked, variable):
    """Return why a process with this variable of TensorFlow cannot compute as `--onednn` asks; None: it can."""
    with mock.patch.dict(os.environ, {onednn.VARIABLE: variable}):
        try:
            onednn.use_onednn(asked)
        except UserError as error:
            return str(error)
    return None


def check_of_equal_gradients_the_first_of_each_tensor_in_the_file_are_sent(folder):
    settings = {"model": {"model": "cnn"}, "strategy": {"topk": 0.3}}
    task = prepare(config_from_dict({"data": {"dataset": "synthetic:100x28x28x1x3"}, **settings}), ranks=1)
    strategy = TopK(task, comm=alone(), device="cpu")
    model = build_model(task.spec, task.config.model)
    strategy.wrap(model, build_optimizer(model, task.config, learning_rates=RATES))
    sent = strategy.before_update([tf.ones(weight.shape) for weight in model.trainable_variables])
    for weight, gradient in zip(trainable_maps(model, task.spec).values(), sent, strict=True):
        own = weight.to_file(gradient.numpy()).ravel()
        count = max(1, round(0.3 * own.size))
        assert own.tolist() == [1.0] * count + [0.0] * (own.size - count)


def check_tensorflow_leaves_onednn_out_as_asked_and_what_contradicts_is_refused(folder):
    assert not onednn.onednn_is_on()
    assert os.environ[onednn.VARIABLE] == "1", "what the user has set is recorded"
    for asked, variable, other in (("off", "1", "on"), ("off", "TRUE", "on"), ("on", "0", "off")):
        assert refusal(asked, variable) == (
            f"TensorFlow's variable contradicts --onednn {asked}. Received: "
            f"{onednn.VARIABLE}={variable}. "
            f"Unset it, or give --onednn {other}, or framework to leave it to the variable"
        )
    assert refusal("off", "0") is refusal("off", "") is refusal("off", "of no meaning") is None
    for asked in ("on", "framework"):
        assert f"Received: --onednn {asked} after off" in refusal(asked, "1")


def check_an_update_that_an_overflow_leaves_out_uses_up_its_learning_rate(folder):
    hvd.init()
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    half = Config(device=DeviceConfig(mixed_precision="float16"))
    optimizer = build_optimizer(model, half, learning_rates=RATES)
    wrapped = DistributedOptimizer(optimizer)
    assert isinstance(wrapped.inner_optimizer._learning_rate, LearningRates)
    assert len(wrapped.variables) == len(optimizer.variables)
    unscaled = LearningRates(RATES)
    assert [float(unscaled(step)) for step in range(4)] == [np.float32(rate) for rate in [*RATES, RATES[-1]]]
    weight = model.trainable_variables[1]
    values = [float(weight[0])]
    for gradient in (1.0, np.inf, 1.0):
        scale = float(wrapped.dynamic_scale)
        wrapped.apply([np.full(v.shape, gradient * scale, np.float32) for v in model.trainable_variables])
        values.append(float(weight[0]))
    # 0.1, then 0.05 left out, then 0.025; momentum 0.9: the second update moves by rate x (0.9 + 1).
    np.testing.assert_allclose(-np.diff(values), [0.1, 0.0, 0.025 * 1.9], rtol=1e-5)
    assert int(wrapped.iterations) == 2 and int(wrapped.steps) == 3
    names = ["kernel", "bias"]
    state = update_rules.export_state(wrapped, names=names)
    assert [int(state[name][0]) for name in ("learning_rate_step", "step", "loss_scale_growth_step")] == [3, 2, 1]
    assert state["loss_scale"].tolist() == [scale]
    state |= {
        "learning_rate_step": np.array([1]),
        "loss_scale": np.array([8.0]),
        "loss_scale_growth_step": np.array([0]),
    }
    update_rules.import_state(wrapped, state, names=names)
    assert (int(wrapped.steps), float(wrapped.dynamic_scale), int(wrapped.step_counter)) == (1, 8.0, 0)


def check_a_thread_makes_batches_ahead_for_a_gpu_and_on_a_cpu_none_competes(folder):
    def is_ahead():
        return any(thread.name.startswith("prefetch") for thread in threading.enumerate())

    task = toy_setup()
    in_step = ShardedData(task, comm=alone(), device="cpu").training(1, most=1)
    first = next(in_step)
    assert not is_ahead()
    ahead = ShardedData(task, comm=alone(), device="gpu").training(1, most=1)
    np.testing.assert_array_equal(next(ahead)[0], first[0])
    assert is_ahead()
    ahead.close()
    assert not is_ahead()


def strategy_of(task, *, kind=Strategy, device="cpu"):
    """Return the training of a model that is built for it."""
    strategy = kind(task, comm=alone(), device=device)
    model = build_model(strategy.spec, task.config.model)
    strategy.wrap(model, build_optimizer(model, task.config, learning_rates=RATES))
    return strategy


def check_a_profile_copies_numbers_to_the_host_and_no_tensors(folder):
    """Its graph for a GPU, traced without one."""
    task = toy_setup()
    profiled = strategy_of(task, kind=Profiled, device="GPU:0")
    images, labels = map(tf.constant, next(ShardedData(task, comm=alone(), device="GPU:0").evaluation("test")))
    graph = profiled._gradients_of.get_concrete_function(images, labels).graph
    to_host = [op.outputs[0] for op in graph.get_operations() if op.type == "Identity" and "CPU:0" in op.device]
    assert len(to_host) > len(profiled.model.trainable_variables)
    assert {tensor.shape.num_elements() for tensor in to_host} == {1}
    losses = profiled._gradients_of(images, labels)[1]
    plain = strategy_of(task, kind=Profiled)
    plain.load(profiled.weights())
    np.testing.assert_array_equal(losses, plain._gradients_of(images, labels)[1])


def pretended_gpus(number, **functions):
    """TensorFlow with so many GPUs, of which nothing is asked but what `pin_device` asks; and these functions."""
    gpus = [SimpleNamespace(name=f"/physical_device:GPU:{index}") for index in range(number)]
    patches = contextlib.ExitStack()
    of_config = {"list_physical_devices": lambda kind: gpus, "get_visible_devices": lambda kind: gpus}
    nothing = {"set_visible_devices": mock.Mock()}
    patches.enter_context(mock.patch.multiple(tf.config, **of_config, **nothing))
    patches.enter_context(mock.patch.object(tf.config.optimizer, "set_experimental_options"))
    for threads in ("set_intra_op_parallelism_threads", "set_inter_op_parallelism_threads"):  # TensorFlow has started
        patches.enter_context(mock.patch.object(tf.config.threading, threads))
    functions = {"set_memory_growth": mock.Mock(), **functions}
    patches.enter_context(mock.patch.multiple(tf.config.experimental, **functions))
    return patches


def check_a_rank_with_two_replicas_names_a_gpu_and_the_fullest_memory(folder):
    peaks = {"GPU:0": {"peak": 3}, "GPU:1": {"peak": 5}}
    with pretended_gpus(
        2,
        get_device_details=lambda gpu: {"device_name": gpu.name[-5:]},
        get_memory_info=peaks.__getitem__,
    ):
        assert distributed.gpu_model("GPU:0") == "GPU:0"
        assert distributed.peak_device_memory("GPU:0") == 5
    assert distributed.gpu_model("cpu") is None and distributed.peak_device_memory("cpu") is None


def check_the_state_of_another_optimizer_is_refused(folder):
    variables, problem = [keras.Variable(np.ones(2), name="a")], ""
    adam, sgd = update_rules.Adam(0.1), update_rules.SGD(0.1, momentum=0.9)
    for optimizer in (adam, sgd):
        optimizer.build(variables)
    try:
        update_rules.import_state(sgd, update_rules.export_state(adam, names=["a"]), names=["a"])
    except ValueError as error:
        problem = str(error)
    assert "a.exp_avg, a.exp_avg_sq, a.momentum_buffer on one side only" in problem


def check_losses_and_their_gradients_are_numpys(folder):
    outputs, labels = np.random.default_rng(1).normal(size=(7, 5)), np.arange(7) % 5
    for name, (loss, gradient) in losses(outputs, labels).items():
        config, model_config = LOSSES[name]
        with tf.GradientTape() as tape:
            given = tf.constant(outputs)
            tape.watch(given)
            ours = tf.reduce_mean(loss_per_sample(given, tf.constant(labels), config=config, model_config=model_config))
        np.testing.assert_allclose(ours.numpy(), loss, rtol=1e-12)
        np.testing.assert_allclose(tape.gradient(ours, given).numpy(), gradient, rtol=0, atol=1e-12)


def check_kernels_of_a_gpu_add_in_one_order_unless_cudnn_may_try_its_own(folder):
    for device, is_tried in (("cpu", False), ("gpu", True), ("gpu", False)):
        with pretended_gpus(1, enable_op_determinism=(asked := mock.Mock())):
            distributed.pin_device(DeviceConfig(device=device, cudnn_benchmark=is_tried), alone())
        assert asked.call_count == int((device, is_tried) == ("gpu", False))


def check_nothing_is_left_of_a_rehearsal(folder):
    """With float16, which runs have on GPUs only; before the first update and after some."""
    task = toy_setup(mixed_precision="float16")
    set_precision_and_layout(task.config)
    try:
        strategy = strategy_of(task)
    finally:
        set_precision_and_layout(Config())
    variables = [*strategy.model.variables, *strategy.optimizer.variables]
    assert any(variable is strategy.optimizer.dynamic_scale for variable in variables)
    batches = ShardedData(task, comm=alone(), device="cpu")
    for updates in (0, 2):
        if updates:
            Trial(task, strategy, batches).train(updates)
        before = [variable.numpy() for variable in variables]
        strategy.rehearse(batches, 1)
        assert all(np.array_equal(array, variable.numpy()) for array, variable in zip(before, variables, strict=True))
        assert strategy.updates_made() == updates


def check_an_update_that_an_overflow_leaves_out_counts_as_one(folder):
    task = toy_setup(mixed_precision="float16")
    strategy = strategy_of(task)
    strategy.optimizer.dynamic_scale.assign(np.inf)
    Trial(task, strategy, ShardedData(task, comm=alone(), device="cpu")).train(2)
    assert strategy.updates_made() == 2 and int(strategy.optimizer.iterations) == 0


def check_exchanges_wait_for_each_other_s_tensors_only_where_they_are_timed(folder):
    for times in (True, False):
        meter, waits = ExchangeMeter(times=times), []

        def exchange(tensors, compression, waits=waits):
            sent = [tf.identity(compression.compress(tensor)[0]) for tensor in tensors]
            waits.extend(bool(tensor.op.control_inputs) for tensor in sent)
            return [compression.decompress(tensor, None) for tensor in sent]

        @tf.function
        def step(one, other, meter=meter, exchange=exchange):
            return meter.measure(exchange, [one, other], hvd.Compression.none)

        for _ in range(3):
            step(tf.zeros(3, tf.float32), tf.zeros((2, 2), tf.float64))
        assert waits == [times, times]
        counted = meter.read()
        assert (counted.sent_bytes, counted.received_bytes) == (3 * 44, 3 * 44)
        assert (counted.seconds > 0) == times


def check_gradients_of_embeddings_are_added_up_in_our_passes(folder):
    rows = tf.IndexedSlices(tf.constant([[1.0, 2.0], [3.0, 4.0]]), tf.constant([2, 0]), tf.constant([3, 2]))

    @tf.function
    def two_passes(images, labels):
        return _accumulated(lambda images, labels: (images, labels, [rows]), images, labels, passes=2)

    _, _, (total,) = two_passes(tf.zeros((4, 1)), tf.zeros(4))
    assert total.numpy().tolist() == [[6, 8], [0, 0], [2, 4]]


if __name__ == "__main__":
    run_checks(globals())
