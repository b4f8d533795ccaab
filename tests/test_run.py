"""`tests/run.py`: totals and exit codes of its calls of pytest."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

RUN = Path(__file__).with_name("run.py")


@pytest.fixture(scope="module")
def run() -> ModuleType:
    spec = importlib.util.spec_from_file_location("run", RUN)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("codes", "code"),
    [([0, 0], 0), ([0, 5], 0), ([5, 0], 0), ([5, 5], 5), ([0, 1], 1), ([5, 1], 1), ([1, 0], 1), ([2], 2)],
)
def test_the_exit_code_is_that_of_the_first_failure(run: ModuleType, codes: list[int], code: int) -> None:
    assert run.exit_code(codes) == code


def test_outcomes_are_counted(run: ModuleType, tmp_path: Path) -> None:
    suite = '<testsuite tests="9" failures="2" errors="1" skipped="0" />'
    (tmp_path / "report.xml").write_text(f"<testsuites>{suite}</testsuites>")
    assert run.counts_of(tmp_path / "report.xml") == {"passed": 6, "failed": 2, "errors": 1}
