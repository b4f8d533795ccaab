"""For all tests: the fixture `framework` and Hypothesis's profiles; the plugins are in `support/`."""

import gc
import importlib.util
import signal

import hypothesis
import pytest

pytest_plugins = ["rank_server", "selection", "time_limits"]

# No deadline, as the machine may be busy. tests/run.py chooses by --hypothesis-profile.
hypothesis.settings.register_profile("quick", deadline=None, max_examples=25, derandomize=True)
hypothesis.settings.register_profile("ci", deadline=None, max_examples=100, derandomize=True)
hypothesis.settings.register_profile("fuzz", deadline=None, max_examples=2000)
hypothesis.settings.load_profile("quick")

# A shell that starts tests in the background lets them ignore Ctrl-C, and with them all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(params=["torch", "keras"])
def framework(request):
    """Each framework that is installed."""
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    return request.param


def pytest_collection_finish():
    """Keep the collector from going through what test files imported again and again: 5 % of the time of unit tests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 1000)
