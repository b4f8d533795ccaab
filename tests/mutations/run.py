"""Break the product on purpose, one line at a time, and see that the tests named for each break find it.

    python tests/mutations/run.py            # `make mutations`
    python tests/mutations/run.py sharding   # the rows whose file or lines hold this word

`mutations.toml` has a table `[[mutation]]` for each break:

    file   of the product
    old    a line that is there once, without its indentation
    new    what takes its place
    tests  that must find it: ids of pytest, each a test of the tier
    tier   quick or ci: `make test` or `make test-ci` runs them

First all the tests named pass unbroken. Then each break is made in a copy of the tree, and its tests run until one
fails. A row that was found is not run again (`build/mutations.json`) until it, its file or its files of tests change.
"""

import argparse
import hashlib
import json
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SELECTIONS = runpy.run_path(str(ROOT / "tests" / "run.py"))["SELECTIONS"]
LIST = Path(__file__).with_name("mutations.toml")
LIMIT_SECONDS = 40 * 60  # of all
PASSED, FAILED = 0, 1  # pytest's exit codes; a test that is not there, or that cannot be imported, has others


class RowError(Exception):
    """A row that does not fit the tree; the message is for the user."""


def read_rows(file):
    return tomllib.loads(file.read_text(encoding="utf-8"))["mutation"]


def broken(text, row):
    """Return the text of a row's file with the break."""
    lines = text.splitlines(keepends=True)
    found = [number for number, line in enumerate(lines) if line.strip() == row["old"]]
    if len(found) != 1:
        raise RowError(f"{row['file']} has the line {len(found)} times, not once: {row['old']}")
    lines[found[0]] = lines[found[0]].replace(row["old"], row["new"])
    return "".join(lines)


def key_of(row, root):
    """Return what changes if the row, its file or its tests do."""
    files = sorted({row["file"], *(test.partition("::")[0] for test in row["tests"])})
    parts = [json.dumps(row, sort_keys=True).encode(), *((root / file).read_bytes() for file in files)]
    return hashlib.sha256(b"\0".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def copy_tree(root, copy):
    """Copy the files that the next commit would have; link the environments."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, names):
        if (root / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, copy / name)
    for environment in root.glob(".venv*"):
        (copy / environment.name).symlink_to(environment.resolve())
    identity = ["-c", "user.name=mutations", "-c", "user.email=mutations@localhost"]
    for command in (["init"], ["add", "--all"], [*identity, "commit", "--message", "copy"]):
        subprocess.run(["git", *command], cwd=copy, capture_output=True, check=True)  # for tests that ask git


def run_tests(tests, tier, *, copy, options, seconds):
    """Return pytest's exit code and output; the copy comes before the project that is installed."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", SELECTIONS[tier], *options, "-p", "no:cacheprovider", *tests]
    environment = os.environ | {"PYTHONPATH": str(copy)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    try:
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired as error:
        raise RowError(f"no end after {seconds:.0f} s: {' '.join(tests)}") from error
    return done.returncode, done.stdout + done.stderr


def check_unbroken(rows, *, copy, left):
    """See the tests of all rows pass."""
    for tier in SELECTIONS:
        tests = sorted({test for row in rows if row["tier"] == tier for test in row["tests"]})
        if tests:
            print(f"{tier}: {len(tests)} tests, unbroken", flush=True)
            workers = ["-n", "2"] if len(tests) > 5 else []
            code, output = run_tests(tests, tier, copy=copy, options=workers, seconds=left())
            if code != PASSED:
                raise RowError(f"the tests named do not pass unbroken (exit code {code})\n{output[-6000:]}")


def break_and_test(row, *, copy, number, seconds):
    """Return whether the tests of a row find its break."""
    file = copy / row["file"]
    stat, text = file.stat(), file.read_text(encoding="utf-8")
    file.write_text(broken(text, row), encoding="utf-8")
    os.utime(file, (number, number))  # Python compiles a file anew whose time or size has changed
    try:
        code, output = run_tests(row["tests"], row["tier"], copy=copy, options=["-x"], seconds=seconds)
    finally:
        file.write_text(text, encoding="utf-8")
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    if code not in (PASSED, FAILED):
        raise RowError(f"pytest ended with {code}, not with a test that fails\n{output[-3000:]}")
    return code == FAILED


def misfits(rows, *, root):
    """Return what is wrong with rows whose line is not there once."""
    wrong = []
    for row in rows:
        try:
            broken((root / row["file"]).read_text(encoding="utf-8"), row)
        except (OSError, RowError) as error:
            wrong.append(f"{row['file']}: {error}")
    return wrong


def run(rows, *, root, results, seconds=LIMIT_SECONDS):
    """Try all rows; return those that no test found, or that do not fit."""
    end = time.monotonic() + seconds
    known = set(json.loads(results.read_text())) if results.exists() else set()
    if wrong := misfits(rows, root=root):
        return wrong
    todo = [row for row in rows if key_of(row, root) not in known]
    print(f"{len(rows)} breaks, {len(rows) - len(todo)} of them found earlier", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        copy_tree(root, copy)
        try:
            check_unbroken(todo, copy=copy, left=lambda: end - time.monotonic())
        except RowError as error:
            return [str(error)]
        for number, row in enumerate(todo, start=1):
            name = f"{row['file']}: {row['old']} -> {row['new']}"
            left = end - time.monotonic()
            if left < 0:
                wrong.append(f"{seconds / 60:.0f} minutes are over; run again for the {len(todo) - number + 1} left")
                break
            print(f"[{number}/{len(todo)}, {left / 60:.0f} min left] {name}: ", end="", flush=True)
            try:
                found = break_and_test(row, copy=copy, number=number, seconds=left)
            except RowError as error:
                wrong.append(f"{name}: {error}")
                print("ERROR")
                continue
            print("found" if found else "NOT FOUND")
            if found:
                known.add(key_of(row, root))
                results.parent.mkdir(exist_ok=True)
                results.write_text(json.dumps(sorted(known)))
            else:
                wrong.append(f"not found by {' '.join(row['tests'])}: {name}")
    return wrong


def main(arguments=None):
    """Read the command line, try the rows, print what is wrong; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("word", nargs="?", default="", help="only rows whose file or lines hold it")
    options = parser.parse_args(arguments)
    rows = [row for row in read_rows(LIST) if options.word in f"{row['file']} {row['old']} {row['new']}"]
    wrong = run(rows, root=ROOT, results=ROOT / "build" / "mutations.json")
    print("\n".join(wrong) or f"all {len(rows)} breaks are found")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
