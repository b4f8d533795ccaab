"""`python -m analysis report`: the contents of the page, without a browser."""

import base64
import csv
import io
import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from analysis_builders import EVIL, found, html_with
from builders import finished_record, make_environment, make_record, make_status, write_both, write_run
from matplotlib.figure import Figure

from analysis.__main__ import main
from analysis.output.finding import Plot
from analysis.output.tables import Table
from analysis.report import assembly
from analysis.report import chapters as report_chapters
from analysis.report.page import html_of
from analysis.report.pictures import MOST_POINTS
from analysis.report.tables import MOST_FILE_ROWS, MOST_ROWS
from analysis.runs.cells import cells_of
from analysis.runs.reading import load_runs
from analysis.runs.table import LoadedRun, select
from common.run_folder.records import (
    RUN_FILE,
    Hashes,
    NotRecorded,
    now,
)

ROOT = Path(__file__).resolve().parents[3]


def selection_of(*records):
    """Return these runs, whose epochs have every figure."""
    return select([LoadedRun(Path("run"), record, "finished", np.full((2, 11), 1.0)) for record in records])


# Read as a browser would


@dataclass
class Read(HTMLParser):
    """Texts, tags and tables of a page."""

    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)

    def __post_init__(self):
        super().__init__()

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


def read_page(text):
    page = Read()
    page.feed(text)
    page.close()
    return page


def make_report(*arguments, output):
    assert main(["report", *map(str, arguments), "-o", str(output)]) == 0
    return read_page(output.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def of_both(tmp_path_factory):
    """The page of three runs of each framework."""
    folder = tmp_path_factory.mktemp("both")
    make_report(write_both(folder / "runs"), output=folder / "new" / "report.html")
    return folder / "new" / "report.html"


def page_with(*findings, **changes):
    return read_page(html_with(*findings, **changes))


# Content


def test_the_page_answers_and_shows_what_the_runs_were(of_both):
    page = read_page(of_both.read_text(encoding="utf-8"))
    for words in (
        "Keras and PyTorch on Horovod: cnn",
        "Which framework is faster, and are the accuracies the same?",
        "In 1 of 1 comparison both frameworks started from the same weights",
        "One kind of machine: example, site local.",
        "6 runs of 2 combinations of settings. By origin: 6 measured.",
        "What was not measured?",
        "not requested (--energy)",
        "the masks of dropout differ",
    ):
        assert words in page.text, words
    assert ["Keras", "python -m launch train --framework keras --np 1 -- --epochs 2 --model cnn --seed SEED",
            "1 to 3", "3"] in page.rows  # fmt: skip


def test_each_picture_has_a_text_and_its_numbers(of_both):
    """The page is one whose pictures are drawn: as fixtures of the module come first."""
    page = read_page(of_both.read_text(encoding="utf-8"))
    images, files = page.all("img"), page.files()
    assert len(images) == len(page.all("figure")) >= 3
    for image in images:
        kind, _, content = image["src"].partition(",")
        drawing = ElementTree.fromstring(base64.b64decode(content))
        assert kind == "data:image/svg+xml;base64" and float(drawing.get("width").removesuffix("pt")) > 300
        assert sum(element.tag.endswith("path") for element in drawing.iter()) > 20, "not blank"
        assert str(image["alt"]).endswith("The numbers are in the table below the picture.")
    assert any("n = 3 runs each; all points, median." in str(image["alt"]) for image in images), (
        "three have no interval"
    )
    rows = files["frameworks-time.csv"]
    assert rows[0][-1] == "seconds"
    assert sorted(float(row[-1]) for row in rows[1:]) == pytest.approx([8.1, 8.2, 8.3, 10.1, 10.2, 10.3])


def test_the_page_begins_with_the_plots_that_answer_and_each_names_its_command(tmp_path, plots):
    runs, output = tmp_path / "runs", tmp_path / "report.html"
    for site in ("aws-g4dn-xlarge", "cte-power"):
        for framework in ("torch", "keras"):
            record = finished_record(framework=framework, site=site, seconds=50.0 if site == "cte-power" else 80.0)
            write_run(runs / f"{site}-{framework}", record)
    page = make_report(runs, output=output)
    figures = [str(one["id"]) for one in page.all("figure")]
    assert figures[:3] == ["clouds-time", "clouds-cost-time", "frameworks-accuracy"]
    assert len(figures) == len(set(figures)), "each is drawn once"
    text = output.read_text(encoding="utf-8")
    assert text.index('id="clouds-time"') < text.index('<dl class="questions">') < text.index('id="frameworks-time"')
    narrow = [one for one in page.all("source") if str(one["srcset"]).startswith("data:image/svg+xml;base64,")]
    assert len(narrow) == 3 and all(int(str(one["width"])) < 450 for one in narrow), "pictures for phones"
    assert 'Plot at the top: <a href="#clouds-cost-time">Cost against time</a>' in text
    assert f"Drawn by <code>python -m analysis clouds {runs} --plots plots</code>" in text
    assert {row[1] for row in page.files()["clouds-cost-time.csv"][1:]} == {"aws-g4dn-xlarge"}, "CTE-POWER has no price"


def test_nothing_is_loaded_and_only_the_own_script_may_run_and_links_arrive(of_both):
    text = of_both.read_text(encoding="utf-8")
    page = read_page(text)
    for _, attributes in page.tags:
        for name in ("src", "href", "srcset", "data", "action", "poster"):
            assert str(attributes.get(name) or "#").startswith(("#", "data:")), attributes
        assert not any(name.startswith("on") or name == "style" for name in attributes)
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)
    assert style and "@import" not in style[1] and "url(" not in style[1]
    policy = next(one["content"] for one in page.all("meta") if one.get("http-equiv") == "Content-Security-Policy")
    assert str(policy).startswith("default-src 'none'; img-src data:; style-src 'sha256-")
    assert {"frameworks", "commands"} <= targets_of(page)


