"""Computes every model in float32, as in training, and what normalizes also as in inference.

`onednn_worker.py FRAMEWORK FOLDER --onednn on` writes the arrays of each model and mode into the folder.

Prints the model before each; oneDNN's own log of kernels (`ONEDNN_VERBOSE=1`) stands between.
"""

import importlib
import sys
from pathlib import Path

from common.checks.parity_cases import IMAGES, MODES, has_batch_norm, make_spec, random_weights
from common.model.weights import save_weights


def main(framework, folder, onednn):
    """Write the arrays of each model and mode into the folder."""
    outputs = importlib.import_module(f"{framework}_impl.parity_worker").outputs
    importlib.import_module(f"{framework}_impl.onednn").use_onednn(onednn)
    for model in IMAGES:
        print(f"model {model}", flush=True)
        spec = make_spec(model)
        weights = {name: value.astype("float32") for name, value in random_weights(spec).items()}
        for mode in MODES if has_batch_norm(model) else ["training"]:
            arrays = outputs(spec, weights, "float32", mode == "training")
            save_weights(Path(folder) / f"{model}-{mode}.safetensors", arrays, durable=False)


if __name__ == "__main__":
    main(*sys.argv[1:3], sys.argv[4])
