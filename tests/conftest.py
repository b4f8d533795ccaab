"""For all tests: where a skip is a failure, because everything that tests need was installed (TWINS_NO_SKIP=1)."""

import os
from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skip into a failure that names the reason, if the environment says so."""
    report = yield
    if report.skipped and os.environ.get("TWINS_NO_SKIP") == "1" and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped where nothing may be missing: {reason}"
    return report
