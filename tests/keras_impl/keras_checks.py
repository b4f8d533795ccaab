"""What only a process with Keras can try: see tests/support/frameworks.py.

TensorFlow starts as by `--onednn off`, against what the user's variable says.
"""

import io
import os
import threading
from contextlib import redirect_stdout
from types import SimpleNamespace

os.environ |= {"TF_ENABLE_ONEDNN_OPTS": "1", "HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}

from keras_impl import onednn

onednn.import_tensorflow("off")

import horovod.tensorflow as hvd  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from fake_ranks import alone  # noqa: E402
from frameworks import run_checks  # noqa: E402

from common.config import Config, DeviceConfig, config_from_dict  # noqa: E402
from common.distributed.console import Console  # noqa: E402
from common.measurement.timing import Phases  # noqa: E402
from common.training.run_setup import prepare_run  # noqa: E402
from keras_impl import update_rules  # noqa: E402
from keras_impl.data import ShardedData  # noqa: E402
from keras_impl.distributed_optimizer import DistributedOptimizer  # noqa: E402
from keras_impl.exchange_meter import ExchangeMeter  # noqa: E402
from keras_impl.loop import Trainer  # noqa: E402
from keras_impl.models import build_model  # noqa: E402
from keras_impl.optimizers import LearningRates, build_optimizer  # noqa: E402
from keras_impl.state import TrainingState  # noqa: E402

RATES = np.array([0.1, 0.05, 0.025])


def toy_setup():
    """Return a run of a small model on a few images."""
    settings = {"model": {"model": "mlp"}, "training": {"batch_size": 5}}
    return prepare_run(config_from_dict({"data": {"dataset": "synthetic:60x8x8x1x3"}, **settings}), size=1)


def check_tensorflow_leaves_onednn_out_and_a_run_on_a_cpu_that_has_not_asked_for_it_says_so(folder):
    assert not onednn.onednn_is_on()
    printed = io.StringIO()
    with redirect_stdout(printed):
        for asked, device in (("auto", "cpu"), ("off", "cpu"), ("auto", "GPU:0")):
            onednn.say_without_onednn(Console(SimpleNamespace(rank=0)), asked=asked, device=device)
    assert printed.getvalue().count("try --onednn on") == 1
    assert os.environ["TF_ENABLE_ONEDNN_OPTS"] == "1", "what the user has set is recorded"


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
    scalars, slots = update_rules.export_state(wrapped, names=names)
    assert [int(scalars[name]) for name in ("learning_rate_step", "step", "loss_scale_growth_step")] == [3, 2, 1]
    assert scalars["loss_scale"] == scale
    scalars |= {"learning_rate_step": np.array(1), "loss_scale": np.array(8.0), "loss_scale_growth_step": np.array(0)}
    update_rules.import_state(wrapped, names=names, scalars=scalars, slots=slots)
    assert (int(wrapped.steps), float(wrapped.dynamic_scale), int(wrapped.step_counter)) == (1, 8.0, 0)


def check_a_thread_makes_batches_ahead_for_a_gpu_and_on_a_cpu_none_competes(folder):
    def is_ahead():
        return "prefetch" in [thread.name for thread in threading.enumerate()]

    setup = toy_setup()
    in_step = ShardedData(setup, comm=alone(), device="cpu").training(1)
    first = next(in_step)
    assert not is_ahead()
    ahead = ShardedData(setup, comm=alone(), device="gpu").training(1)
    np.testing.assert_array_equal(next(ahead)[0], first[0])
    assert is_ahead()
    ahead.close()
    assert not is_ahead()


def check_the_graph_of_an_evaluation_is_built_before_the_first_one_is_timed(folder):
    setup = toy_setup()
    model = build_model(setup.spec, setup.config.model)
    optimizer = build_optimizer(model, setup.config, learning_rates=RATES)
    state = TrainingState(model, optimizer, spec=setup.spec, config=setup.config)
    phases, graphs = Phases(), []
    trainer = Trainer(state, ShardedData(setup, comm=alone(), device="cpu"), phases=phases)
    phases.startup_ends()
    phases.listeners.append(
        lambda phase: graphs.append((phase, trainer._evaluate_batch.experimental_get_tracing_count()))
    )
    trainer.warm_up_evaluation()
    trainer.evaluate("test")
    assert graphs == [("test", 1), ("other", 1)]


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


if __name__ == "__main__":
    run_checks(globals())
