"""Write the model of a run for plain PyTorch: its `state_dict`. The run may have been trained by either framework.

python torch_impl/export.py runs/NAME --output model.pt

    torch.load("model.pt", weights_only=True)         name -> tensor; of resnet34 the names are torchvision's
"""

import io
import sys
from collections.abc import Sequence
from pathlib import Path

import torch_impl  # isort: skip  # noqa: F401 - before PyTorch: switches to the environment that has it
import torch

from common.trained.export import run_export
from common.trained.trained_model import TrainedModel
from common.utils.command_line import program_name
from torch_impl.predict import rebuild


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    return run_export(write_model, arguments, program=program_name(__file__), target="torch")


def write_model(trained: TrainedModel, file: Path) -> None:
    """Write the `state_dict`: images are (batch, channels, height, width)."""
    content = io.BytesIO()  # given a path, PyTorch writes by itself, and a full disk is no OSError
    torch.save(rebuild(trained).state_dict(), content)
    file.write_bytes(content.getbuffer())


if __name__ == "__main__":
    sys.exit(main())