def targets_of(page):
    """Return the targets of the links within a page, after a check that they are there."""
    anchors = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(anchors) == len(set(anchors))
    targets = {link["href"][1:] for link in page.all("a") if link["href"].startswith("#")}
    assert targets <= set(anchors)
    return targets


def test_whatever_a_run_holds_stays_text(tmp_path, plots):
    record = finished_record(host=EVIL, site=EVIL)
    page = make_report(write_run(tmp_path / "<script>alert(2)<&'", record), "--title", EVIL, output=tmp_path / "r.html")
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


def test_chapters_without_rows_are_open_questions(monkeypatch, tmp_path):
    silent = found(name="clouds", question="Which cloud?", answer="All runs are of one site.")
    shown = found(name="shown", tables=[Table("Some", ["a"], [[1]], {})])
    monkeypatch.setattr(assembly, "CHAPTERS", [lambda _: silent, lambda _: shown])
    page = make_report(write_run(tmp_path / "run", finished_record()), output=tmp_path / "report.html")
    ids = [str(one["id"]) for one in page.all("section")]
    assert ids == ["in-short", "shown", "open"]
    assert "What these runs do not answer" in page.text and "All runs are of one site." in page.text


# Parity, machines, commands


def test_parity_is_shown_for_each_seed():
    torch, keras = ([finished_record(framework=name, seed=seed) for seed in (1, 2)] for name in ("torch", "keras"))
    other = replace(keras[1], hashes=replace(keras[1].hashes, initial_weights="f" * 32))
    unknown = replace(keras[1], hashes=NotRecorded("an old format"))
    again = replace(keras[0], hashes=replace(keras[0].hashes, sample_order="e" * 32))
    cases = [
        ([*torch, *keras], [2, "2 of 2", "2 of 2", "none", "same"]),
        ([*torch, keras[0], other], [2, "1 of 2", "2 of 2", "none", "not the same"]),
        ([*torch, keras[0], unknown], [2, "1 of 2", "1 of 2", "none", "not shown"]),
        ([torch[0], keras[1]], [0, "0 of 0", "0 of 0", "none", "not shown"]),
        ([torch[0], keras[0], again], [1, "1 of 1", "0 of 1", "none", "not the same"]),
    ]
    for records, expected in cases:
        (row,) = report_chapters.parity(selection_of(*records)).tables[0].rows
        assert row[1:] == expected
    finding = report_chapters.parity(selection_of(*torch, keras[0], other))
    assert [row[-1] for row in finding.tables[1].rows] == ["same", "not the same"]
    assert finding.tables[1].rows[1][2:4] == ["first2", "ffffffffff"]
    assert "In 1 they did not." in finding.answer


TWO_HOSTS = {"hosts": ["a", "b"], "local_size": 1}
SERVER = {"strategy": {"strategy": "server", "servers": 1}}


