"""`python -m analysis report`: the contents of the page, without a browser."""

import base64
import csv
import io
import math
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from analysis_builders import EVIL, found, html_with, write_described
from builders import finished_record, make_record, make_status, write_both, write_finished_run, write_run
from matplotlib.figure import Figure

from analysis.__main__ import main
from analysis.output.finding import Plot
from analysis.output.tables import Table
from analysis.report import assembly
from analysis.report import chapters as report_chapters
from analysis.report.page import html_of
from analysis.report.pictures import MOST_POINTS
from analysis.report.tables import MOST_FILE_ROWS, MOST_ROWS
from analysis.runs.reading import load_runs
from analysis.runs.table import LoadedRun, select
from common.run_folder.records import RUN_FILE

ROOT = Path(__file__).resolve().parents[3]
DIFFERENCES = tomllib.loads((Path(__file__).parents[1] / "runs" / "differences.toml").read_text())


class Read(HTMLParser):
    """The source, texts, tags and tables of a page, read as a browser would."""

    def __init__(self, source):
        super().__init__()
        self.source = source
        self.tags, self.texts, self.rows = [], [], []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data):
        self.texts.append(data)
        if self.rows and self.rows[-1] and self.tags[-1][0] in ("td", "th", "code"):
            self.rows[-1][-1] += data.strip("\n")

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]

    def files(self):
        """Return file name -> rows of each file that can be saved."""
        files = {}
        for link in self.all("a"):
            if link.get("download"):
                content = base64.b64decode(str(link["href"]).partition(",")[2]).decode()
                files[str(link["download"])] = list(csv.reader(io.StringIO(content)))
        return files

    def targets(self):
        """Return the targets of the links within the page, after a check that they are there."""
        anchors = [attributes["id"] for _, attributes in self.tags if "id" in attributes]
        assert len(anchors) == len(set(anchors))
        targets = {link["href"][1:] for link in self.all("a") if link["href"].startswith("#")}
        assert targets <= set(anchors)
        return targets


def make_report(*arguments, output):
    assert main(["report", *map(str, arguments), "-o", str(output)]) == 0
    return Read(output.read_text(encoding="utf-8"))


def page_with(*findings, **changes):
    return Read(html_with(*findings, **changes))


def selection_of(*records):
    """Return these runs, whose epochs have every figure."""
    return select([LoadedRun(Path("run"), record, "finished", np.full((2, 11), 1.0)) for record in records])


# The whole page


@pytest.fixture(scope="module")
def of_both(tmp_path_factory):
    """The page of three runs of each framework, with its pictures: fixtures of the module come first."""
    folder = tmp_path_factory.mktemp("both")
    return make_report(write_both(folder / "runs"), output=folder / "new" / "report.html")


def test_the_page_answers_and_shows_what_the_runs_were(of_both):
    for words in (
        "Which framework is faster, and are the accuracies the same?",
        "In 1 of 1 comparison both frameworks started from the same weights",
        "One kind of machine: example, site local.",
        "6 runs of 2 combinations of settings. By origin: 6 measured.",
        "What was not measured?",
        "not requested (--energy)",
        "the masks of dropout differ",
    ):
        assert words in of_both.text, words
    command = "python -m launch train --framework keras --np 1 -- --epochs 2 --model cnn --seed SEED"
    assert ["Keras", command, "1 to 3", "3"] in of_both.rows
    assert {"frameworks", "commands"} <= of_both.targets()


def test_each_picture_has_a_text_and_its_numbers(of_both):
    images = of_both.all("img")
    assert len(images) == len(of_both.all("figure")) >= 3
    for image in images:
        kind, _, content = image["src"].partition(",")
        drawing = ElementTree.fromstring(base64.b64decode(content))
        assert kind == "data:image/svg+xml;base64"
        assert sum(element.tag.endswith("path") for element in drawing.iter()) > 20, "not blank"
        assert str(image["alt"]).endswith("The numbers are in the table below the picture.")
    heading, *rows = of_both.files()["frameworks-time.csv"]
    assert heading[-1] == "seconds"
    assert sorted(float(row[-1]) for row in rows) == pytest.approx([8.1, 8.2, 8.3, 10.1, 10.2, 10.3])


