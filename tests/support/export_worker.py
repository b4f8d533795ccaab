"""What this project computes and exports, for `test_export.py`: on a server of ranks, and with the extras for ONNX.

Each run of the folder has images.npy, normalized test images (batch, height, width, channels). A framework writes
outputs-<framework>.npy, (batch, outputs), and every exporter its file beside it.
"""

import importlib
import sys
from pathlib import Path

import numpy as np

from common.trained.export import SUFFIXES
from common.trained.trained_model import read_trained_model
from launch.__main__ import main as launch


def export_all(target, runs):
    """Export every run, by the program that `launch export` starts, or by the command itself for ONNX.

    Args:
        target: torch, keras or onnx.
        runs: folder of the runs.
    """
    for run in sorted(Path(runs).iterdir()):
        output = run / f"model{SUFFIXES[target]}"
        if target == "onnx":
            assert launch(["export", str(run), "--to", "onnx", "--output", str(output)]) == 0
            continue
        classifier = importlib.import_module(f"{target}_impl.predict").build_classifier(read_trained_model(run))
        np.save(run / f"outputs-{target}.npy", classifier(np.load(run / "images.npy")))
        assert importlib.import_module(f"{target}_impl.export").main([str(run), "--output", str(output)]) == 0


if __name__ == "__main__":
    export_all(*sys.argv[1:])
