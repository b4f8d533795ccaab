"""The table of what is proven, in tests/README.md: each test that it names exists, in the tier that it says."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TIERS = ("quick", "ci", "long", "gpu", "lint")  # of which a row gives the first in which one of its tests has a case
COLLECT = """
import json, sys, pytest

class Items:
    def pytest_collection_finish(self, session):
        items = [(item.nodeid, [mark.name for mark in item.iter_markers()]) for item in session.items]
        print("=== ", json.dumps(items))

pytest.main(["--collect-only", "-q", "-m", "gpu or not gpu", *sys.argv[1:]], plugins=[Items()])
"""


def read_rows(text):
    """Return (claim, tests, tier) of each row of the table."""
    table = text.split("## What is proven")[1].split("\n## ")[0]
    lines = [line.strip("|") for line in table.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.split("|")] for line in lines]
    assert cells[0] == ["claim", "tolerance", "test", "tier"]
    return [(claim, re.findall(r"`([^`]+)`", tests), tier) for claim, _, tests, tier in cells[1:]]


def tier_of(test, markers):
    """Return when a test runs."""
    if test.startswith("tests/form/"):
        return "lint"
    slow = {"ci": "ci", "cluster": "ci", "browser": "ci", "long": "long", "gpu": "gpu"}
    return max((slow[name] for name in markers if name in slow), key=TIERS.index, default="quick")


def wrong_rows(rows, items):
    """Return what is wrong with rows; items: (name, markers) of all tests."""
    wrong = []
    for claim, tests, tier in rows:
        tiers = set()
        for test in tests:
            name = f"tests/{test}"
            # A folder, a file, or a test with all its cases.
            cases = [(one, marks) for one, marks in items if one == name or one.startswith((f"{name}::", f"{name}["))]
            cases += [(one, marks) for one, marks in items if name.endswith("/") and one.startswith(name)]
            if not cases:
                wrong.append(f"{test} is no test: {claim}")
            tiers |= {tier_of(one, marks) for one, marks in cases}
        first = min(tiers, key=TIERS.index, default="no test")
        if first != tier:
            wrong.append(f"its first case is {first}, not {tier}: {claim}")
    return wrong


def test_each_claim_names_tests_that_exist_in_its_tier():
    rows = read_rows((ROOT / "tests/README.md").read_text(encoding="utf-8"))
    assert len(rows) > 20
    files = {ROOT / "tests" / test.partition("::")[0] for _, tests, _ in rows for test in tests}
    command = [sys.executable, "-c", COLLECT, *sorted(str(file.relative_to(ROOT)) for file in files if file.exists())]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("=== ")]
    assert wrong_rows(rows, json.loads(line.removeprefix("=== "))) == []


@pytest.mark.parametrize(
    ("tests", "tier", "wrong"),
    [
        ("`a/test_b.py`", "quick", ""),
        ("`a/test_b.py::test_c`", "ci", ""),
        ("`a/test_b.py::test_d`, `form/test_e.py`", "long", ""),
        ("`form/`", "lint", ""),
        ("`a/test_b.py::test_`", "quick", "a/test_b.py::test_ is no test: claim"),
        ("`a/test_b.py::test_c`", "quick", "its first case is ci, not quick: claim"),
        ("", "quick", "its first case is no test, not quick: claim"),
    ],
)
def test_a_wrong_row_is_found(tests, tier, wrong):
    page = "\n## What is proven\n| claim | tolerance | test | tier |\n|---|---|---|---|\n"
    items = [
        ("tests/a/test_b.py::test_a", {"unit"}),
        ("tests/a/test_b.py::test_c[1]", {"ranks", "ci"}),
        ("tests/a/test_b.py::test_c[2]", {"ranks", "ci", "long"}),
        ("tests/a/test_b.py::test_d", {"cluster", "long"}),
        ("tests/form/test_e.py::test_f", {"unit"}),
    ]
    found = wrong_rows(read_rows(f"{page}| claim | 1e-1 | {tests} | {tier} |\n\n## Next"), items)
    assert found[:1] == ([wrong] if wrong else [])
