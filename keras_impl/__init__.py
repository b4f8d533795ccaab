"""The tf.keras trainer. Its programs import this first, to switch to the environment that has the framework."""

import os
import sys
from pathlib import Path

if sys.argv[0] == "-m" or Path(sys.argv[0]).resolve().parent.name == __name__:  # not in a user's own script
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # our packages hide others of their names

    from common.utils.environments import hand_over

    hand_over("keras")

# What Keras reads when it is imported, and what would change which Keras it is and in what it computes.
os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["KERAS_HOME"] = f"{os.devnull}/keras"  # which has no keras.json, and takes none
os.environ.pop("TF_USE_LEGACY_KERAS", None)