@pytest.mark.parametrize(
    ("changes", "command"),
    [
        ({}, "python -m launch train --framework keras --np 2 -- --epochs 2 --model cnn --seed SEED"),
        ({"world": {"controller": "gloo"}}, "python -m launch train --framework keras --np 2 --controller gloo -- "),
        ({"np": 4, "world": {"hosts": ["a", "a", "b", "b"], "local_size": 2}},
         "horovodrun -np 4 -H a:2,b:2 python keras_impl/train.py --epochs 2"),
        ({"settings": SERVER}, "python -m launch train --framework keras --np 3 -- "),
        ({"settings": SERVER, "world": TWO_HOSTS}, "horovodrun -np 3 -H a:1,b:2 python "),
        ({"environment": make_environment(command=["train.py", "--seed=3", "--dataset", "images:my folder", "--name=y",
                                                   "--runs-folder", "z"])},
         "python -m launch train --framework keras --np 2 -- --seed SEED --dataset 'images:my folder'"),
    ],
)  # fmt: skip
def test_commands_are_those_that_start_the_ranks_too(changes, command):
    record = finished_record(**{"framework": "keras", "np": 2, "seed": 7} | changes)
    ((_, shown, seeds, runs),) = report_chapters.commands(selection_of(record)).tables[0].rows
    assert shown.startswith(command) and (seeds, runs) == ("7", 1)


def test_runs_that_differ_in_seed_share_a_line_of_commands():
    runs = [finished_record(seed=seed) for seed in range(1, 31)]
    unknown = finished_record(environment=NotRecorded("not in the source"))
    finding = report_chapters.commands(selection_of(*runs, unknown))
    assert [row[2:] for row in finding.tables[0].rows] == [["1 to 30", 30]]
    assert finding.notes == ["command not recorded in 1 run: not in the source"]
    assert "(30 of 31 runs)" in finding.answer
    (row,) = report_chapters.commands(selection_of(*runs[::2])).tables[0].rows
    assert row[2] == "1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23 and 3 more"


def test_what_was_not_measured_has_a_reason_and_a_count():
    known = finished_record()
    unknown = finished_record(
        hashes=Hashes(initial_weights=NotRecorded("not kept"), sample_order=NotRecorded("not kept")),
        totals=replace(known.totals, startup_seconds=NotRecorded("no clock")),
        energy=NotRecorded("no meter"),
    )
    rows = report_chapters.not_measured(selection_of(known, unknown)).tables[0].rows
    assert ["energy", "not requested (--energy)", 1, 2] in rows
    assert ["energy", "no meter", 1, 2] in rows
    assert ["hashes: sample order", "not kept", 1, 2] in rows
    assert ["totals: startup seconds", "no clock", 1, 2] in rows
    assert next(row for row in rows if row[0] == "totals: seconds to target")[2] == 2


