"""For all tests: the marker `unit`, the garbage collector, and where a skip is a failure.

With TWINS_NO_SKIP=1 everything that tests need was installed, and a test that is skipped fails.
"""

import gc
import importlib.util
import os
from collections.abc import Generator

import hypothesis
import pytest

pytest_plugins = ["rank_server"]

hypothesis.settings.register_profile("twins", deadline=None)  # the machine may be busy
hypothesis.settings.load_profile("twins")


@pytest.fixture(params=["torch", "keras"])
def framework(request: pytest.FixtureRequest) -> str:
    """Each framework that is installed."""
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    return request.param


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that start no ranks, cluster or browser as unit tests."""
    for item in items:
        if not any(item.get_closest_marker(name) for name in ("ranks", "cluster", "browser")):
            item.add_marker("unit")


def pytest_collection_finish() -> None:
    """Keep the collector from going through what test files imported again and again: 5 % of the time of unit tests."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skipped test into a failure that names the reason."""
    report = yield
    if not hasattr(report, "wasxfail"):
        refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a whole file that skips itself."""
    report = yield
    refuse_skip(report)
    return report


def refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Make a failure of a skip where nothing may be missing."""
    if report.skipped and os.environ.get("TWINS_NO_SKIP") == "1":
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid} was skipped where nothing may be missing: {reason}"
