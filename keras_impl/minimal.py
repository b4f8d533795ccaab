"""The smallest honest Horovod script in tf.keras: the article's dense 500-256-10 model, on synthetic data.

    horovodrun -np 2 python keras_impl/minimal.py                           two ranks, each with batches of 32
    python keras_impl/minimal.py --batch-size 64 --learning-rate 0.02       the same updates in one process

Of this project it needs `horovod_keras3` only. For the trainer with all settings, see train.py.
"""

import argparse
import time
from pathlib import Path

import keras_impl.quiet_tensorflow  # isort: skip  # noqa: F401 - TensorFlow without its start-up lines
import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf

from keras_impl.horovod_keras3 import DistributedOptimizer

parser = argparse.ArgumentParser(description="Train a dense 500-256-10 model with tf.keras on Horovod.")
parser.add_argument("--batch-size", type=int, default=32, help="per rank (default: %(default)s)")
parser.add_argument("--learning-rate", type=float, default=0.01, help="per rank (default: %(default)s)")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
parser.add_argument("--output", type=Path, help="save the model to this new .keras file (default: nowhere)")
args = parser.parse_args()
if args.output and args.output.exists():
    parser.error(f"argument --output: no file is overwritten. Received: {args.output}, which exists")

hvd.init()  # 1. Init: the processes of the launcher find each other.
gpus = tf.config.list_physical_devices("GPU")
tf.config.set_visible_devices(gpus[hvd.local_rank() : hvd.local_rank() + 1], "GPU")  # 2. Pin: one GPU per process.
for gpu in tf.config.get_visible_devices("GPU"):
    tf.config.experimental.set_memory_growth(gpu, True)
keras.config.set_floatx(args.dtype)

random = np.random.default_rng(0)  # the same on all ranks
labels = random.integers(10, size=5120)
inputs = random.normal(size=(10, 500))[labels] + random.normal(scale=4.0, size=(5120, 500))  # around 10 centers
# 3. Shard: each rank takes every size-th sample, or all would compute the same. Equal shards: none waits for another.
samples = 4096 - 4096 % (args.batch_size * hvd.size())
shard = slice(hvd.rank(), samples, hvd.size())

keras.utils.set_random_seed(hvd.rank())  # each rank draws its own weights, until the broadcast
draw = {"kernel_initializer": keras.initializers.VarianceScaling(1 / 3, distribution="uniform")}  # as PyTorch does
dense = [keras.layers.Dense(256, activation="relu", **draw), keras.layers.Dense(10, activation="softmax", **draw)]
model = keras.Sequential([keras.Input((500,)), *dense])
optimizer = keras.optimizers.SGD(args.learning_rate * hvd.size())  # 4. Scale with the global batch.
optimizer = DistributedOptimizer(optimizer)  # 5. Wrap: average the gradients; under Keras 3 Horovod's wrapper does not.
model.compile(optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"], jit_compile=False)
optimizer.build(model.trainable_variables)
# 6. Broadcast: all ranks start from rank 0's state.
hvd.broadcast_variables([variable.value for variable in model.variables + optimizer.variables], root_rank=0)
for epoch in range(1, args.epochs + 1):
    start = time.perf_counter()
    (loss,) = model.fit(inputs[shard], labels[shard], args.batch_size, shuffle=False, verbose=0).history["loss"]
    if hvd.rank() == 0:
        speed = samples / (time.perf_counter() - start)
        print(f"np {hvd.size()}, epoch {epoch}/{args.epochs}: loss {loss:.4f}, {speed:,.0f} images/s", flush=True)

if hvd.rank() == 0:  # 7. Rank 0 only: the weights are the same everywhere.
    loss, accuracy = model.evaluate(inputs[4096:], labels[4096:], verbose=0)
    print(f"test accuracy: {accuracy:.4f}")
    if args.output:
        model.save(args.output)