def test_settings_are_split_into_shared_and_varying():
    selection = selection_of(*(finished_record(np=ranks, batch=60 // ranks) for ranks in (1, 2)))
    varying, shared = report_chapters.settings(selection).tables
    assert varying.headings == ["np", "controller", "runs", "seeds"]
    values = dict(shared.rows)
    assert values["model"] == "cnn" and values["nesterov"] == "no" and values["early stop"] == "none"
    assert len(varying.rows) == len(cells_of(selection.runs)) == 2


# Much, little and wrong


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
    assert page.rows[0] == ["name", "s", "some"]
    assert page.rows[1] == ["a", "1,234.6", "–"]
    values = [cell.get("data-value") for cell in page.all("td")]
    assert values == [None, "1234.5678", "nan", None, "nan", "2", None, "inf", "-1"]
    assert "No values: nothing." in page.text
    assert page.files()["example-table-1.csv"][1] == ["a", "1234.5678", "", ""]


def figure_of(points):
    figure = Figure(figsize=(4, 3))
    figure.subplots().plot(range(points), range(points), "o")
    return Plot("cloud", figure, Table("Cloud", ["x"], [[1]], {}))


def test_a_plot_of_many_points_becomes_pixels_with_a_note():
    few, many = (page_with(found(plots=[figure_of(points)])) for points in (10, MOST_POINTS + 1))
    assert str(few.all("img")[0]["src"]).startswith("data:image/svg+xml;base64,")
    assert str(many.all("img")[0]["src"]).startswith("data:image/png;base64,")
    assert "All points are drawn, as pixels because there are many." in many.text and "pixels" not in few.text


@pytest.mark.parametrize("first_plots", [[], ["cloud"]])
def test_a_very_long_plot_is_left_out_and_its_data_stays(first_plots):
    plot = figure_of(10)
    plot.figure.set_size_inches(2, 500)
    page = page_with(found(plots=[plot]), first_plots=first_plots)
    assert "The picture would be 13 m long and is not drawn; its data is complete." in page.text
    assert page.all("img") + page.all("source") == [] and page.files()["cloud.csv"] == [["x"], ["1"]]


def test_of_many_folders_a_few_are_named():
    selection = selection_of(finished_record())
    page = read_page(html_of(assembly.page_of(selection, folders=[f"runs/{number}" for number in range(600)])))
    assert "runs/4 and 595 more" in page.text and "runs/5" not in page.text


@pytest.mark.parametrize(
    "record",
    [
        finished_record(accuracy=math.nan),
        finished_record(seconds=0.0),
        make_record(origin="published", status=NotRecorded("published"), environment=NotRecorded("published")),
        make_record(config=NotRecorded("an example")),
        make_record(status=make_status(state="failed", ended_at=now())),
    ],
    ids=["accuracy is NaN", "no time", "published", "no settings", "failed"],
)
def test_one_run_makes_a_page_whatever_it_lacks(tmp_path, record, plots):
    page = make_report(write_run(tmp_path / "run", record), output=tmp_path / "report.html")
    assert "In short" in page.text and "What these runs do not answer" in page.text
    assert "No experiment was run in both frameworks." in page.text


def test_folders_left_out_are_named_once(tmp_path):
    runs = write_both(tmp_path / "runs", seeds=1)
    (runs / "broken").mkdir()
    (runs / "broken" / "run.json").write_text("{", encoding="utf-8")
    page = make_report(runs, output=tmp_path / "report.html")
    assert "left-out" in [one["id"] for one in page.all("section")]
    assert sum("broken" in cell for row in page.rows for cell in row) == 1
    assert len(load_runs([runs]).left_out) == 1


def test_flags_are_shown_once_and_refused_with_strict(tmp_path, capsys):
    runs, output = write_both(tmp_path / "runs", seeds=1), tmp_path / "report.html"
    page = make_report(runs, output=output)
    flags = [row for row in page.rows if "one timed run alone shows nothing" in row[0]]
    assert {"frameworks", "check"} <= set(flags[0][1].split(", "))
    assert len({row[0] for row in flags}) == len(flags) and "flags" in targets_of(page)
    assert re.search(r"[0-9]+ flags? : read them before you rely on a number\.", page.text)
    capsys.readouterr()
    strict = tmp_path / "strict.html"
    assert main(["report", str(runs), "-o", str(strict), "--strict"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("python -m analysis report: error: not comparable. Received: ")
    assert error.count("\n") == 1 and "one timed run alone shows nothing" in error and not strict.exists()


def test_a_page_is_written_anew_only_after_a_change(tmp_path, capsys):
    runs, output = [write_run(tmp_path / name, finished_record()) for name in ("a", "b")], tmp_path / "report.html"
    command = ["report", *map(str, runs), "-o", str(output)]

    def written(*more):
        output.touch()
        before = output.stat().st_ino  # another file takes its place when it is written
        assert main([*command, *more]) == 0
        told = capsys.readouterr().out
        assert ("is up to date" in told) == (output.stat().st_ino == before) and told.count("\n") == 1
        return "is up to date" not in told

    assert main(command) == 0
    shown, pictures = capsys.readouterr().out, len(read_page(output.read_text(encoding="utf-8")).all("img"))
    assert shown.startswith(f"report: {output} (") and "chapters" in shown and f"plots {pictures}, flags" in shown
    assert not written()
    record = runs[1] / RUN_FILE
    record.write_text(record.read_text().replace('"framework": "torch"', '"framework": "keras"'))
    assert written(), "a run is another one"
    assert "Keras" in output.read_text(encoding="utf-8")
    assert not written()
    (runs[0] / "power.csv").touch()
    assert written(), "a file came"
    assert written("--force")
    assert main([*command, "--title", "Other"]) == 2, "another command's page is not replaced"
    assert "--force" in capsys.readouterr().err
    (tmp_path / "run.log").touch()
    assert written(), "what belongs to several runs is beside them"
    output.write_text("mine", encoding="utf-8")
    assert written("--force") and output.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert {one.name for one in tmp_path.iterdir()} == {"a", "b", "run.log", "report.html"}


def test_a_page_about_a_run_that_goes_on_is_never_up_to_date(tmp_path, capsys):
    run = write_run(tmp_path / "run", make_record(status=make_status()))
    for _ in range(2):
        assert main(["report", str(run), "-o", str(tmp_path / "report.html")]) == 0
        assert "up to date" not in capsys.readouterr().out


def test_that_a_page_is_up_to_date_is_found_out_without_statistics_and_plots(tmp_path):
    run, output = write_run(tmp_path / "run", finished_record()), tmp_path / "report.html"
    arguments = ["report", str(run), "-o", str(output)]
    assert main(arguments) == 0
    code = "import sys; from analysis.__main__ import main; main(sys.argv[1:]); print(*sys.modules)"
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    told, modules = done.stdout.splitlines()
    assert "is up to date" in told
    assert not {"pandas", "scipy", "matplotlib", "jinja2"} & set(modules.split())
