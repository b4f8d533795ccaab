"""Odd arguments of every command and setting: exit code 0, 1 or 2, one line, nothing written, no long wait."""

import time
import tomllib
from contextlib import suppress
from pathlib import Path

import pytest
from fuzzing import MOST_SECONDS, ODD_VALUES, try_each
from hypothesis import strategies as st

from analysis.__main__ import main as analysis
from common.__main__ import main as common
from common.config import Config, config_from_dict, parse_command_line
from common.data.loading import load_dataset
from common.errors import UserError
from launch.__main__ import main as launch

ODD_WORDS = ["", " ", "\0", "\udc80", "-1", "0", "9" * 5000, "nan", "inf", "1e999", "../..", "/", "file", "folder"]
ODD_WORDS += ["missing", "/dev/null", "x" * 5000, "%s{0}", "a\nb", "[", "²", "a:b", "1:1", ",", ":", "file/", "a.toml"]
ODD_WORDS += ["/proc/self/mem", "~nobody9", "binary", "\x1b[31m", "=", "--"]
PROGRAMS = {"analysis": analysis, "common": common, "launch": launch}
TABLE = tomllib.loads(Path(__file__).with_name("commands.toml").read_text())
CASES = [(program, words) for program, lines in TABLE["lines"].items() for words in lines]
SETTINGS = [(subject, name) for subject, values in Config().as_dict().items() for name in values]
# No command line can hold the first word that is left out; the other is a whole disk, which some search for runs.
WORDS = [word for word in ODD_WORDS if word not in ("\0", "/")]


@pytest.fixture(autouse=True)
def place(tmp_path, tmp_path_factory, monkeypatch):
    """A working folder with files and a folder, deep enough that `../..` has no runs of others; a cache elsewhere."""
    working = tmp_path / "deep" / "working"
    (working / "folder").mkdir(parents=True)
    (working / "file").write_text("x")
    (working / "binary").write_bytes(b"\xff\xfe")
    monkeypatch.chdir(working)
    monkeypatch.setenv("HOROVOD_TWINS_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setenv("HOROVOD_TWINS_DATA", str(tmp_path / "missing"))  # nothing is fetched


def check_call(call, capfd, *, folder):
    """Call; fail on other exceptions than those that print a line, on other exit codes, on files that appear."""
    began, before = time.monotonic(), sorted(folder.rglob("*"))
    try:
        code = call()
    except SystemExit as stop:
        code = stop.code
    out, err = capfd.readouterr()
    assert code in (0, 1, 2), code
    assert len(err) < 5000
    if code == 2:
        assert len(err.rstrip("\n").splitlines()) == 1, err
    assert "Traceback" not in out + err
    assert time.monotonic() - began < MOST_SECONDS
    assert sorted(folder.rglob("*")) == before


@pytest.mark.ci
@pytest.mark.parametrize(("program", "words"), CASES, ids=[" ".join(case) for case in CASES])
def test_an_odd_argument_is_one_line(program, words, tmp_path, capfd):
    for odd in WORDS:
        check_call(lambda odd=odd: PROGRAMS[program]([*words.split(), odd]), capfd, folder=tmp_path)


@pytest.mark.parametrize(("program", "words", "odd"), TABLE["once"]["broke"])
def test_what_broke_once_is_one_line(program, words, odd, tmp_path, capfd):
    arguments = [*words.split(), odd.replace("NINES", "9" * 5000)]
    check_call(lambda: PROGRAMS[program](arguments), capfd, folder=tmp_path)


@pytest.mark.ci
def test_odd_flags_of_the_trainers_are_errors_of_the_user_at_most():
    words = st.one_of(st.sampled_from(ODD_WORDS), st.text())
    flags = st.sampled_from([f"--{name.replace('_', '-')}" for _, name in SETTINGS])

    def parse(given):
        with suppress(UserError):  # of which the program makes a line
            parse_command_line([part for pair in given for part in pair], program="train.py")

    try_each(st.lists(st.tuples(flags, words), min_size=1, max_size=2), parse, times=2)


@pytest.mark.ci
def test_odd_values_of_recipes_are_errors_of_the_user_at_most():
    values = st.one_of(st.sampled_from(ODD_VALUES + ODD_WORDS), st.integers(), st.floats(), st.text())

    def read(case):
        (table, name), value = case
        with suppress(UserError):
            config_from_dict({table: {name: value}}, source="a recipe")

    try_each(st.tuples(st.sampled_from(SETTINGS), values), read, times=2)


def test_a_number_of_400_digits_is_one_line():
    with pytest.raises(UserError, match=r"\A[^\n]+\Z"):
        parse_command_line(["--epochs", "9" * 400], program="train.py")


@pytest.mark.ci
@pytest.mark.parametrize("kind", ["", "images:", "prepared:", "synthetic:"])
def test_odd_names_of_data_sets_are_errors_of_the_user_at_most(kind):
    def load(name):
        with suppress(UserError):
            load_dataset(kind + name)

    try_each(st.one_of(st.sampled_from(ODD_WORDS), st.text(alphabet="ab\0/~.\udc80")), load)
