"""The sources of the two trainers are twins: the same files, names and parameters, the same steps."""

import ast
import difflib
import itertools
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FRAMEWORKS = ("torch", "keras")
# What one side alone has, with the reason: files, public names, parameters, statements of train.py.
EXCEPTIONS = tomllib.loads(Path(__file__).with_name("twins.toml").read_text())
LONGEST_TRAIN = 71  # lines


def public_api(file):
    """Return the public functions and methods of a file with their parameters, and its classes (None).

    Without the methods of strategies, which override those of `Strategy` that they need to.
    """
    names, has_methods = {}, file.parent.name != "strategies" or file.name == "strategy.py"

    def collect(body, prefix):
        for node in body:
            if isinstance(node, ast.FunctionDef) and (not node.name.startswith("_") or node.name == "__init__"):
                arguments = node.args
                names[prefix + node.name] = {
                    argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
                }
            elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                names[prefix + node.name] = None
                collect(node.body if has_methods else [], f"{prefix}{node.name}.")

    collect(ast.parse(file.read_text()).body, "")
    return names


def files_of(side):
    """Return the names of the files that the other side has, too."""
    folder = ROOT / f"{side}_impl"
    names = {
        file.relative_to(folder).as_posix()
        for file in (*folder.glob("*.py"), *folder.glob("twins/*.py"), *folder.glob("strategies/*.py"))
    }
    alone = EXCEPTIONS[side]["files"].keys()
    assert alone <= names, "an exception that is none any more"
    return names - alone


def test_same_files():
    assert files_of("torch") == files_of("keras")


@pytest.mark.parametrize("name", sorted(files_of("torch")))
def test_same_public_names_and_parameters(name):
    torch_api, keras_api = (public_api(ROOT / f"{side}_impl" / name) for side in FRAMEWORKS)
    torch_extra, keras_extra = (EXCEPTIONS[side]["names"].get(name, {}).keys() for side in FRAMEWORKS)
    assert torch_extra <= torch_api.keys() and keras_extra <= keras_api.keys(), "an exception that is none any more"
    assert torch_api.keys() - torch_extra == keras_api.keys() - keras_extra
    exceptions = {(row["side"], row["function"], row["name"]) for row in EXCEPTIONS["parameter"]}
    differences = {
        (side, f"{name}:{function}", parameter)
        for function in torch_api.keys() & keras_api.keys()
        for side, own, other in (("torch", torch_api, keras_api), ("keras", keras_api, torch_api))
        if torch_api[function] is not None and keras_api[function] is not None  # not a class
        for parameter in own[function] - other[function]
    }
    assert differences == {row for row in exceptions if row[1].startswith(f"{name}:")}


STEP = re.compile(r"^ *# Horovod (\d)/7 - ([^:]+): \S")
STEPS = [
    ("1", "init", "distributed.init"),
    ("2", "pin", "distributed.pin_device"),
    ("3", "shard", "ShardedData"),
    ("4", "scale", "task.scaled_learning_rates"),
    ("5", "wrap", "strategy.wrap"),
    ("6", "broadcast", "run.restore"),
    ("7", "rank 0 only", "run.end_epoch"),
]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_each_of_the_seven_comments_is_directly_above_the_call_that_does_the_step(framework):
    lines = train_lines(framework)
    found = []
    for line, following in itertools.pairwise(lines):
        if match := STEP.match(line):
            statement = ast.parse(following.strip()).body[0]
            assert isinstance(statement, ast.Expr | ast.Assign) and isinstance(statement.value, ast.Call), following
            found.append((match[1], match[2], ast.unparse(statement.value.func)))
    assert found == STEPS


def test_both_train_files_are_the_same_but_for_what_the_frameworks_force():
    torch_lines, keras_lines = (
        [line.strip().replace(f"{framework}_impl", "X_impl") for line in train_lines(framework)]
        for framework in FRAMEWORKS
    )
    changes = list(difflib.ndiff(torch_lines, keras_lines))
    only = {"torch": [c[2:] for c in changes if c[0] == "-"], "keras": [c[2:] for c in changes if c[0] == "+"]}
    for framework in FRAMEWORKS:
        statements = {line for line in only[framework] if not any(words in line for words in EXCEPTIONS["words"])}
        assert statements - {""} == EXCEPTIONS[framework]["statements"].keys()


def train_lines(framework):
    return (ROOT / f"{framework}_impl/train.py").read_text().splitlines()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_train_is_short_and_has_no_nested_function(framework):
    assert len(train_lines(framework)) <= LONGEST_TRAIN
    for function in ast.walk(ast.parse("\n".join(train_lines(framework)))):
        if isinstance(function, ast.FunctionDef):
            inner = [node for node in ast.walk(function) if isinstance(node, ast.FunctionDef | ast.Lambda)]
            assert inner in ([function], []), function.name
