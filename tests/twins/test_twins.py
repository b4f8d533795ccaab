"""The two trainers build the same models, each framework in a process of its own (`twins_worker.py`).

What they compute is compared in `test_parity.py`, their sources in `form/test_twins.py`.
"""

import pytest
from frameworks import call, names_of
from processes import TESTS


@pytest.mark.parametrize("check", names_of(TESTS / "twins_worker.py"))
def test_both_build_what_the_numbers_say(framework, check, tmp_path):
    call(framework, f"twins_worker:{check}", framework, folder=tmp_path)


def test_torchvision_has_our_resnet34(tmp_path):
    call("torch", "twins_worker:torchvision_has_our_resnet34", folder=tmp_path)


@pytest.mark.ci
def test_same_help(tmp_path):
    torch, keras = (call(name, "twins_worker:help_of", name, folder=tmp_path) for name in ("torch", "keras"))
    assert len(torch) > 1000
    assert torch.replace("torch_impl", "keras_impl") == keras
    assert all(f"--{flag}" in torch for flag in ("recipe", "max-steps", "lr-scaling"))
