"""The two trainers build the same models, each framework in a process of its own (`twins_worker.py`).

What they compute is compared in `test_parity.py`, their sources in `form/test_twins.py`.
"""

import numpy as np
import pytest
from frameworks import call, names_of
from processes import TESTS

from common.model.specs import model_spec


@pytest.mark.parametrize("check", names_of(TESTS / "twins_worker.py"))
def test_both_build_what_the_numbers_say(framework, check, tmp_path):
    call(framework, f"twins_worker:{check}", framework, folder=tmp_path)


def test_torchvision_has_our_resnet34(tmp_path):
    call("torch", "twins_worker:torchvision_has_our_resnet34", folder=tmp_path)


def test_published_sizes_of_resnet34():
    thesis = model_spec("resnet34", input_shape=(1, 148, 197), outputs=9)
    assert (thesis.parameters, round(thesis.multiply_adds / 1e9, 3)) == (21_283_017, 2.306)
    assert sum(np.prod(weight.shape) for weight in thesis.weights if not weight.trainable) == 17_024
    assert model_spec("resnet34", input_shape=(3, 224, 224), outputs=1000).parameters == 21_797_672


@pytest.mark.ci
def test_same_help(tmp_path):
    torch, keras = (call(name, "twins_worker:help_of", name, folder=tmp_path) for name in ("torch", "keras"))
    assert len(torch) > 1000
    assert torch.replace("torch_impl", "keras_impl") == keras
    assert all(f"--{flag}" in torch for flag in ("recipe", "max-steps", "lr-scaling"))
