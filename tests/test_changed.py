"""Which tests are chosen for what differs: on a small project, and for every mutation of the list."""

import importlib.util
import subprocess
import tomllib
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SPECIFICATION = importlib.util.spec_from_file_location("changed", TESTS / "changed.py")
changed = importlib.util.module_from_spec(SPECIFICATION)
SPECIFICATION.loader.exec_module(changed)

FILES = {
    "common/__init__.py": "",
    "common/rules.py": "def rule(): from . import deep",
    "common/deep.py": "'''No module: common.lonely'''",
    "common/lonely.py": "",
    "common/templates/page.html": "",
    "common/pages.py": "Path(__file__).with_name('templates')",
    "torch_impl/__init__.py": "",
    "torch_impl/train.py": "import common.rules",
    "keras_impl/__init__.py": "",
    "keras_impl/train.py": "",
    "launch/__init__.py": "",
    "launch/__main__.py": "import common.pages",
    "launch/data/sites.toml": "",
    "README.md": "",
    "pyproject.toml": "",
    "tests/conftest.py": "pytest_plugins = ['plugin']",
    "tests/form/test_form.py": "import common.lonely",
    "tests/support/plugin.py": "import common.lonely",
    "tests/support/worker.py": "",
    "tests/support/given/first.py": "",
    "tests/tables/first.toml": "",
    "tests/test_import.py": "import common.rules",
    "tests/test_later.py": "import importlib; importlib.import_module('common.rules')",
    "tests/test_both.py": "PROGRAM = f'{framework}_impl/train.py'",
    "tests/test_module.py": "run([python, '-m', 'launch', 'sites'])",
    "tests/test_command.py": "run('python -m launch sites')",
    "tests/test_worker.py": "start('worker')",
    "tests/test_given.py": "import_module(f'given.{name}'); TABLES = Path(__file__).parent / 'tables'",
    "tests/test_data.py": "(ROOT / 'launch' / 'data' / 'sites.toml').read_text()",
    "tests/test_name.py": "folder / 'sites.toml'",
    "tests/unit/conftest.py": "import common.deep",
    "tests/unit/test_nothing.py": "",
    "tests/test_list.py": "run(['git', 'ls-files'])",
}


@pytest.fixture
def project(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


def git(folder, *arguments):
    subprocess.run(["git", "-C", folder, *arguments], check=True, timeout=30)


def commit(folder):
    git(folder, "add", "--all")
    git(folder, "-c", "user.name=one", "-c", "user.email=one@example.org", "commit", "--quiet", "--message", "one")


def chosen(folder, revision="1"):
    """Return the names of the tests chosen but that which lists all files."""
    files, summary = changed.choose(revision, root=folder)
    left_out = 0 if files is None else 11 - len(files)
    assert f"{11 - left_out} files of tests chosen, {left_out} left out" in summary
    return "all" if files is None else {Path(file).stem.removeprefix("test_") for file in files} - {"list"}


@pytest.mark.parametrize(
    ("file", "names"),
    [
        ("common/rules.py", {"import", "later", "both"}),
        ("common/deep.py", {"import", "later", "both", "nothing"}),
        ("torch_impl/train.py", {"both"}),
        ("common/templates/page.html", {"module", "command"}),
        ("tests/support/worker.py", {"worker"}),
        ("tests/support/given/first.py", {"given"}),
        ("tests/tables/first.toml", {"given"}),
        ("launch/data/sites.toml", {"data", "name"}),
        ("tests/unit/conftest.py", {"nothing"}),
        ("tests/test_data.py", {"data"}),
        ("README.md", set()),
        ("tests/form/test_form.py", set()),
        ("common/lonely.py", "all"),
        ("tests/support/plugin.py", "all"),
        ("pyproject.toml", "all"),
        ("tests/conftest.py", "all"),
    ],
)
def test_what_names_a_file_or_what_names_that_is_chosen(project, file, names):
    (project / file).write_text(f"{FILES[file]}\n\n")
    assert chosen(project) == names


def test_what_is_committed_not_tracked_or_gone_differs(project):
    (project / "common/rules.py").write_text("import common.deep")
    commit(project)
    assert chosen(project) == set()
    assert chosen(project, "HEAD~1") == {"import", "later", "both"}
    (project / "tests/test_new.py").write_text("import common.new")
    (project / "common/new.py").write_text("")
    files, _ = changed.choose("1", root=project)
    assert files == ["tests/test_list.py", "tests/test_new.py"]
    for name in ("common/new.py", "tests/test_new.py", "common/rules.py", "tests/test_data.py"):
        (project / name).unlink()
    files, _ = changed.choose("1", root=project)
    assert {Path(file).stem for file in files} == {"test_import", "test_later", "test_both", "test_list"}


def test_every_mutation_chooses_the_tests_that_find_it():
    """And a change of one side leaves out tests of the other."""
    if not (TESTS.parent / ".git").exists():
        pytest.skip("the list of files is git's, and this is no clone")
    this_project = changed.Project()
    rows = tomllib.loads((TESTS / "mutations/mutations.toml").read_text())["mutation"]
    assert any(this_project.choose({row["file"]}) is not None for row in rows)
    for row in rows:
        files = this_project.choose({row["file"]})
        named = {test.partition("::")[0] for test in row["tests"]}
        assert files is None or named <= {*files}, row
    assert "tests/analysis/stats/test_inference.py" not in this_project.choose({"keras_impl/train.py"})
    assert "tests/common/data/test_sharding.py" not in this_project.choose({"analysis/stats/inference.py"})
