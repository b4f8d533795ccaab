"""The rows of `make equality` reach every setting, and what compares two records sees a difference."""

import dataclasses
import importlib.util
import json
from pathlib import Path

import pytest

from common.config import Config
from common.config.command_line import parse_command_line

SPECIFICATION = importlib.util.spec_from_file_location("equality", Path(__file__).with_name("run.py"))
equality = importlib.util.module_from_spec(SPECIFICATION)
SPECIFICATION.loader.exec_module(equality)
ROWS, LEFT_OUT = equality.read_rows()


def given_settings():
    """Return the names of the settings that rows give another value than the default."""
    names = set()
    for row in ROWS:
        for words in (row.settings, *row.then):
            flags = [word for word in words.split() if word.startswith("--")]
            names |= {flag.removeprefix("--").removeprefix("no-").replace("-", "_") for flag in flags}
    return names


def all_settings():
    return {
        setting.name
        for subject in dataclasses.fields(Config)
        for setting in dataclasses.fields(getattr(Config(), subject.name))
    }


def test_every_setting_has_a_row_or_a_reason():
    from_the_program = {"name", "resume", "runs_folder"}  # every run has a name there, and is resumed by it
    assert all_settings() - given_settings() - from_the_program == set(LEFT_OUT)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_rows_are_command_lines(row):
    for framework in row.frameworks:
        words = f"{row.settings} --name {row.folder}".format(folder="F").split()
        parse_command_line(words, program=f"{framework}_impl/train.py")


@pytest.fixture
def folders(tmp_path):
    """Two run folders with the same record."""
    for side in ("before", "now"):
        (tmp_path / side).mkdir()
        run = {"config": {"seed": 1}, "totals": {"loss": 0.5, "seconds": 1.0}, "ranks": [{"sent_bytes": 1}]}
        (tmp_path / side / "run.json").write_text(json.dumps(run))
        (tmp_path / side / "epochs.jsonl").write_text('{"loss": 0.25, "training_seconds": 2.0}\n')
    return tmp_path / "before", tmp_path / "now"


def changed(folder, file, old, new):
    path = folder / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def test_times_may_differ(folders):
    changed(folders[1], "run.json", '"seconds": 1.0', '"seconds": 2.0')
    changed(folders[1], "epochs.jsonl", "2.0", "3.0")
    assert equality.differing_records(*folders, only_names=False) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "difference"),
    [
        ("run.json", "0.5", "0.50001", ".run.totals.loss: 0.5, now 0.50001"),
        ("epochs.jsonl", "0.25", "0.2", ".epochs[0].loss: 0.25, now 0.2"),
        ("run.json", '"seed"', '"sead"', ".run.config.sead is only in one record"),
        ("run.json", '"ranks": [', '"ranks": [7, ', ".run.ranks[0] is only in one record"),
    ],
)
def test_other_values_and_fields_are_seen(folders, file, old, new, difference):
    changed(folders[1], file, old, new)
    assert any(line.startswith(difference) for line in equality.differing_records(*folders, only_names=False))