def test_the_page_begins_with_the_plots_that_answer_and_each_names_its_command(tmp_path, plots):
    runs = tmp_path / "runs"
    for site, seconds in (("aws-g4dn-xlarge", 80.0), ("cte-power", 50.0)):
        for framework in ("torch", "keras"):
            write_finished_run(runs / f"{site}-{framework}", framework=framework, site=site, seconds=seconds)
    page = make_report(runs, output=tmp_path / "report.html")
    figures = [str(one["id"]) for one in page.all("figure")]
    assert figures[:3] == ["clouds-time", "clouds-cost-time", "frameworks-accuracy"]
    assert len(figures) == len(set(figures)), "each is drawn once"
    narrow = [one for one in page.all("source") if str(one["srcset"]).startswith("data:image/svg+xml;base64,")]
    assert len(narrow) == 3 and all(int(str(one["width"])) < 450 for one in narrow), "pictures for phones"
    assert 'Plot at the top: <a href="#clouds-cost-time">Cost against time</a>' in page.source
    assert f"Drawn by <code>python -m analysis clouds {runs} --plots plots</code>" in page.source


def test_whatever_a_run_holds_stays_text(tmp_path, plots):
    run = write_finished_run(tmp_path / "<script>alert(2)<&'", host=EVIL, site=EVIL)
    page = make_report(run, "--title", EVIL, output=tmp_path / "report.html")
    assert len(page.all("script")) == 1
    assert page.text.count(EVIL) >= 3  # title, site and host
    evil = found(
        name=EVIL, question=EVIL, answer=EVIL, flags=[EVIL], notes=[EVIL],
        tables=[Table(EVIL, [EVIL, "command"], [[EVIL, EVIL]], {})],
        plots=[Plot(EVIL, Figure(), Table(EVIL, [EVIL], [[EVIL]], {}))],
    )  # fmt: skip
    silent = replace(evil, name="silent", tables=[], plots=[])
    page = page_with(evil, silent, facts={EVIL: EVIL}, title=EVIL)
    assert len(page.all("script")) == 1 and not any("alert" in name for name, _ in page.tags)
    assert EVIL in str(page.all("img")[0]["alt"])


@pytest.mark.parametrize("run", DIFFERENCES["incomplete"], ids=str)
def test_one_run_makes_a_page_whatever_it_lacks(tmp_path, run, plots):
    page = make_report(write_described(tmp_path / "run", **run), output=tmp_path / "report.html")
    assert "In short" in page.text and "What these runs do not answer" in page.text
    assert "No experiment was run in both frameworks." in page.text


