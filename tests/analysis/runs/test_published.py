"""Published results beside one's own runs: the shipped file, `--published` in every command, claims about sites."""

import json
import math

import pytest
from analysis_builders import study
from builders import make_trace, write_study
from matplotlib.colors import to_hex, to_rgba
from matplotlib.lines import Line2D

from analysis.__main__ import main
from analysis.questions import frameworks, times
from analysis.questions.clouds import finding as clouds
from analysis.questions.energy import command as energy
from analysis.questions.hyperparameters import command as hyperparameters
from analysis.questions.scaling import command as scaling
from analysis.runs.cells import cells_of
from analysis.runs.published import PUBLISHED_FILE, published_claims, published_results, published_runs, read_published
from analysis.runs.table import select
from common.errors import UserError

SOURCES = ("article", "notebook", "thesis", "pydtnn")
COMMANDS = ("frameworks", "clouds", "scaling", "energy", "hyperparameters", "times", "check", "thesis")


@pytest.fixture
def runs(tmp_path):
    write_study(tmp_path / "runs", seconds=[6.0, 6.5, 7.0])
    return tmp_path / "runs"


# The shipped file


def test_the_figures_of_the_documents_and_what_they_omit():
    """Digits as printed in the sources."""
    named = {run.name: run for run in select(published_runs(SOURCES)).rows}
    gpu = named["thesis-gpu1"]
    assert (gpu.training_seconds, gpu.total_seconds) == pytest.approx((6008.01, 6607.74))
    assert (gpu.accuracy, gpu.np, gpu.global_batch, gpu.image_size, gpu.device) == (0.80, 1, 128, "197x148", "gpu")
    assert named["notebook-cpu"].accuracy == 0.9826 and named["notebook-cpu"].test_loss == 0.0539
    other = named["pydtnn-mnist"]
    assert (other.framework, other.np, other.global_batch, other.training_seconds) == ("pydtnn", 12, 768, 18.34)
    energy = named["thesis-gpu2-energy"].record.energy
    assert energy.used_devices.joules == pytest.approx(1_150_358.15, abs=0.01) and energy.seconds == 3730.5
    run = named["notebook-gpu"]
    assert math.isnan(run.training_seconds) and math.isnan(run.images_per_second)
    assert run.seed is None and run.config is None


def test_every_result_has_a_place_and_a_name_and_a_cell_of_its_own():
    """A published figure is a mean already: two of them have no median."""
    results = published_results(SOURCES)
    assert {result.source for result in results.values()} == {"notebook", "thesis", "pydtnn"}
    assert all(result.where and name.startswith(f"{result.source}-") for name, result in results.items())
    assert all(not result.shown or result.n or result.accuracy for result in results.values())
    folders = [run.folder for run in published_runs(SOURCES)]
    assert len(set(folders)) == len(folders)
    for cell in cells_of(select(published_runs(SOURCES)).runs):
        assert len({run.name.removesuffix("-energy") for run in cell.runs}) == 1, cell.label
        assert cell.label.endswith("published") and cell.label.count("published") == 1


def test_labels_beside_measured_runs_name_only_what_differs():
    """Settings that sources do not state are no difference."""
    labels = [cell.label for cell in cells_of(select([*study(), *published_runs(["notebook"])]).runs)]
    published = "global batch 200, samples 60000/0/10000, notebook"
    assert [label.removeprefix("cnn, mnist, np 1, ") for label in labels] == [
        "local, cpu, global batch 30, samples 120/0/1000, measured",
        f"notebook-machine, cpu, {published}, printed output, published",
        f"notebook-machine, gpu, {published}, section Results, published",
    ]


def test_claims_that_are_no_run():
    (slower,) = [claim for claim in published_claims(["article"]) if claim.times]
    assert (slower.times, slower.base) == (7.0, "cte-power")
    assert any("5 times" in claim.words and not claim.shown for claim in published_claims(["notebook"]))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("accuracy = 0.9826", 'accuracy = "good"', "is not a table of published results"),
        ("n = 1", "m = 1", "is not a table of published results"),
        ('source = "notebook"', 'source = "005"', "unknown source. Received: 005"),
        ("[sources]", "[sources", "not TOML"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, old, new, message):
    (tmp_path / "published.toml").write_text(PUBLISHED_FILE.read_text().replace(old, new))
    with pytest.raises(UserError, match=message):
        read_published(tmp_path / "published.toml")


