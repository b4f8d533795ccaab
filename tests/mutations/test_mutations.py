"""The runner of mutations on a tree of two files, and the list: each row fits the tree."""

import importlib.util
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SPECIFICATION = importlib.util.spec_from_file_location("mutations", HERE / "run.py")
mutations = importlib.util.module_from_spec(SPECIFICATION)
SPECIFICATION.loader.exec_module(mutations)

PRODUCT = """
def double(value):
    return 2 * value

def triple(value):
    return 3 * value

def unused(value):
    return None
    return None
"""
TESTS = """
import subprocess, sys
import product

def test_double():
    assert product.double(2) == 4

def test_in_a_process():
    code = "import product; print(product.triple(2))"
    done = subprocess.run([sys.executable, "-c", code], cwd="/", capture_output=True, text=True)
    assert done.stdout == "6\\n"
"""


def row(old, new, test="test_double", tier="quick"):
    return {"file": "product.py", "old": old, "new": new, "tests": [f"test_product.py::{test}"], "tier": tier}


FOUND = row("return 2 * value", "return 3 * value")
FOUND_BY_A_PROCESS = row("return 3 * value", "return 2 * value", test="test_in_a_process")


@pytest.fixture
def tree(tmp_path):
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True, timeout=30)
    (tmp_path / "product.py").write_text(PRODUCT)
    (tmp_path / "test_product.py").write_text(TESTS)
    (tmp_path / "pyproject.toml").write_text(
        '[tool.pytest.ini_options]\nmarkers = ["ci", "cluster", "browser", "long"]'
    )
    return tmp_path


def run(tree, *rows, **options):
    before = (tree / "product.py").read_text()
    wrong = mutations.run(list(rows), root=tree, results=tree / "build/mutations.json", **options)
    assert (tree / "product.py").read_text() == before
    return wrong


@pytest.mark.ci
def test_a_break_that_no_test_finds_is_named_and_tried_again_and_the_others_are_not(tree, capsys):
    survivor = row("return 3 * value", "return 5 * value")
    (wrong,) = run(tree, FOUND, FOUND_BY_A_PROCESS, survivor)
    assert wrong.startswith("not found by test_product.py::test_double: product.py: return 3 * value -> return 5")
    capsys.readouterr()
    (tree / "unrelated.py").touch()
    assert len(run(tree, FOUND, FOUND_BY_A_PROCESS, survivor)) == 1
    assert "3 breaks, 2 of them found earlier" in capsys.readouterr().out
    (tree / "test_product.py").write_text(TESTS + "# changed\n")
    run(tree, FOUND)
    assert "1 breaks, 0 of them found earlier" in capsys.readouterr().out


@pytest.mark.ci
def test_a_row_that_does_not_fit_is_an_error_and_tests_that_fail_unbroken_prove_nothing(tree):
    missing, twice = run(tree, row("return 4 * value", ""), row("return None", ""))
    assert "the line 0 times, not once" in missing and "the line 2 times, not once" in twice
    rows = {
        "not with a test that fails": row("return 2 * value", "return 2 *"),
        "do not pass unbroken": row("return 2 * value", "return 3 * value", test="test_none"),
        "(exit code 5)": row("return 2 * value", "return 3 * value", tier="ci"),  # of another tier
    }
    for message, wrong_row in rows.items():
        (wrong,) = run(tree, wrong_row)
        assert message in wrong
    (wrong,) = run(tree, FOUND, seconds=0)
    assert "no end after" in wrong
    (tree / "product.py").write_text(PRODUCT.replace("2 * value", "1 + value"))
    (wrong,) = run(tree, FOUND_BY_A_PROCESS | {"tests": ["test_product.py"]})
    assert "do not pass unbroken" in wrong and "test_double" in wrong


def test_each_row_of_the_list_breaks_one_line_of_the_product():
    rows = mutations.read_rows(mutations.LIST)
    assert not mutations.misfits(rows, root=ROOT)
    for one in rows:
        assert one["tests"] and one["tier"] in ("quick", "ci")
        for test in one["tests"]:
            file, _, name = test.partition("[")[0].partition("::")
            assert f"def {name}(" in (ROOT / file).read_text() or not name, test
    assert len({(one["file"], one["old"], one["new"]) for one in rows}) == len(rows)
