"""The tables of support in the READMEs of the frameworks are what `support.py` finds."""

import sys

import pytest
from processes import ROOT, run_command

pytestmark = [pytest.mark.ranks, pytest.mark.ci]


def test_the_table_is_what_the_strategies_do(framework, tmp_path):
    finished = run_command([sys.executable, str(ROOT / f"{framework}_impl/support.py")], folder=tmp_path)
    assert finished.code == 0 and finished.stdout.count("| works |") >= 4, finished
    assert finished.stdout in (ROOT / f"{framework}_impl/README.md").read_text()
