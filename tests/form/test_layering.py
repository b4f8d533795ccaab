"""The direction of imports between folders, subpackages and files; sizes; and that every package in use is declared."""

import ast
import graphlib
import re
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

from launch.installation.lock import EXTRAS
from launch.installation.packages import read_lock

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
# The file of each module of the project, by its dotted name; packages have the name of their folder.
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for folder in OURS
    for path in sorted((ROOT / folder).rglob("*.py"))
}

FOR_OTHERS = ROOT / "keras_impl" / "horovod_keras3"  # a package of its own


def files(folder):
    return [path for name, path in MODULES.items() if name.split(".")[0] == folder]


@cache
def nodes(path):
    return list(ast.walk(ast.parse(path.read_text())))


@cache
def imports(path):
    """Return the modules that a file imports, anywhere in it, and those of ours from which it imports names."""
    modules = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            inside = path.parent == FOR_OTHERS
            assert node.level == 0 or (inside and node.level == 1), f"{path}:{node.lineno}: relative import"
            around = ".".join(path.parent.relative_to(ROOT).parts) if node.level else ""
            module = ".".join(filter(None, (around, node.module)))
            names = {f"{module}.{alias.name}" for alias in node.names}
            modules |= names & MODULES.keys() or {module}
    return modules


def packages(path):
    """Return the first part of the names that a file imports."""
    return {name.split(".")[0] for name in imports(path)}


FORBIDDEN = {
    "common": FRAMEWORKS | {"torch_impl", "keras_impl", "launch", "analysis"},
    "launch": FRAMEWORKS | {"torch_impl", "keras_impl", "analysis", "pandas", "scipy"},
    "analysis": FRAMEWORKS | {"torch_impl", "keras_impl", "launch"},
    "torch_impl": {"tensorflow", "keras", "keras_impl", "launch", "analysis"},
    "keras_impl": {"torch", "torchvision", "torch_impl", "launch", "analysis"},
}


@pytest.mark.parametrize("folder", OURS)
def test_imports_between_folders_go_one_way(folder):
    wrong = {str(path.relative_to(ROOT)): packages(path) & FORBIDDEN[folder] for path in files(folder)}
    assert len(wrong) > 10
    assert {path: names for path, names in wrong.items() if names} == {}


# The subpackages and single files of a folder, from the bottom up: each may import those on the left of its `<`.
ORDER = {
    "common": "errors < names, utils < json_records < sites < model < config < distributed < measurement, watchdog < "
    "data, run_folder, parameter_server, pipeline < task < run, trained < strategies < checks, twins",
    "launch": "horovod < installation, sites < starting, setup < experiments, preflight, offline < "
    "jobs, checks, bench, search < transfer",
    "analysis": "runs, stats < output, projection < questions < thesis < report, results, export < clouds",
}
FILES_AT_MOST = 15
LINES_AT_MOST = {ast.ClassDef: 250, ast.FunctionDef: 60, ast.AsyncFunctionDef: 60}  # docstrings not counted


@pytest.mark.parametrize("folder", ORDER)
def test_imports_between_subpackages_go_down(folder):
    level = {name: number for number, names in enumerate(ORDER[folder].split(" < ")) for name in names.split(", ")}
    parts = {name: name.split(".")[1] for name in MODULES if name.startswith(f"{folder}.")}
    assert set(parts.values()) - {"__main__"} == level.keys()
    wrong = [
        f"{name} imports {module}"
        for name, here in parts.items()
        for module in imports(MODULES[name])
        if here != "__main__" and parts.get(module, here) != here and level[parts[module]] >= level[here]
    ]
    assert wrong == []


def test_no_files_import_each_other_in_a_circle():
    graph = {name: (imports(path) & MODULES.keys()) - {name} for name, path in MODULES.items()}
    assert sum(map(len, graph.values())) > 300
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


SUBPACKAGES = sorted(path.parent for folder in ORDER for path in (ROOT / folder).glob("*/__init__.py"))


@pytest.mark.parametrize("folder", SUBPACKAGES, ids=lambda folder: folder.relative_to(ROOT).as_posix())
def test_a_subpackage_is_small_and_documents_its_contents(folder):
    assert len(list(folder.glob("*.py"))) <= FILES_AT_MOST + 1  # and __init__.py
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
    assert text and "Not here: " in text.replace("\n", " ")


@pytest.mark.parametrize("folder", OURS)
def test_classes_and_functions_are_short(folder):
    lengths = {
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}": (lines_of(node), LINES_AT_MOST[type(node)])
        for path in files(folder)
        for node in nodes(path)
        if type(node) in LINES_AT_MOST
    }
    assert len(lengths) > 20
    assert {name: lines for name, (lines, most) in lengths.items() if lines > most} == {}


def lines_of(node):
    """Return the lines of a class or function without its docstring."""
    docstring = ast.get_docstring(node, clean=False)
    return (node.end_lineno or 0) - node.lineno + 1 - (len(docstring.splitlines()) if docstring else 0)


def test_every_folder_of_modules_is_a_package_and_no_file_is_named_after_a_library():
    """Python puts a program's own folder first on its path."""
    libraries = set().union(*map(packages, MODULES.values())) - set(OURS)
    assert {"torch", "numpy"} < libraries
    for path in MODULES.values():
        assert (path.parent / "__init__.py").exists(), path
        assert path.stem not in libraries, path


def names_of(needs):
    return {re.split(r"[\s<>=\[!~;]", need, maxsplit=1)[0].lower() for need in needs}


def test_every_package_in_use_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    base = names_of(project["dependencies"])
    declared = base.union({"horovod"}, *map(names_of, project["optional-dependencies"].values()))
    for name, path in MODULES.items():
        used = {PACKAGES.get(package, package) for package in packages(path) - {*sys.stdlib_module_names, *OURS}}
        assert used <= declared, path
        # Without any framework, common must have what it needs.
        assert not name.startswith("common.") or used - {"tensorboard", "onnx", "mpi4py"} <= base, path


def test_every_extra_is_locked():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    beside = {one.name: one.version for one in read_lock(ROOT / "tests" / "support" / "extras.txt")}
    wanted = {need for extra in EXTRAS for need in project["optional-dependencies"][extra]}
    assert wanted <= {f"{name}=={version}" for name, version in beside.items()}
    locked = {one.name for one in read_lock(ROOT / "launch" / "installation" / "lock.txt")}
    assert not beside.keys() & locked, "an extra would move a version"
