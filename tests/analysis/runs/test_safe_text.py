"""Text from records is safe to print, to plot and to open in a spreadsheet; flags are said once."""

import csv
import io
import xml.etree.ElementTree as ElementTree

import pytest
from analysis_builders import found
from builders import write_finished_run

from analysis.__main__ import main
from analysis.output.tables import Table, render


@pytest.mark.usefixtures("drawn")
def test_dollars_and_control_characters_of_a_record_are_shown_as_they_are(tmp_path, capsys):
    for site in ("$\\frac$", "red\x1b[31m\u202e\x9b"):
        for seed in (1, 2):
            write_finished_run(tmp_path / f"$cost_{{{seed}$-{len(site)}", site=site, seed=seed)
    assert main(["clouds", str(tmp_path), "--plots", str(tmp_path / "plots")]) == 0
    shown = capsys.readouterr().out
    assert "$\\frac$" in shown and r"red\x1b[31m\u202e\x9b" in shown and "\x1b" not in shown
    plots = sorted((tmp_path / "plots").glob("*.svg"))
    assert any("$\\frac$" in " ".join(ElementTree.parse(plot).getroot().itertext()) for plot in plots)


def test_text_that_a_spreadsheet_would_run_is_neutralized():
    cells = ["=HYPERLINK(1)", "+1", "-2 to +3", "@SUM(A1)", "\t=1", "plain", -1.5, None]
    table = Table("made", ["text"], [[cell] for cell in cells], {})
    rows = [row[0] for row in csv.reader(io.StringIO(render(table, "csv")))][1:]
    assert rows == ["'=HYPERLINK(1)", "'+1", "'-2 to +3", "'@SUM(A1)", "'\t=1", "plain", "-1.5", ""]


def test_a_flag_is_said_once_with_a_count_and_examples():
    flags = [f"cell {number}: the seed differs" for number in range(20)]
    flags += ["cell 3: another: thing", "plain", "plain", "cell 1: the seed differs"]
    expected = ["cell 0; cell 1; cell 2 and 17 more: the seed differs", "cell 3: another: thing", "plain"]
    assert found(flags=flags).flags == expected
