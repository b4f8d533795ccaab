"""`python -m analysis clouds`: costs to the cent, ratios by hand, prices of a day, and what cannot be compared."""

import json
from datetime import date
from pathlib import Path

import pytest
from analysis_builders import made_runs, rows_of, select, study
from builders import make_trace, make_world, write_study
from question_cases import case_in, selection_of

from analysis.__main__ import main
from analysis.questions import frameworks
from analysis.questions.clouds.finding import assigned, find
from analysis.questions.clouds.pricing import Pricing
from analysis.runs.published import published_runs
from analysis.runs.reading import load_runs
from common.sites.table import read_sites

SITES = read_sites()
FOUR_GPUS = make_world(*(f"cuda:{number}" for number in range(4)))
CASES = Path(__file__).with_name("clouds.toml")


def write_site(folder, site, times, **changes):
    write_study(folder, name=site, seconds=times, site=site, lines={"checkpoint_seconds": 0.0}, **changes)


TABLE = """
[sites.cloud]
title = "a cloud"
kind = "rented"
source = "its page"
gpu = "v100"
gpus = 2
prices = [
  { date = 2025-01-01, usd_per_hour = 36.0, terms = "on demand", source = "page of 2025" },
  { date = 2026-01-01, usd_per_hour = 18.0, terms = "on demand", source = "page of 2026" },
]
"""


def test_published_results_keep_their_site(tmp_path, monkeypatch):
    """They are in no folder, also where RUNS is the current one."""
    write_site(tmp_path, "local", [185.0])
    monkeypatch.chdir(tmp_path)
    before = load_runs(["."], added=published_runs(["thesis"]))
    runs = assigned(before, ".=cte-power", sites=SITES).runs
    is_published = runs["origin"] == "published"
    assert is_published.any() and set(runs["site"][~is_published]) == {"cte-power"}
    assert runs["site"][is_published].equals(before.runs["site"][is_published])


@pytest.mark.parametrize(
    ("on", "dollars", "seen"),
    [
        ([], 1.0, "2026-01-01"),
        (["--on", "2025-06-30"], 2.0, "2025-01-01"),
        (["--on", "2020-01-01"], 2.0, "first known price, of 2025-01-01"),
    ],
)
def test_old_runs_are_priced_anew(tmp_path, capsys, on, dollars, seen):
    write_site(tmp_path / "runs", "local", [185.0])
    write_site(tmp_path / "rented", "local", [185.0])
    (tmp_path / "mine.toml").write_text(TABLE)
    moving = ["--site-of", f"{tmp_path / 'rented'}=cloud", "--table", str(tmp_path / "mine.toml"), "--format", "json"]
    assert main(["clouds", str(tmp_path / "runs"), str(tmp_path / "rented"), *moving, *on]) == 0
    shown = json.loads(capsys.readouterr().out)
    tables = {table["title"]: table["rows"] for table in shown["tables"]}
    costs = {row["site"]: row["$ per run"] for row in tables["Costs (medians)"]}
    assert costs == {"local": "owned: no price per hour", "cloud": pytest.approx(dollars)}  # 200 s
    assert tables["Prices of a whole node"][1]["seen on"] == seen
    notes = [note for note in shown["notes"] if "no price of" in note]
    late = "cloud: no price of 2020-01-01 or before is known; that of 2025-01-01 is taken"
    assert notes == ([late] if "2020-01-01" in on else [])


def test_old_prices_are_marked_in_the_answer_the_table_and_the_notes():
    of_site = {"seconds": [100.0] * 6, "world": make_world("cuda:0"), "lines": {"checkpoint_seconds": 0.0}}
    runs = select(*(study(site, site=site, **of_site) for site in ("aws-g3-4xlarge", "cte-power")))
    three = selection_of(case_in(CASES, "three sites: times, accuracies, retired machines and their successors"))
    fresh = find(runs, pricing=Pricing(sites=SITES, today=date(2026, 10, 31)))  # 365 days are no more than a year
    later = find(runs, pricing=Pricing(sites=SITES, today=date(2026, 11, 1)))
    mark = "2025-10-31, over a year old"
    assert mark not in str(fresh.answer) + str(fresh.tables) + str(fresh.notes)
    assert f"a run costs $0.0364 (n = 6, at the price of {mark})" in later.answer
    assert mark in str(later.tables) and mark in str(later.notes)
    before = find(three, pricing=Pricing(sites=SITES, on=date(2025, 1, 1)))  # (2 x 100.25 + 15) s, $12.24/h
    marked = "n = 6, at the first known price, of 2025-12-31"
    assert f"The cheapest is aws-p3-8xlarge, $0.7327 ({marked}) per run" in before.answer


# Plots and the page


@pytest.mark.parametrize(
    ("question", "table", "pictures"), [(find, "Costs", 1), (frameworks.find, "Times", 3)], ids=["clouds", "frameworks"]
)
def test_a_picture_of_many_experiments_shows_the_first_of_them(question, table, pictures, plots):
    """Hundreds of rows make a picture of meters: it says how many it shows, and the table has them all."""
    runs = [made_runs(f"b{batch}", seconds=[float(batch)], global_batch=batch) for batch in range(1, 31)]
    found = question(select(*runs))
    assert len(rows_of(found, table)) == 30 and len(found.plots) == pictures
    for plot in found.plots:
        assert plot.figure.get_suptitle().endswith("; the first 25 of 30 experiments")
        assert len(plot.figure.axes[0].get_yticks()) == 25


def test_the_page_of_runs_is_about_them(tmp_path, plots):
    for site in ("cte-power", "aws-g3-16xlarge", "aws-p3-8xlarge"):
        write_site(tmp_path / "runs", site, [100.0, 102.0], world=FOUR_GPUS)
    assert main(["clouds", str(tmp_path / "runs"), "--output", str(tmp_path / "page.html")]) == 0
    text = (tmp_path / "page.html").read_text()
    assert "<title>Which site is the fastest" in text and "CTE-POWER or AWS?" not in text and "projected" not in text


@pytest.mark.parametrize(("last", "is_shown"), [(300.0, False), (90.0, True)])
def test_the_best_in_energy_is_that_of_less(last, is_shown):
    """Ten runs near 100 J against nine near 90 and one more: one of 300 J makes their mean the larger one."""
    joules = {"cte-power": [100.0, 101.0] * 5, "aws-p3-8xlarge": [90.0, 91.0, 89.0] * 3 + [last]}
    runs = []
    for site, of_site in joules.items():
        for seed, power in enumerate(of_site):
            trace = make_trace({"training": 1}, {"cpu0": {"training": power}})
            runs += study(f"{site}-{seed}", seconds=[100.0], site=site, traces=[trace], first=seed)
    found = find(select(runs))
    assert ("The best in energy is aws-p3-8xlarge, " in found.answer) == is_shown
    assert "The best in energy is cte-power" not in found.answer
