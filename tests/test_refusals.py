"""Every command line that a program refuses: one line, exit code 2, and nothing written.

`tests/refusals/<program>.toml`, or `<program>-<subject>.toml`, has a table `[[refusal]]` for each, or a line of the
array `refusal`:

    arguments   of the program, split like a shell does; or a list of them
    id          of the test; may be left out if the arguments are one text
    line        what follows "PROGRAM: error: ", a regular expression of the whole line
    given       functions of `tests/support/given/<program>.py` that prepare the current folder; may be left out
    files       of the current folder, with the text that is added to each; may be left out
    edits       files with an old text, of which there must be one, and a new one; may be left out
    edit        of a file there: its path, a regular expression, and what replaces it; may be left out
    remove      of these files, one that is not there; may be left out
"""

import importlib
import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest

from common.errors import UserError
from common.run.resume import settings_of

TABLES = Path(__file__).parent / "refusals"


def read_settings(arguments):
    """Read a trainer's command line, as both trainers do before they join the other ranks."""
    try:
        settings_of(arguments, program="torch_impl/train.py")
    except UserError as error:
        print(f"torch_impl/train.py: error: {error}", file=sys.stderr)
        return 2
    return 0


def main_of(package):
    """Return what `python -m PACKAGE` calls."""
    return lambda arguments: importlib.import_module(f"{package}.__main__").main(arguments)


PROGRAMS = {"train": read_settings, **{name: main_of(name) for name in ("analysis", "common", "launch")}}


def refusals():
    """Return the parameters of all tables."""
    return [
        pytest.param(program, row, id=f"{file.stem}-{row.get('id', row['arguments'])}")
        for file in sorted(TABLES.glob("*.toml"))
        if (program := file.stem.partition("-")[0]) in PROGRAMS  # the others are of ranks
        for row in tomllib.loads(file.read_text())["refusal"]
    ]


def prepare(folder, program, refusal):
    """Bring a folder to where the command line is given."""
    for name in refusal.get("given", []):
        getattr(importlib.import_module(f"given.{program}"), name)(folder)
    for name, text in refusal.get("files", {}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with (folder / name).open("a") as file:
            file.write(text)
    for name, (old, new) in refusal.get("edits", {}).items():
        edit(folder / name, re.escape(old).encode(), lambda _, new=new: new.encode(), count=1)
    if "edit" in refusal:
        name, old, new = refusal["edit"]
        edit(folder / name, old.encode(), new.encode("latin-1"))
    if "remove" in refusal:
        (folder / refusal["remove"]).unlink()


def edit(file, old, new, *, count=0):
    """Replace what matches a regular expression, which has to be there; `new`: as `re.sub` takes it."""
    text = file.read_bytes()
    changed = re.sub(old, new, text, count=count, flags=re.DOTALL)
    assert changed != text, old
    file.write_bytes(changed)


def contents(folder):
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.mark.parametrize(("program", "refusal"), refusals())
def test_a_wrong_command_line_is_one_line_and_changes_nothing(program, refusal, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path, program, refusal)
    before, arguments = contents(tmp_path), refusal["arguments"]
    capsys.readouterr()
    try:
        code = PROGRAMS[program](shlex.split(arguments) if isinstance(arguments, str) else arguments)
    except SystemExit as end:
        code = end.code
    printed = capsys.readouterr()
    assert code == 2, printed
    assert re.fullmatch(rf"[\w ./-]+: error: {refusal['line']}\n", printed.err), printed.err
    assert printed.out == ""
    assert contents(tmp_path) == before
