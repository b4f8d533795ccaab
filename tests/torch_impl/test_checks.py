"""The checks of `torch_checks.py`, which run in one process with PyTorch."""

from pathlib import Path

import pytest
from frameworks import assert_check, names_of

SCRIPT = Path(__file__).parent / "torch_checks.py"


@pytest.mark.parametrize("check", names_of(SCRIPT))
def test_in_a_process_with_pytorch(check):
    assert_check(SCRIPT, check)
