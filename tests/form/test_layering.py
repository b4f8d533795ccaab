"""The direction of imports between folders, subpackages and files; sizes; and that every package in use is declared."""

import ast
import graphlib
import re
import sys
import tomllib
from pathlib import Path

import pytest

from launch.installation.lock import EXTRAS

ROOT = Path(__file__).resolve().parents[2]
OURS = ("common", "torch_impl", "keras_impl", "launch", "analysis")
FRAMEWORKS = {"torch", "torchvision", "tensorflow", "keras", "horovod"}
# Importable name -> package, where they differ; what comes along with a declared package.
PACKAGES = {
    "PIL": "pillow",
    "yaml": "pyyaml",
    "markupsafe": "jinja2",
    "pynvml": "nvidia-ml-py",
    "keras": "tensorflow-cpu",
    "tensorflow": "tensorflow-cpu",
    "mlflow": "mlflow-skinny",
    "sqlalchemy": "optuna",
    "alembic": "optuna",
}


def imports(path):
    """Yield the names (first part) that a file imports, anywhere in it, with their lines."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name.split(".")[0], node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            assert node.module
            yield node.module.split(".")[0], node.lineno


def files(folder):
    found = sorted((ROOT / folder).rglob("*.py"))
    assert found, folder
    return found


def modules():
    """Return the dotted name -> file of all modules of the project; packages have the name of their folder."""
    paths = [path for folder in OURS for path in files(folder)]
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}


def imported_modules(path, known):
    """Return the modules of the project that a file imports, anywhere in it, also for the type checker alone."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & set(known) or {node.module}
    return found & set(known)


FORBIDDEN = {
    "common": FRAMEWORKS | {"torch_impl", "keras_impl", "launch", "analysis"},
    "launch": FRAMEWORKS | {"torch_impl", "keras_impl", "analysis", "pandas", "scipy"},
    "analysis": FRAMEWORKS | {"torch_impl", "keras_impl", "launch"},
    "torch_impl": {"tensorflow", "keras", "keras_impl", "launch", "analysis"},
    "keras_impl": {"torch", "torchvision", "torch_impl", "launch", "analysis"},
}


@pytest.mark.parametrize("folder", OURS)
def test_imports_between_folders_go_one_way(folder):
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in files(folder)
        for name, line in imports(path)
        if name in FORBIDDEN[folder]
    ]
    assert wrong == []


# The subpackages and single files of a folder, from the bottom up: each may import those of the lines before its own.
ORDER = {
    "common": [
        {"errors"},
        {"utils"},
        {"sites"},
        {"model"},
        {"config"},
        {"distributed"},
        {"measurement", "watchdog"},
        {"data", "run_folder", "parameter_server", "pipeline"},
        {"elastic"},
        {"training", "trained"},
        {"strategies"},
        {"checks"},
    ],
    "launch": [
        {"installation", "sites"},
        {"starting", "setup"},
        {"experiments", "preflight", "offline"},
        {"jobs", "checks", "bench", "search"},
        {"transfer"},
    ],
    "analysis": [
        {"runs", "stats"},
        {"output", "projection"},
        {"questions"},
        {"thesis"},
        {"report", "results", "export"},
        {"clouds"},
    ],
}
FILES_AT_MOST = 15
LINES_AT_MOST = {ast.ClassDef: 250, ast.FunctionDef: 60, ast.AsyncFunctionDef: 60}  # docstrings not counted


@pytest.mark.parametrize("folder", ORDER)
def test_imports_between_subpackages_go_down(folder):
    level = {name: number for number, line in enumerate(ORDER[folder]) for name in line}
    known = modules()
    inside = {name.split(".")[1]: path for name, path in known.items() if name.startswith(f"{folder}.")}
    assert inside.keys() - {"__main__"} == level.keys()
    wrong = []
    for path in files(folder):
        here = path.relative_to(ROOT / folder).parts[0].removesuffix(".py")
        for module in imported_modules(path, known):
            there = module.split(".")[1] if module.startswith(f"{folder}.") else here
            if here not in (there, "__main__") and level[there] >= level[here]:
                wrong.append(f"{path.relative_to(ROOT)} imports {module}")
    assert wrong == []


