"""Which test files depend on what differs from a revision: `make test CHANGED=REV` (1: HEAD) runs only these.

A file depends on what it names, and on all that those depend on in turn: modules that it imports, anywhere in it; and
in strings, joined by `/` or filled in later too, modules, files and folders of the project: programs that are started,
workers, data, templates, pages. What is filled in later may be anything: f"{framework}_impl/train.py" is both files.
That is more than what runs. What no test names, and what all of them rest on, chooses all tests.
"""

import ast
import re
import subprocess
from collections import defaultdict
from fnmatch import fnmatchcase
from functools import cache, cached_property
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
OF_ALL_TESTS = re.compile(r"pyproject\.toml|Makefile|\.ci/.*|tests/(run|changed)\.py|.*/requirements/.*|\.git.*")
# These copy all files of the project to another place, as those that list them by git do. What they alone read is
# named by no test.
OF_ALL_FILES = ("tests/test_packaging.py", "tests/launch/offline/", "tests/launch/jobs/test_rented_machines.py")
# What a folder of the product may import or start; messages name more. `launch` starts all.
BELOW = {
    "common": ("common",),
    "torch_impl": ("common", "torch_impl"),
    "keras_impl": ("common", "keras_impl"),
    "analysis": ("common", "analysis"),
}
PRODUCT = (*BELOW, "launch")
CONFTEST = "tests/conftest.py"  # of all tests; its plugins start what tests ask them for
IS_TEST = re.compile(r"tests/(?!form/)(.*/)?test_\w+\.py")  # `make lint` checks form
WORD = re.compile(r"[\w.*/-]+")
ANY = "*"  # what is filled in later


def git(*arguments, root):
    done = subprocess.run(["git", *arguments, "-z"], cwd=root, capture_output=True, text=True, check=True, timeout=60)
    return {path for path in done.stdout.split("\0") if path}


def changed_files(revision, *, root=ROOT):
    """Return the files that differ from a revision: committed since, not committed, not tracked, or gone."""
    compared = "HEAD" if revision == "1" else revision
    untracked = git("ls-files", "--others", "--exclude-standard", root=root)
    return git("diff", "--name-only", "--no-renames", compared, root=root) | untracked


