"""The checks of `keras_checks.py`, which run in one process with Keras."""

from pathlib import Path

import pytest
from frameworks import assert_check, names_of

SCRIPT = Path(__file__).parent / "keras_checks.py"


@pytest.mark.parametrize("check", names_of(SCRIPT))
def test_in_a_process_with_keras(check):
    assert_check(SCRIPT, check)
