import json

import pytest
from builders import write_study

from analysis.__main__ import main

QUESTIONS = [
    "strategies",
    "aa-test",
    "frameworks",
    "clouds",
    "scaling",
    "tune",
    "times",
    "energy",
    "layers",
    "faults",
    "hyperparameters",
    "check",
    "thesis",
    "clouds",
]


@pytest.mark.parametrize("question", dict.fromkeys(QUESTIONS))
def test_a_damaged_folder_is_flagged_by_every_question(tmp_path, question, capsys):
    write_study(tmp_path, seconds=[5.0, 6.0])
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "run.json").write_text("{")
    assert main([question, str(tmp_path), "--format", "json"]) == 0
    flags = json.loads(capsys.readouterr().out)["flags"]
    assert [flag for flag in flags if "damaged" in flag] != [], flags
    assert main([question, str(tmp_path), "--strict"]) == 2
