"""Settings that only a Keras process can try, in one of its own: mixed precision wrapped for several ranks."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

PROGRAM = """
import horovod.tensorflow as hvd
import keras
import numpy as np

from common.config import DeviceConfig, OptimizerConfig
from keras_impl.distributed_optimizer import DistributedOptimizer
from keras_impl.optimizers import LearningRates, build_optimizer

hvd.init()
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
rates = np.array([0.1, 0.05, 0.025])
optimizer = build_optimizer(
    model, OptimizerConfig(), learning_rates=rates, device=DeviceConfig(mixed_precision=True)
)
wrapped = DistributedOptimizer(optimizer)
schedule = wrapped.inner_optimizer._learning_rate
assert isinstance(schedule, LearningRates), schedule
assert [float(schedule(step)) for step in range(3)] == [np.float32(rate) for rate in rates]
assert len(wrapped.variables) == len(optimizer.variables)
print("wrapped")
"""


@pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="Keras is not installed")
def test_mixed_precision_is_wrapped_with_its_learning_rates() -> None:
    variables = {"PYTHONPATH": str(ROOT), "HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={**os.environ, **variables}, capture_output=True, text=True, timeout=200
    )
    assert done.stdout.strip() == "wrapped", done.stderr
