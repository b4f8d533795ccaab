"""How tests are chosen, ordered, limited in time and counted: `run.py` and its plugins, on planted tests."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROOT = TESTS.parent


SPECIFICATION = importlib.util.spec_from_file_location("run", TESTS / "run.py")
run = importlib.util.module_from_spec(SPECIFICATION)
SPECIFICATION.loader.exec_module(run)


@pytest.mark.parametrize(
    ("further", "workers"),
    [
        ([], "3"),
        (["tests/twins", "-k", "averaging"], "3"),
        (["tests/test_run.py", "tests/test_pages.py"], "3"),
        (["tests/test_run.py::test_one", "tests/test_run.py::test_two", "-x"], "0"),
    ],
)
def test_one_file_gets_no_second_process(further, workers):
    command = run.command("quick", further)
    assert command[command.index("-n") + 1] == workers
    assert command[-len(further) or len(command) :] == further


def test_an_unknown_selection_is_one_line(capsys):
    with pytest.raises(SystemExit) as end:
        run.main(["slow"])
    assert end.value.code == 2
    assert re.fullmatch(r"usage: .*quick\|ci\|most\|all\|gpu.*\n", capsys.readouterr().err)


def test_only_what_depends_on_a_change_is_run(monkeypatch, capsys):
    called = []
    monkeypatch.setattr(run.os, "execv", lambda program, command: called.append(command))
    monkeypatch.setattr(run.os, "chdir", lambda folder: None)
    monkeypatch.syspath_prepend(TESTS)
    import changed

    files = ["tests/test_a.py", "tests/b/test_b.py"]
    answers = {"1": (files, "2 chosen"), "all": (None, "all chosen"), "none": ([], "0 chosen")}
    monkeypatch.setattr(changed, "choose", answers.get)
    run.main(["quick", "--changed", "1", "-x"])
    run.main(["quick", "--changed", "all", "-x"])
    assert called[0][-3:] == [*files, "-x"] and called[1] == [word for word in called[0] if word not in files]
    with pytest.raises(SystemExit) as end:
        run.main(["quick", "--changed", "none"])
    assert end.value.code == 0 and len(called) == 2
    assert capsys.readouterr().out.splitlines()[-1] == "=== since none, 0 chosen"


PLANTED = {
    "test_hangs.py": """
import subprocess, time, pytest

@pytest.fixture
def stuck():
    time.sleep(60)

@pytest.fixture
def never_ends():
    yield
    time.sleep(60)

def test_waits_at_the_end_of_a_process():
    with subprocess.Popen(["sleep", "60"]):
        time.sleep(60)

def test_is_set_up(stuck):
    pass

def test_fails_and_is_torn_down(never_ends):
    assert False

def test_fails_and_captures(capsys):
    assert False

def test_after_them():
    pass

@pytest.mark.ranks
def test_has_more_time():
    time.sleep(2.5)

@pytest.mark.timeout(0.5)
def test_gives_python_no_turn():
    import ctypes, signal
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    ctypes.PyDLL(None).sleep(60)

def test_in_another_process():
    pass
""",
    "test_one.py": """
import pytest

@pytest.mark.cluster
def test_cluster():
    pass

def test_unit():
    pass
""",
    "test_other.py": """
import pytest

@pytest.mark.cluster
def test_cluster():
    pass

@pytest.mark.ranks
def test_ranks():
    pass

@pytest.mark.gpu
def test_gpu():
    assert False

@pytest.mark.originals
def test_originals():
    pass

@pytest.mark.originals
@pytest.mark.long
def test_not_selected():
    pass

def test_skips():
    pytest.skip("no such program")
""",
}
ORDER = """
import pathlib, pytest

@pytest.fixture(autouse=True)
def _order(request, worker_id):
    with pathlib.Path(__file__).with_name("order").open("a") as file:
        file.write(f"{request.node.name} {worker_id}\\n")
"""


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planted")
    (folder / "tests/support").mkdir(parents=True)
    for name in ("selection.py", "time_limits.py", "made_thesis.py"):
        shutil.copy(TESTS / "support" / name, folder / "tests/support")
    limits = folder / "tests/support/time_limits.py"
    limits.write_text(re.sub(r"AGAIN = \d+", "AGAIN = 1", limits.read_text()))
    conftest = (TESTS / "conftest.py").read_text().replace('"rank_server", ', "")  # no test here starts ranks
    (folder / "tests/conftest.py").write_text(conftest + ORDER)
    for name, text in PLANTED.items():
        (folder / "tests" / name).write_text(text)
    shutil.copy(TESTS / "run.py", folder / "tests")
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def run_planted(folder, *arguments, **variables):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "TWINS"))}
    environment |= {"PYTHONPATH": str(ROOT), "THESIS_DATA": str(folder / "none"), **variables}
    command = [sys.executable, "tests/run.py", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100)


@pytest.mark.ci
def test_a_test_that_hangs_fails_by_name_and_the_others_run(planted):
    began = time.monotonic()
    done = run_planted(planted, "quick", "tests/test_hangs.py", "tests/test_one.py", "-o", "timeout=1")
    assert time.monotonic() - began < 50
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.count("node down: ") == 1  # of the last one alone
    failed = set(re.findall(r"^(?:FAILED|ERROR) tests/test_hangs.py::(\w+)", done.stdout, flags=re.MULTILINE))
    passed = {"test_after_them", "test_has_more_time", "test_in_another_process"}
    assert failed == set(re.findall(r"def (test_\w+)", PLANTED["test_hangs.py"])) - passed
    assert re.search(r"== 4 failed, 4 passed, 2 errors in ", done.stdout.splitlines()[-1]), done.stdout


@pytest.mark.ci
def test_the_longest_start_first_and_clusters_are_one_after_the_other(planted):
    files = ("tests/test_one.py", "tests/test_other.py")
    for workers in (0, 2):
        (planted / "tests/order").unlink(missing_ok=True)
        run_planted(planted, "all", *files, "-k", "test_cluster or test_ranks or test_unit", "-n", str(workers))
        lines = [line.removeprefix("test_").split() for line in (planted / "tests/order").read_text().splitlines()]
        started = [name for name, _ in lines]
        assert sorted(started) == ["cluster", "cluster", "ranks", "unit"]
        assert workers or started == sorted(started)
    of = {name: {worker for other, worker in lines if other == name} for name in started}
    assert len(of["cluster"]) == 1 and of["cluster"].isdisjoint(of["ranks"])


@pytest.mark.ci
def test_what_is_missing_is_counted_or_refused(planted):
    arguments = ("quick", "tests/test_other.py", "-n", "2")
    done = run_planted(planted, *arguments)
    assert done.returncode == 0, done.stdout
    assert re.search(r"== 1 passed, 1 skipped, ([23] deselected, )?1 not run: no original files in ", done.stdout)
    refused = run_planted(planted, *arguments, TWINS_NO_SKIP="1")
    assert refused.returncode == 1
    assert re.search(r"== 1 failed, 1 passed, ([23] deselected, )?1 not run: no original files in ", refused.stdout)
    assert "test_skips was skipped where nothing may be missing: Skipped: no such program" in refused.stdout
    nothing = run_planted(planted, "quick", "tests/test_one.py::test_cluster", "-n", "0")
    assert nothing.returncode == 5


def test_tests_for_a_gpu_fail_where_there_is_none(tmp_path):
    environment = os.environ | {"PATH": str(tmp_path)}  # without nvidia-smi
    command = [sys.executable, "tests/run.py", "gpu"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 4, done.stdout
    assert "no NVIDIA GPU was found" in done.stdout + done.stderr
