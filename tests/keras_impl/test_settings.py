"""Settings that only a Keras process can try, in one of its own."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import threading

import horovod.tensorflow as hvd
import keras
import numpy as np

from common.config import Config, DeviceConfig, config_from_dict
from common.measurement.timing import Phases
from common.training.run_setup import prepare_run
from keras_impl.data import ShardedData
from keras_impl.distributed_optimizer import DistributedOptimizer
from keras_impl import update_rules
from keras_impl.loop import Trainer
from keras_impl.models import build_model
from keras_impl.optimizers import LearningRates, build_optimizer
from keras_impl.state import TrainingState
from fake_ranks import alone

hvd.init()
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
rates = np.array([0.1, 0.05, 0.025])
optimizer = build_optimizer(model, Config(device=DeviceConfig(mixed_precision="float16")), learning_rates=rates)
wrapped = DistributedOptimizer(optimizer)
schedule = wrapped.inner_optimizer._learning_rate
assert isinstance(schedule, LearningRates), schedule
assert len(wrapped.variables) == len(optimizer.variables)
unscaled = LearningRates(rates)
assert [float(unscaled(step)) for step in range(4)] == [np.float32(rate) for rate in [*rates, rates[-1]]]
# An update that an overflow leaves out uses up its rate: 0.1, then 0.05 left out, then 0.025.
weight = model.trainable_variables[1]
before = [float(weight[0])]
for gradient in (1.0, np.inf, 1.0):
    scale = float(wrapped.dynamic_scale)
    wrapped.apply([np.full(v.shape, gradient * scale, np.float32) for v in model.trainable_variables])
    before.append(float(weight[0]))
moved = -np.diff(before)
# Momentum 0.9: the second update moves by rate x (0.9 + 1).
np.testing.assert_allclose(moved, [0.1, 0.0, 0.025 * 1.9], rtol=1e-5)
assert int(wrapped.iterations) == 2 and int(wrapped.steps) == 3
scalars, slots = update_rules.export_state(wrapped, names=["kernel", "bias"])
assert int(scalars["learning_rate_step"]) == 3 and int(scalars["step"]) == 2
update_rules.import_state(
    wrapped, names=["kernel", "bias"], scalars={**scalars, "learning_rate_step": np.array(1)}, slots=slots
)
assert int(wrapped.steps) == 1

data = {"dataset": "synthetic:60x8x8x1x3"}
setup = prepare_run(
    config_from_dict({"data": data, "model": {"model": "mlp"}, "training": {"batch_size": 5}}), size=1
)
sharded = ShardedData(setup, comm=alone(), device="cpu")

# For a GPU a thread makes batches ahead; on a CPU it would compete with what computes.
names = lambda: [thread.name for thread in threading.enumerate()]
first = next(sharded.training(1))
assert "prefetch" not in names()
ahead = ShardedData(setup, comm=alone(), device="gpu").training(1)
np.testing.assert_array_equal(next(ahead)[0], first[0])
assert "prefetch" in names()
ahead.close()
assert "prefetch" not in names()

# The graph of an evaluation is built before the first one is timed.
model = build_model(setup.spec, setup.config.model)
optimizer = build_optimizer(model, setup.config, learning_rates=rates)
state = TrainingState(model, optimizer, spec=setup.spec, config=setup.config)
phases = Phases()
trainer = Trainer(state, sharded, phases=phases)
graphs = []
phases.startup_ends()
phases.listeners.append(lambda phase: graphs.append((phase, trainer._evaluate_batch.experimental_get_tracing_count())))
trainer.warm_up_evaluation()
trainer.evaluate("test")
assert graphs == [("test", 1), ("other", 1)], graphs
print("right")
"""


@pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="Keras is not installed")
def test_mixed_precision_batches_made_ahead_and_evaluation_without_its_graph() -> None:
    variables = {
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests' / 'support'}",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={**os.environ, **variables}, capture_output=True, text=True, timeout=200
    )
    assert done.stdout.strip() == "right", done.stderr