def test_no_files_import_each_other_in_a_circle():
    known = modules()
    graph = {name: imported_modules(path, known) - {name} for name, path in known.items()}
    assert sum(map(len, graph.values())) > 300
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def subpackages():
    """Return the subpackages of the folders that have some."""
    found = sorted(path.parent for folder in ORDER for path in (ROOT / folder).glob("*/__init__.py"))
    assert len(found) > 20
    return found


@pytest.mark.parametrize("folder", subpackages(), ids=lambda folder: folder.relative_to(ROOT).as_posix())
def test_a_subpackage_is_small_and_documents_its_contents(folder):
    assert len(list(folder.glob("*.py"))) <= FILES_AT_MOST + 1  # and __init__.py
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
    assert text
    assert "Not here: " in text.replace("\n", " ")


@pytest.mark.parametrize("folder", OURS)
def test_classes_and_functions_are_short(folder):
    lengths = {
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}": (lines_of(node), LINES_AT_MOST[type(node)])
        for path in files(folder)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert len(lengths) > 20
    assert {name: lines for name, (lines, most) in lengths.items() if lines > most} == {}


def lines_of(node):
    """Return the lines of a class or function without its docstring."""
    docstring = ast.get_docstring(node, clean=False)
    return (node.end_lineno or 0) - node.lineno + 1 - (len(docstring.splitlines()) if docstring else 0)


def test_every_folder_of_modules_is_a_package():
    folders = {path.parent for folder in OURS for path in files(folder)}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


def test_no_file_is_named_after_a_library():
    """Python puts a program's own folder first on its path."""
    libraries = {name for folder in OURS for path in files(folder) for name, _ in imports(path)} - set(OURS)
    assert {"torch", "numpy"} < libraries
    for folder in OURS:
        assert not libraries & {path.stem for path in files(folder)}, folder


def test_every_package_in_use_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needs = project["dependencies"] + [need for part in extras.values() for need in part]
    declared = {re.split(r"[\s<>=\[!~;]", need, maxsplit=1)[0].lower() for need in needs} | {"horovod"}
    used = {
        PACKAGES.get(name, name): f"{path.relative_to(ROOT)}:{line}"
        for folder in OURS
        for path in files(folder)
        for name, line in imports(path)
        if name not in sys.stdlib_module_names and name not in OURS
    }
    assert {name: place for name, place in used.items() if name not in declared} == {}
    # Without any framework, common must have what it needs.
    base = {re.split(r"[\s<>=\[!~;]", need, maxsplit=1)[0].lower() for need in project["dependencies"]}
    needed = {PACKAGES.get(name, name) for path in files("common") for name, _ in imports(path)}
    needed -= {*sys.stdlib_module_names, *OURS, "tensorboard", "onnx", "mpi4py"}
    assert needed <= base


def test_every_declared_package_is_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    beside = (ROOT / "tests" / "support" / "extras.txt").read_text().splitlines()
    assert {need for extra in EXTRAS for need in project["optional-dependencies"][extra]} <= set(beside)
    for name, extra in [("base", None), ("torch", "torch"), ("tensorflow", "tensorflow"), ("dev", "dev")]:
        lines = (ROOT / "launch" / "installation" / "requirements" / f"{name}.txt").read_text().splitlines()
        pinned = {line.split("==")[0] for line in lines if "==" in line}
        needs = project["optional-dependencies"][extra] if extra else project["dependencies"]
        assert {re.split(r"[\s<>=\[!~;]", need, maxsplit=1)[0].lower() for need in needs} <= pinned, name
        assert not {line.split("==")[0] for line in beside} & pinned, "an extra would move a version"
