"""Loads models saved by a distributed run where Horovod cannot be imported, and trains them on.

`python load_without_horovod_worker.py FOLDER` prints, for each FOLDER/*.keras: file, optimizer's class, its module,
iterations before and after one step.
"""

import sys
from pathlib import Path

sys.modules["horovod"] = None  # any import of it now raises ImportError

import keras  # noqa: E402
import numpy as np  # noqa: E402

import keras_impl.update_rules  # noqa: E402, F401 - registers the classes of ours that a file may name

for file in sorted(Path(sys.argv[1]).glob("*.keras")):
    model = keras.saving.load_model(file)
    optimizer, before = type(model.optimizer), int(model.optimizer.iterations)
    model.fit(np.zeros((8, 4)), np.ones((8, 3)), verbose=0)
    print(file.stem, optimizer.__name__, optimizer.__module__, before, int(model.optimizer.iterations))
