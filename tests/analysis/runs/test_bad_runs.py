"""A run folder that cannot be right is named and left out; text from records is safe to print, to plot and to open."""

import csv
import io
import json
import os
import xml.etree.ElementTree as ElementTree

import pytest
from builders import write_finished_run

from analysis.__main__ import main
from analysis.output.finding import Finding
from analysis.output.tables import Table, render
from analysis.runs.reading import load_runs
from analysis.runs.validity import said_once
from common.errors import UserError
from common.run_folder.records import EPOCHS_FILE, RUN_FILE
from common.utils.printable import printable


def changed(*keys, value):
    """Return what sets a value inside run.json."""

    def change(folder):
        record = json.loads((folder / RUN_FILE).read_text())
        inner = record
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = value
        (folder / RUN_FILE).write_text(json.dumps(record))

    return change


def written(text, file=RUN_FILE):
    """Return what replaces a file."""
    return lambda folder: (folder / file).write_text(text) and None


BAD = {
    "nested": written("[" * 100_000),
    "nested site": changed("site", value=json.loads('{"a":' * 500 + "1" + "}" * 500)),
    "too many digits": written('{"schema_version": 1' + "0" * 5000 + "}"),
    "no JSON": written("{"),
    "0 ranks": changed("world", "size", value=0),
    "-2 ranks": changed("world", "size", value=-2),
    "too many ranks": changed("world", "size", value=10**300),
    "too many samples": changed("data", "training_samples", value=2**70),
    "negative seconds": changed("totals", "training_seconds", value=-1.0),
    "endless": changed("totals", "training_seconds", value=float("inf")),
    "bytes": lambda folder: (folder / EPOCHS_FILE).write_bytes(b"\xff\xfe"),
    "nested epochs": written("[" * 100_000, EPOCHS_FILE),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_run_is_named_and_left_out(name, tmp_path):
    for folder in ("good", "bad"):
        write_finished_run(tmp_path / folder)
    BAD[name](tmp_path / "bad")
    selection = load_runs([tmp_path])
    assert [folder.name for folder in selection.runs["folder"]] == ["good"]
    (line,) = selection.left_out
    assert str(tmp_path / "bad") in line and "\n" not in line and len(line) < 600
    assert "function-" not in line  # a name of pydantic's


@pytest.mark.parametrize("name", [b"caf\xe9", b"red\x1b[31m", b"two\nlines"])
def test_a_name_that_is_no_text_is_left_out_of_every_report(name, tmp_path, capsys):
    for seed in (1, 2):
        write_finished_run(tmp_path / f"good-{seed}", seed=seed)
    named = tmp_path / os.fsdecode(name)
    (tmp_path / "good-2").rename(named)
    assert main(["times", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    shown.encode("utf-8")
    assert "flag: left out: the name of a run folder has control characters or is not UTF-8. Received: " in shown
    assert "\x1b" not in shown
    assert main(["report", str(tmp_path), "-o", str(tmp_path / "page.html")]) == 0
    with pytest.raises(UserError, match="there are no runs"):
        load_runs([named])


@pytest.mark.usefixtures("drawn")
def test_dollars_and_control_characters_of_a_record_are_shown_as_they_are(tmp_path, capsys):
    for site in ("$\\frac$", "red\x1b[31m"):
        for seed in (1, 2):
            write_finished_run(tmp_path / f"$cost_{{{seed}$-{len(site)}", site=site, seed=seed)
    assert main(["clouds", str(tmp_path), "--plots", str(tmp_path / "plots")]) == 0
    shown = capsys.readouterr().out
    assert "$\\frac$" in shown and "red\\x1b[31m" in shown and "\x1b" not in shown
    plots = sorted((tmp_path / "plots").glob("*.svg"))
    assert plots
    texts = [" ".join(ElementTree.parse(plot).getroot().itertext()) for plot in plots]
    assert any("$\\frac$" in text for text in texts)


def test_text_that_a_spreadsheet_would_run_is_neutralized():
    cells = ["=HYPERLINK(1)", "+1+A1", "-2 to +A3", "@SUM(A1)", "\t=1", "plain", -1.5, None]
    intervals = ["-0.38 to +0.20", "+1.5e-07 to +3", "-2 to -1 %", "+1,234.5"]  # which are no formulas
    table = Table("made", ["text"], [[cell] for cell in [*cells, *intervals]], {})
    rows = [row[0] for row in csv.reader(io.StringIO(render(table, "csv")))][1:]
    guarded = ["'=HYPERLINK(1)", "'+1+A1", "'-2 to +A3", "'@SUM(A1)", "'\t=1", "plain", "-1.5", ""]
    assert rows == [*guarded, *intervals]


def test_printable():
    assert printable("plain é – 日本") == "plain é – 日本"
    assert printable("a\x1b[31m\r\n\x9b\u202e\udce9") == r"a\x1b[31m\r\n\x9b\u202e\udce9"
    assert printable("a\nb\t", keep="\n") == "a\nb\\t"


def test_a_flag_is_said_once_with_a_count_and_examples():
    flags = [f"cell {number}: the seed differs" for number in range(20)]
    found = said_once([*flags, "cell 3: another: thing", "plain", "plain", "cell 1: the seed differs"])
    assert found == ["cell 0; cell 1; cell 2 and 17 more: the seed differs", "cell 3: another: thing", "plain"]
    assert Finding(name="a", question="b", answer="c", flags=flags).flags == found[:1]
