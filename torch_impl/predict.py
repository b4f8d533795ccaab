"""Evaluate a run, or classify images with it, in PyTorch. The run may have been trained by either framework.

python torch_impl/predict.py runs/NAME                      test loss, accuracy, confusion matrix
python torch_impl/predict.py runs/NAME a.png b.png          classes and probabilities of images
"""

import sys
from collections.abc import Sequence

import torch_impl  # isort: skip  # noqa: F401 - before PyTorch: switches to the environment that has it
import numpy as np
import torch
from torch import nn

from common.distributed.pinning import report_missing_onednn
from common.trained.prediction import Classifier, TrainedModel, run_prediction
from common.utils.command_line import program_name
from torch_impl.models import build_model
from torch_impl.onednn import onednn_is_on, use_onednn
from torch_impl.weights import load_weights


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    return run_prediction(build_classifier, arguments, program=program_name(__file__))


def rebuild(trained: TrainedModel) -> nn.Module:
    """Return the model of a run with its weights."""
    use_onednn(trained.config.model.onednn)
    report_missing_onednn(trained.config.model.onednn, is_on=onednn_is_on())
    model = build_model(trained.spec, trained.config.model)
    load_weights(model, trained.weights, spec=trained.spec)
    return model


def build_classifier(trained: TrainedModel) -> Classifier:
    """Return a function from images (batch, height, width, channels) to linear outputs (batch, outputs)."""
    model = rebuild(trained).eval()

    @torch.inference_mode()
    def classify(images: np.ndarray) -> np.ndarray:
        return model(torch.from_numpy(images).permute(0, 3, 1, 2)).numpy()

    return classify


if __name__ == "__main__":
    sys.exit(main())