class Project:
    """The files of a project, and what each names.

    Args:
        gone: files that are there no more; what still names one of them depends on it.
    """

    def __init__(self, root=ROOT, *, gone=()):
        self.root = root
        listed = git("ls-files", "--cached", "--others", "--exclude-standard", root=root)
        self.files = {path for path in listed if (root / path).is_file()} | set(gone)
        self.tests = {path for path in self.files - set(gone) if IS_TEST.fullmatch(path)}
        self.folders = {str(parent) for path in self.files for parent in PurePosixPath(path).parents} - {".", "tests"}
        self.modules, self.by_name = {}, defaultdict(set)
        for path in self.files:
            self.by_name[PurePosixPath(path).name].add(path)
            if path.endswith(".py"):
                name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
                self.modules[name.removeprefix("tests.support.")] = path
        self.named = cache(self.named)

    def named(self, path):
        found = set(self.configuration_of(path))
        if path.endswith(".py") and (self.root / path).is_file():
            nodes = list(ast.walk(ast.parse((self.root / path).read_text(encoding="utf-8"))))
            for node in nodes:
                if isinstance(node, ast.Import):
                    found |= {file for alias in node.names for file in self.module(alias.name)}
                elif isinstance(node, ast.ImportFrom):
                    around = PurePosixPath(path).parts[: -node.level] if node.level else ()
                    module = ".".join(filter(None, (*around, node.module)))
                    names = (f"{module}.{alias.name}" for alias in node.names)
                    found |= {file for name in names for file in self.module(name)}
            for text, is_path in strings(nodes):
                found |= self.in_text(text, path, is_path=is_path)
        folder = path.partition("/")[0]
        beyond = set(PRODUCT) - set(BELOW.get(folder, PRODUCT)) | ({"tests"} if folder in PRODUCT else set())
        return {file for file in found if file.partition("/")[0] not in beyond}

    def configuration_of(self, path):
        """Return the files of fixtures that apply to a test, without its naming them."""
        return {f"{parent}/conftest.py" for parent in PurePosixPath(path).parents} & self.files - {path, CONFTEST}

    def module(self, name):
        """Return the files of a module, or of that in which a dotted name is, and of the packages around it."""
        parts = name.split(".")
        known = [".".join(parts[:length]) for length in range(1, len(parts) + 1)]
        return {self.modules[one] for one in known if one in self.modules}

    def in_text(self, text, path, *, is_path):
        """Return the files that a string names, and those below a folder that it names as a path."""
        if not is_path and text in self.modules and f"{text}.__main__" in self.modules:
            return self.module(f"{text}.__main__")
        found = set()
        words = [text] if is_path else WORD.findall(text)
        for number, word in enumerate(words):
            word = word.strip(".-/")
            if not word:
                continue
            if number and words[number - 1] == "-m":
                found |= self.module(f"{word}.__main__")
            if ANY in word:
                if len(re.sub(r"\.\w+$|[^a-z]", "", word)) >= 5:
                    found |= {file for name, file in self.modules.items() if fnmatchcase(name, word)}
                    found |= {file for file in self.files if fnmatchcase(file, word)}
            elif "." in word and "/" not in word and len(self.module(word)) > 1:
                found |= self.module(word)
            elif word in self.modules and self.modules[word].startswith("tests/support/"):
                found.add(self.modules[word])
            if "/" in word or "." in word or is_path:
                found |= self.at(word, path, is_path=is_path)
        return found

    def at(self, word, path, *, is_path):
        """Return the files at a path that is relative to the project, the tests, or the folder of who names it."""
        found = set()
        for base in ("", "tests/", "tests/support/", f"{PurePosixPath(path).parent}/"):
            place = f"{base}{word}".strip("/")
            if place in self.files:
                found.add(place)
            elif place in self.folders and (is_path or "/" in word):
                found |= {file for file in self.files if file.startswith(f"{place}/")}
        if not found and not word.endswith(".py") and "." in word:
            found = {file for file in self.by_name.get(PurePosixPath(word).name, ()) if file.endswith(f"/{word}")}
        return found

    def closure(self, path):
        """Return all that a file depends on, itself included."""
        found, todo = set(), [path]
        while todo:
            one = todo.pop()
            if one not in found:
                found.add(one)
                todo += self.named(one) - found
        return found

    @cached_property
    def closures(self):
        return {test: self.closure(test) for test in self.tests}

    def choose(self, changed):
        """Return the test files that depend on one of these files, sorted; None: all of them."""
        changed = {path for path in changed if path in self.tests or not re.search(r"/(form/|test_\w+\.py$)", path)}
        known = set().union(*self.closures.values()) | {path for path in self.files if path.endswith(".md")}
        of_all = {CONFTEST, *self.named(CONFTEST)}
        if any(OF_ALL_TESTS.fullmatch(path) or path in of_all or path not in known for path in changed):
            return None
        found = {test for test, closure in self.closures.items() if changed & closure}
        return sorted(found | {test for test in self.tests if changed and self.reads_all(test)})

    def reads_all(self, test):
        """Return whether a test goes through the list of all files, or copies them to another place."""
        return test.startswith(OF_ALL_FILES) or "ls-files" in (self.root / test).read_text(encoding="utf-8")


def strings(nodes):
    """Yield the strings of a file but its docstrings, and whether they are a path that is joined by `/`."""
    skipped = {id(node.value) for node in nodes if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)}
    skipped |= {id(part) for node in nodes if is_joined(node) for part in (node.left, node.right)}
    for node in nodes:
        if is_joined(node) and id(node) not in skipped:
            parts = joined(node)
            while parts and parts[0] == ANY:
                parts = parts[1:]
            if parts:
                yield "/".join(parts), True
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "with_name":
            yield from ((text, True) for argument in node.args if (text := text_of(argument)) != ANY)
        elif isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in skipped:
            yield text_of(node), False


def is_joined(node):
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)


def joined(node):
    """Return the parts of a path that is joined by `/`."""
    return [*joined(node.left), text_of(node.right)] if is_joined(node) else [text_of(node)]


def text_of(node):
    """Return the text of a string, with `ANY` for what is filled in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else ANY for part in node.values)
    return ANY


def choose(revision, *, root=ROOT):
    """Return the test files that depend on what differs from a revision, and what to tell about them; None: all."""
    changed = changed_files(revision, root=root)
    project = Project(root, gone={path for path in changed if not (root / path).exists()})
    chosen = project.choose(changed)
    number = len(project.tests) if chosen is None else len(chosen)
    left_out = len(project.tests) - number
    return chosen, f"{len(changed)} files differ: {number} files of tests chosen, {left_out} left out"