def test_flags_and_what_is_left_out_are_shown_once_and_refused_with_strict(tmp_path, capsys):
    runs = write_both(tmp_path / "runs", seeds=1)
    (runs / "broken").mkdir()
    (runs / "broken" / RUN_FILE).write_text("{")
    page = make_report(runs, output=tmp_path / "report.html")
    assert "left-out" in [one["id"] for one in page.all("section")]
    assert sum("broken" in cell for row in page.rows for cell in row) == len(load_runs([runs]).left_out) == 1
    flags = [row for row in page.rows if "one timed run alone shows nothing" in row[0]]
    assert {"frameworks", "check"} <= set(flags[0][1].split(", ")) and "flags" in page.targets()
    capsys.readouterr()
    strict = tmp_path / "strict.html"
    assert main(["report", str(runs), "-o", str(strict), "--strict"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "(4 flags in all)" in error and not strict.exists()


# Its own chapters


def test_the_page_has_the_parity_commands_settings_and_gaps_of_many_runs(tmp_path):
    expected = tomllib.loads(Path(__file__).with_name("page.toml").read_text())
    for name, run in expected["runs"].items():
        write_described(tmp_path / "runs" / name, **run)
    page = make_report(tmp_path / "runs", output=tmp_path / "report.html")
    for row in expected["rows"]:
        assert row in page.rows, row
    for words in expected["words"]:
        assert words in page.text, words


def test_of_many_seeds_and_folders_a_few_are_named():
    selection = selection_of(*(finished_record(seed=seed) for seed in range(1, 31)))
    page = Read(html_of(assembly.page_of(selection, folders=[f"runs/{number}" for number in range(600)])))
    assert "runs/4 and 595 more" in page.text and "runs/5" not in page.text
    assert "1 to 30" in page.text
    (row,) = report_chapters.commands(selection_of(*selection.runs["record"][::2])).tables[0].rows
    assert row[2:] == ["1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23 and 3 more", 15]


def test_a_command_has_its_tuning_variables():
    """Settings that are told apart are no one command."""
    record = finished_record(np=2)
    slow = replace(record.environment, variables={**record.environment.variables, "HOROVOD_CYCLE_TIME": "5"})
    records = [record, replace(record, environment=slow)]
    rows = report_chapters.commands(selection_of(*records)).tables[0].rows
    plain, tuned = (row[1] for row in rows)
    assert tuned == f"env HOROVOD_CYCLE_TIME=5 {plain}"


# Much and little


@pytest.mark.parametrize("rows", [MOST_ROWS + 50, MOST_FILE_ROWS + 1])
def test_a_long_table_is_cut_with_a_line_and_its_file_is_whole_or_cut_too(rows):
    table = Table("Long", ["name", "s"], [[f"run {number}", number / 3] for number in range(rows)], {"s": ".2f"})
    page = page_with(found(tables=[table]))
    assert len(page.rows) == MOST_ROWS + 1  # with headings
    assert f"The page shows the first {MOST_ROWS} of {rows:,} rows." in page.text
    file, last = page.files()["example-table-1.csv"], min(rows, MOST_FILE_ROWS) - 1
    assert len(file) == last + 2 and file[-1] == [f"run {last}", str(last / 3)]
    assert (f"The file ends after {MOST_FILE_ROWS:,} of {rows:,} rows." in page.text) == (rows > MOST_FILE_ROWS)


def test_numbers_are_rounded_for_readers_only_and_empty_columns_are_named():
    rows = [["a", 1234.5678, None, None], ["b", math.nan, None, 2], ["c", math.inf, None, -1]]
    page = page_with(found(tables=[Table("T", ["name", "s", "nothing", "some"], rows, {"s": ",.1f"})]))
    assert page.rows[:2] == [["name", "s", "some"], ["a", "1,234.6", "–"]]
    values = [cell.get("data-value") for cell in page.all("td")]
    assert values == [None, "1234.5678", "nan", None, "nan", "2", None, "inf", "-1"]
    assert "No values: nothing." in page.text
    assert page.files()["example-table-1.csv"][1] == ["a", "1234.5678", "", ""]


def page_with_plot(points, *, inches=3, first_plots=()):
    figure = Figure(figsize=(4, inches))
    figure.subplots().plot(range(points), range(points), "o")
    plot = Plot("cloud", figure, Table("Cloud", ["x"], [[1]], {}))
    return page_with(found(plots=[plot]), first_plots=first_plots)


def test_a_plot_of_many_points_becomes_pixels_with_a_note():
    few, many = page_with_plot(10), page_with_plot(MOST_POINTS + 1)
    assert str(few.all("img")[0]["src"]).startswith("data:image/svg+xml;base64,")
    assert str(many.all("img")[0]["src"]).startswith("data:image/png;base64,")
    assert "All points are drawn, as pixels because there are many." in many.text and "pixels" not in few.text


@pytest.mark.parametrize("first_plots", [[], ["cloud"]])
def test_a_very_long_plot_is_left_out_and_its_data_stays(first_plots):
    page = page_with_plot(10, inches=500, first_plots=first_plots)
    assert "The picture would be 13 m long and is not drawn; its data is complete." in page.text
    assert page.all("img") + page.all("source") == [] and page.files()["cloud.csv"] == [["x"], ["1"]]


# Up to date


def test_a_page_is_written_anew_only_after_a_change(tmp_path, capsys):
    runs, output = [write_finished_run(tmp_path / name) for name in ("a", "b")], tmp_path / "report.html"
    command = ["report", *map(str, runs), "-o", str(output)]

    def written(*more):
        output.touch()
        before = output.stat().st_ino  # another file takes its place when it is written
        assert main([*command, *more]) == 0
        line = capsys.readouterr().out
        assert ("is up to date" in line) == (output.stat().st_ino == before) and line.count("\n") == 1
        return "is up to date" not in line

    assert main(command) == 0
    assert capsys.readouterr().out.startswith(f"report: {output} (")
    assert not written()
    record = runs[1] / RUN_FILE
    record.write_text(record.read_text().replace('"framework": "torch"', '"framework": "keras"'))
    assert written(), "a run is another one"
    assert not written()
    (runs[0] / "power.csv").touch()
    assert written(), "a file came"
    assert written("--force")
    assert main([*command, "--title", "Other"]) == 2, "another command's page is not replaced"
    assert "--force" in capsys.readouterr().err
    (tmp_path / "run.log").touch()
    assert written(), "what belongs to several runs is beside them"
    output.write_text("mine", encoding="utf-8")
    assert written("--force")


def test_a_page_about_a_run_that_goes_on_is_never_up_to_date(tmp_path, capsys):
    run = write_run(tmp_path / "run", make_record(status=make_status()))
    for _ in range(2):
        make_report(run, output=tmp_path / "report.html")
        assert "up to date" not in capsys.readouterr().out


def test_that_a_page_is_up_to_date_is_found_out_without_statistics_and_plots(tmp_path):
    arguments = ["report", str(write_finished_run(tmp_path / "run")), "-o", str(tmp_path / "report.html")]
    assert main(arguments) == 0
    code = "import sys; from analysis.__main__ import main; main(sys.argv[1:]); print(*sys.modules)"
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    line, modules = done.stdout.splitlines()
    assert "is up to date" in line
    assert not {"pandas", "scipy", "matplotlib", "jinja2"} & set(modules.split())
