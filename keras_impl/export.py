"""Write the model of a run for plain Keras: layers and weights. The run may have been trained by either framework.

python keras_impl/export.py runs/NAME --output model.keras

    keras.saving.load_model("model.keras")            in any process with Keras: every layer is one of its own
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import keras_impl.quiet_tensorflow  # isort: skip  # noqa: F401 - before Keras: TensorFlow without its start-up lines
import keras

from common.trained.export import run_export
from common.trained.trained_model import TrainedModel
from common.utils.command_line import program_name
from keras_impl.batch_norm import BatchNormalization
from keras_impl.predict import rebuild


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    return run_export(write_model, arguments, program=program_name(__file__), target="keras")


def write_model(trained: TrainedModel, file: Path) -> None:
    """Write the model: images are (batch, height, width, channels)."""
    ours = rebuild(trained)
    plain = keras.models.clone_model(ours, clone_function=_plain)
    plain.set_weights(ours.get_weights())
    plain.save(file)


def _plain(layer: keras.layers.Layer) -> keras.layers.Layer:
    """Return a new layer of Keras' own: outside training, ours computes what Keras' BatchNormalization does."""
    kind = keras.layers.BatchNormalization if isinstance(layer, BatchNormalization) else type(layer)
    return kind.from_config(layer.get_config())


if __name__ == "__main__":
    sys.exit(main())