# Commands


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_takes_them(runs, tmp_path, command, capsys, plots):
    assert main([command, str(runs), "--published", "--plots", str(tmp_path / "plots")]) == 0
    printed = capsys.readouterr().out
    assert "note: published pydtnn-mnist: printed output; one run; 18.34 s and 32,712.78 samples/s count" in printed
    assert "almost 7 times" in printed
    if command not in ("check", "thesis"):
        assert "published, a mean or a claim without interval: nobody can check it" in printed


def test_tables_and_flags_say_published_where_they_are_asked_for(runs, capsys):
    assert main(["frameworks", str(runs), "--published", "thesis", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (times,) = [table["rows"] for table in found["tables"] if table["title"].startswith("Times")]
    (row,) = [row for row in times if row["training, s"] == 3048.93]
    assert row["model, data set, np"].endswith("published") and row["n"] == 1
    assert row["95 % interval"] is None, "a mean has no interval here"
    assert any("nobody can check" in flag for flag in found["flags"])
    assert not any("pydtnn" in note for note in found["notes"])
    assert main(["frameworks", str(runs)]) == 0
    assert "published" not in capsys.readouterr().out


def fills_of(plot):
    """Return the fills of all points of a picture and of its legends' entries, by whether they are an entry."""
    fills = {True: set(), False: set()}
    for line in plot.figure.findobj(Line2D):
        if line.get_marker() not in ("None", "", "_"):  # "_": a median
            fill = line.get_markerfacecolor()
            is_entry = line.axes is None or not len(line.get_xdata())
            fills[is_entry].add("full" if to_rgba(fill)[3] and to_hex(fill) != "#ffffff" else "hollow")
    return fills


@pytest.mark.parametrize("question", [frameworks, clouds, scaling, energy, hyperparameters, times])
def test_points_of_published_figures_are_hollow_and_measured_ones_are_not(question, plots):
    published = question.find(select(published_runs(SOURCES))).plots
    assert {fill for plot in published for fill in fills_of(plot)[False]} == {"hollow"}
    trace = make_trace({"training": 10}, {"cpu0": {"training": 50.0}})
    runs = [study(f"np{np}", np=np, batch=batch, seconds=[5.0, 5.5, 6.0], accuracies=[0.3, 0.5, 0.7])
            for np, batch in ((1, 30), (2, 30), (1, 60))]  # fmt: skip
    measured = question.find(
        select([run for group in (*runs, study("metered", traces=[trace])) for run in group])
    ).plots
    assert {fill for plot in measured for fill in fills_of(plot)[False]} == {"full"}


def claims(capsys, runs):
    assert main(["clouds", str(runs), "--published", "article", "--format", "json"]) == 0
    tables = json.loads(capsys.readouterr().out)["tables"]
    (rows,) = [table["rows"] for table in tables if table["title"] == "Published claims about sites"]
    return rows


def test_a_claim_is_shown_beside_the_measured_ratio_or_without_one(runs, tmp_path, capsys):
    """Twelve runs: 42 s on AWS against 6 s are 7 times as long, as the article says."""
    assert [row["experiment"] for row in claims(capsys, runs)] == ["no timed runs on both"] * 2
    for site, seconds in (("cte-power", 6.0), ("aws-g3-4xlarge", 42.0)):
        write_study(tmp_path / "sites", name=site, seconds=[seconds] * 6, site=site)
    (row,) = [row for row in claims(capsys, tmp_path / "sites") if row["times as long, published"]]
    assert (row["times as long, published"], row["times as long, these runs"]) == (7.0, pytest.approx(7.0))
    assert (row["site"], row["against"]) == ("aws-g3-4xlarge", "cte-power")


def test_the_report_has_them(runs, tmp_path):
    output = tmp_path / "report.html"
    assert main(["report", str(runs), "--published", "article", "pydtnn", "-o", str(output)]) == 0
    text = output.read_text()
    assert "From the sources article and pydtnn; they cannot be checked." in text and "thesis-gpu1" not in text
    assert "almost 7 times" in text and "simplecnn, mnist, np 12, published" in text
