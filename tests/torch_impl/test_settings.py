"""Settings that only a PyTorch process can try, in one of its own."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import torch

from common.config import DeviceConfig
from fake_ranks import alone
from torch_impl import distributed

cudnn, products = torch.backends.cudnn, torch.backends.cuda.matmul
for is_tried in (True, False):
    distributed.pin_device(DeviceConfig(device="cpu", cudnn_benchmark=is_tried, tf32=is_tried), alone())
    # On a GPU, other algorithms add in another order each time: no training would repeat bit for bit.
    assert (cudnn.benchmark, cudnn.deterministic) == (is_tried, not is_tried)
    assert {cudnn.conv.fp32_precision, products.fp32_precision} == {"tf32" if is_tried else "ieee"}
"""


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_settings_of_gpus_reach_pytorch() -> None:
    settings = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests" / "support")])}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=settings, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
