"""A plugin of pytest: each test, with its fixtures, has a time limit (pytest-timeout's), by its markers.

A test over its limit fails by an exception, which is raised again every half a minute: what cleans up may hang too,
such as the end of a `with Popen(...)`. If Python gets no turn to raise it, the process is ended, which xdist reports
by the test's name.
"""

import faulthandler
import signal
import sys

import pytest

LIMITS = {"ranks": 400, "browser": 400, "ci": 600, "cluster": 900, "long": 1800}  # seconds; the default is pyproject's
AGAIN = 30  # seconds between two exceptions
SETTINGS = pytest.StashKey()


def pytest_collection_modifyitems(items):
    for item in items:
        limits = [limit for name, limit in LIMITS.items() if item.get_closest_marker(name)]
        if limits and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(max(limits)))


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(item, settings):
    done = yield
    item.stash[SETTINGS] = settings
    if settings.method == "signal":
        signal.setitimer(signal.ITIMER_REAL, settings.timeout, AGAIN)
        faulthandler.dump_traceback_later(settings.timeout + 4 * AGAIN, file=sys.__stderr__, exit=True)
    return done


@pytest.hookimpl(wrapper=True)
def pytest_timeout_cancel_timer(item):
    faulthandler.cancel_dump_traceback_later()
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item):
    """Set the limit anew after a failure, at which pytest-timeout lifts it."""
    if SETTINGS in item.stash and not any(signal.getitimer(signal.ITIMER_REAL)):
        item.ihook.pytest_timeout_set_timer(item=item, settings=item.stash[SETTINGS])
