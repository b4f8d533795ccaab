"""A plugin of pytest: which tests run, in what order, and which of them one worker runs one after the other.

With TWINS_NO_SKIP=1 everything that tests need was installed, and a test that is skipped fails.
"""

import os
import re
from collections import Counter
from types import SimpleNamespace

import pytest
from xdist.scheduler import LoadScopeScheduling

STARTERS = ("cluster", "ranks", "browser")  # markers of what a test starts, the longest first
NO_ORIGINALS = "no original files"


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items, config):
    """Mark the tests that start nothing as unit tests, and leave those for a GPU to runs that name them."""
    for item in items:
        if not any(map(item.get_closest_marker, STARTERS)):
            item.add_marker("unit")
        if item.get_closest_marker("cluster") and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group("cluster"))  # they take the same ports and network namespaces
    if not re.search(r"\bgpu\b", config.option.markexpr):
        chosen = [item for item in items if not item.get_closest_marker("gpu")]
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("gpu")])
        items[:] = chosen
    for item in items:
        if item.get_closest_marker("originals") and not originals_are_here():
            item.add_marker(pytest.mark.skip(reason=NO_ORIGINALS))


def originals_are_here():
    from made_thesis import ORIGINALS

    return ORIGINALS.is_dir()


def pytest_report_teststatus(report):
    """Count tests of raw files that are in no clone by themselves, to the last line."""
    if report.skipped and NO_ORIGINALS in str(report.longrepr):
        return f"not run: {NO_ORIGINALS}", "o", "NOT RUN"
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Turn a skipped test into a failure that names the reason."""
    report = yield
    if not hasattr(report, "wasxfail"):
        refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """The same for a whole file that skips itself."""
    report = yield
    refuse_skip(report)
    return report


def refuse_skip(report):
    """Make a failure of a skip where nothing may be missing but the original files."""
    if report.skipped and os.environ.get("TWINS_NO_SKIP") == "1":
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        if NO_ORIGINALS not in str(reason):
            report.outcome = "failed"
            report.longrepr = f"{report.nodeid} was skipped where nothing may be missing: {reason}"


class Order:
    """A plugin by itself, as one has each hook once."""

    @pytest.hookimpl(trylast=True)  # after -m has selected
    def pytest_collection_modifyitems(self, items):
        """Sort groups: the longest start first, and unit tests fill up what is left of the other workers' time."""
        tests, kinds = Counter(map(group_of, items)), {}
        for item in items:
            kind = next((n for n, name in enumerate(STARTERS) if item.get_closest_marker(name)), len(STARTERS))
            kinds[group_of(item)] = min(kind, kinds.get(group_of(item), kind))
        items.sort(key=lambda item: (kinds[group_of(item)], -tests[group_of(item)], group_of(item), *place_of(item)))


def place_of(item):
    """Return where a test comes in its group: a file after the other, as its fixtures live as long.

    In a file, a framework and a start of ranks after the other, as few servers of ranks are live at once.
    """
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    start = item.get_closest_marker("start")
    framework = {"torch": 0, "keras": 1}.get(str(parameters.get("framework")), 2)
    return str(item.path), framework, str(start.args[0]) if start else ""


def group_of(item):
    """Return what one worker runs in one go: the tests of an `xdist_group`, or else of a file."""
    marker = item.get_closest_marker("xdist_group")
    return marker.args[0] if marker else item.nodeid.partition("::")[0]


@pytest.hookimpl(wrapper=True)
def pytest_collection_finish(session):
    """Send the groups to the scheduler with the tests' names; --dist loadgroup does not since pytest 9.2."""
    if hasattr(session.config, "workerinput"):
        items = session.items
        session.items = [SimpleNamespace(nodeid=f"{group_of(item)}@{item.nodeid}") for item in items]
        yield
        session.items = items
    else:
        yield


class Groups(LoadScopeScheduling):
    """Schedule the groups of `group_of`, in the order in which they were collected."""

    def _split_scope(self, nodeid):
        return nodeid.partition("@")[0]

    def remove_node(self, node):
        """Return the test that ended its process, which would else be run again, and take its groups up again."""
        groups = self.assigned_work[node]
        left = [(group, test) for group, tests in groups.items() for test, is_done in tests.items() if not is_done]
        for group, test in left[:1]:
            groups[group][test] = True
        self.assigned_work[node] = {group: tests for group, tests in groups.items() if not all(tests.values())}
        super().remove_node(node)
        return left[0][1].partition("@")[2] if left else None


def pytest_xdist_make_scheduler(config, log):
    config.option.loadscopereorder = False
    return Groups(config, log)


def pytest_configure(config):
    config.pluginmanager.register(Order())
