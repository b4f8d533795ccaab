"""`python -m analysis clouds`: costs to the cent, ratios by hand, prices of a day, and what cannot be compared."""

import json
from datetime import date

import pytest
from analysis_builders import made_runs, rows_of, select, study
from builders import make_trace, make_world, write_study

from analysis.__main__ import main
from analysis.clouds.hardware import find_hardware
from analysis.questions import frameworks
from analysis.questions.clouds.finding import find
from analysis.questions.clouds.pricing import Pricing
from common.run_folder.records import Hashes, NotRecorded
from common.sites.table import read_sites

SITES = read_sites()
FOUR_GPUS = make_world(*(f"cuda:{number}" for number in range(4)))
ONE_GPU, ONE_CPU = make_world("cuda:0"), make_world("cpu")
TIMES = [100.0, 102.0, 98.0, 101.0, 99.0, 100.5]  # of six seeds


def at(site, times, *, folder="", **changes):
    """Return timed runs of seeds 1, 2 ... on a site; by default they spend no time on checkpoints."""
    changes["lines"] = {"checkpoint_seconds": 0.0} | changes.get("lines", {})
    return study(f"{folder}{site}", seconds=times, site=site, **changes)


def write_site(folder, site, times, **changes):
    write_study(folder, name=site, seconds=times, site=site, lines={"checkpoint_seconds": 0.0}, **changes)


def three_sites():
    """CTE-POWER and two of AWS, which take 7 times and twice as long; six seeds."""
    return select(
        at("aws-g3-16xlarge", [7 * time for time in TIMES], world=FOUR_GPUS),
        at("aws-p3-8xlarge", [2 * time for time in TIMES], world=FOUR_GPUS, totals={"test_accuracy": 0.96}),
        at("cte-power", TIMES, world=FOUR_GPUS),
    )


def by_site(found, title):
    """Return site -> row of a table."""
    return {row["site"]: row for row in rows_of(found, title)}


def test_times_and_accuracies_against_the_base():
    found = find(three_sites(), pricing=Pricing(sites=SITES, on=date(2025, 1, 1)))
    rows = by_site(found, "Times and accuracies")
    assert list(rows) == ["aws-g3-16xlarge", "aws-p3-8xlarge", "cte-power"]
    base, slow, other = rows["cte-power"], rows["aws-g3-16xlarge"], rows["aws-p3-8xlarge"]
    assert (base["n"], base["training, s"], base["95 % interval"]) == (6, 100.25, "98.00 to 102.00")
    assert (base["time / cte-power"], base["within 0.5 points"]) == (1.0, "base")
    assert slow["time / cte-power"] == pytest.approx(7) and slow["95 % interval of it"] == "7.000 to 7.000"
    assert other["time / cte-power"] == pytest.approx(2) and other["accuracy, %"] == pytest.approx(96)
    assert other["points to cte-power"] == pytest.approx(6)
    assert (slow["within 0.5 points"], other["within 0.5 points"]) == ("same", "different")
    assert "the fastest is cte-power; aws-p3-8xlarge takes 2.00 times as long." in found.answer
    marked = "n = 6, at the first known price, of 2025-12-31"  # (2 x 100.25 + 15) s at $12.24 per hour
    assert f"The cheapest is aws-p3-8xlarge, $0.7327 ({marked}) per run" in found.answer
    assert found.flags == []


def test_sites_that_start_ranks_in_different_ways_are_compared():
    """As the shipped sites do: CTE-POWER by srun over MPI on two nodes, AWS by horovodrun over Gloo on one."""
    srun = {"hosts": 2, "threads_per_rank": 40, "launcher": "srun", "controller": "mpi"}
    gloo = {"threads_per_rank": 16, "launcher": "horovodrun", "controller": "gloo"}
    gpus = ("cuda:0", "cuda:1")
    found = find(
        select(
            at("cte-power", TIMES, world=make_world(*gpus, **srun, gpus=["V100"] * 2)),
            at("aws-g3-16xlarge", [7 * time for time in TIMES], world=make_world(*gpus, **gloo, gpus=["T4"] * 2)),
            at("old", TIMES, world=make_world(*gpus, **gloo)),
        )
    )
    assert by_site(found, "Times and accuracies")["aws-g3-16xlarge"]["time / cte-power"] == pytest.approx(7)
    names = ("device", "hosts", "threads", "launcher", "controller", "differs from cte-power in")
    ways = {site: [row[name] for name in names] for site, row in by_site(found, "How the sites ran them").items()}
    differ = "device, hosts, threads, launcher, controller"
    assert ways == {
        "cte-power": ["gpu V100", 2, 40, "srun", "mpi", "base"],
        "aws-g3-16xlarge": ["gpu T4", 1, 16, "horovodrun", "gloo", differ],
        "old": ["gpu", 1, 16, "horovodrun", "gloo", differ],
    }


def two_ranks(launcher, controller="mpi"):
    return make_world("cpu", "cpu", launcher=launcher, controller=controller)


def of_model(gpu):
    return make_world("cuda:0", gpus=[gpu])


@pytest.mark.parametrize(
    "cells",
    [
        [
            ("cte-power, controller mpi, srun", 100.0, two_ranks("srun"), 1.0),
            ("cte-power, controller mpi, mpirun", 110.0, two_ranks("mpirun"), 1.1),
            ("cte-power, controller gloo, horovodrun", 130.0, two_ranks("horovodrun", "gloo"), 1.3),
            ("local", 200.0, two_ranks("horovodrun", "gloo"), 2.0),
        ],
        [  # each kind of device has its base
            ("cte-power, cpu", 300.0, ONE_CPU, 1.0),
            ("cte-power, gpu", 10.0, ONE_GPU, 10 / 300),
            ("aws-p3-8xlarge, cpu", 600.0, ONE_CPU, 2.0),
            ("aws-p3-8xlarge, gpu", 20.0, ONE_GPU, 2.0),
        ],
        [  # the base site has no C: it is divided by the first GPU there
            ("cte-power, cpu", 300.0, ONE_CPU, 1.0),
            ("cte-power, gpu A", 10.0, of_model("A"), 10 / 300),
            ("cte-power, gpu B", 20.0, of_model("B"), 20 / 300),
            ("local, gpu B", 40.0, of_model("B"), 2.0),
            ("local, gpu C", 40.0, of_model("C"), 4.0),
        ],
    ],
    ids=["launchers", "kinds of device", "models of GPU"],
)
def test_what_a_site_ran_in_several_ways_is_never_pooled(cells, plots):
    runs = [at(name.partition(",")[0], [time] * 2, world=world, folder=f"{name}/") for name, time, world, _ in cells]
    found = find(select(*runs))
    rows = by_site(found, "Times and accuracies")
    ratios = {name: pytest.approx(ratio) for name, *_, ratio in cells}
    assert {name: row["time / cte-power"] for name, row in rows.items()} == ratios
    assert {row["n"] for row in rows.values()} == {2}
    assert any(note.startswith("the base site has several kinds of machine") for note in found.notes)
    (legend,) = found.plots[0].figure.legends
    assert {text.get_text() for text in legend.get_texts()} == {*ratios}


# Costs


def test_costs_to_the_cent():
    lines = {"validation_accuracy": 0.9, "validation_seconds": 2.0, "checkpoint_seconds": 5.0}
    runs = [at(site, [3570.0], world=FOUR_GPUS, lines=lines) for site in ("aws-p3-8xlarge", "cte-power")]
    found = find(select(*runs), target=0.9)
    rented, owned = rows_of(found, "Costs")
    # 10 s of start-up, 3570 of training, 4 of validation, 15 of checkpoints, 1 of test: per hour at $12.24.
    assert (rented["nodes"], rented["s paid"], rented["$ per run"]) == (1, 3600, pytest.approx(12.24))
    assert rented["$ per epoch"] == pytest.approx((3570 + 4 + 15) / 3 / 3600 * 12.24)
    assert rented["$ to 90 %"] == pytest.approx((3570 / 3 + 2) / 3600 * 12.24)  # reached in the first epoch
    assert (rented["reached by"], owned["reached by"]) == ("1 of 1", "1 of 1")
    # A job: the run, 16 minutes of set-up and until the machine stops; the launch was not recorded.
    assert rented["$ per job"] == pytest.approx((3600 + 16 * 60) / 3600 * 12.24) and owned["$ per job"] is None
    (row,) = rows_of(found, "Break-even")
    assert (row["owned"], row["against"], row["kind"]) == ("cte-power", "aws-p3-8xlarge", "measured")
    assert row["$ per hour in use"] == pytest.approx(12.24)  # as much, for it takes as long
    assert (row["75 % used"], row["25 % used"]) == (pytest.approx(9.18), pytest.approx(3.06))
    assert row["purchase, $: 5 years, 75 % used"] == pytest.approx(9.18 * 5 * 8766)
    assert (owned["$ per hour"], owned["$ per run"], owned["$ per epoch"]) == (None, "owned: no price per hour", None)
    assert "Only aws-p3-8xlarge has a price: a run costs $12.2400 (n = 1)" in found.answer


@pytest.mark.parametrize(
    ("site", "world", "nodes"),
    [
        ("aws-p3-8xlarge", FOUR_GPUS, 1),
        ("aws-p3-2xlarge", FOUR_GPUS, 4),
        ("aws-p3-16xlarge", make_world(*["cuda:0"] * 4, hosts=2), 2),  # spread over more nodes than needed
        ("aws-p3-2xlarge", make_world("cpu", "cpu"), 1),
        ("mine", FOUR_GPUS, 1),
        ("aws-p3-2xlarge", NotRecorded("lost"), None),
    ],
)
def test_nodes_that_are_paid(site, world, nodes):
    (row,) = rows_of(find(select(at(site, [100.0], world=world))), "Costs")
    assert row["nodes"] == nodes


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
    price = tables["Prices of a whole node"][1]
    assert (price["$ per hour"], price["seen on"]) == (dollars * 18, seen)
    assert price["TFLOPS for $1 per hour"] == pytest.approx(2 * 15.7 / (dollars * 18))
    notes = [note for note in shown["notes"] if "no price of" in note]
    late = "cloud: no price of 2020-01-01 or before is known; that of 2025-01-01 is taken"
    assert notes == ([late] if "2020-01-01" in on else [])


@pytest.mark.parametrize(
    ("cheap", "times", "verdict"),
    [
        ([3.5 * time for time in TIMES], TIMES, "worth its price"),
        ([2 * time for time in TIMES], TIMES, "not worth its price"),
        ([350.0], [100.0], "too few runs"),
    ],
)
def test_a_dearer_site_is_worth_its_price_or_not(cheap, times, verdict):
    runs = select(at("aws-g3-4xlarge", cheap, world=ONE_GPU), at("aws-p3-2xlarge", times, world=ONE_GPU))
    (row,) = rows_of(find(runs), "Worth its price? Prices")
    assert (row["dearer site"], row["against"], row["verdict"]) == ("aws-p3-2xlarge", "aws-g3-4xlarge", verdict)
    assert row["worth it if faster than, times"] == pytest.approx(3.06 / 1.14)
    assert row["measured, times"] == pytest.approx(cheap[0] / times[0])


def test_old_prices_are_marked_in_the_answer_the_table_and_the_notes():
    runs = select(*(at(site, [100.0] * 6, world=ONE_GPU) for site in ("aws-g3-4xlarge", "cte-power")))
    fresh = find(runs, pricing=Pricing(sites=SITES, today=date(2026, 10, 31)))  # 365 days are no more than a year
    later = find(runs, pricing=Pricing(sites=SITES, today=date(2026, 11, 1)))
    mark = "2025-10-31, over a year old"
    assert mark not in str(fresh.answer) + str(fresh.tables) + str(fresh.notes)
    assert f"a run costs $0.0364 (n = 6, at the price of {mark})" in later.answer
    price, *_ = rows_of(later, "Prices of a whole node")
    assert (price["seen on"], price["spot, $ per hour"]) == (mark, None)
    assert any(note.startswith("aws-g3-4xlarge is retired") and mark in note for note in later.notes)


# Machines


def test_the_sites_of_runs_and_their_successors_are_paired():
    """In prices, each with each; in figures, each machine with each, the base's first."""
    names = ["cte-power", "aws-g3-4xlarge", "aws-p3-2xlarge", "aws-p3-8xlarge", "unknown"]
    found = find(select(*(at(name, [100.0], world=ONE_GPU) for name in names)))
    rows = rows_of(found, "Worth its price if more")
    pairs = {(row["this site"], row["against"]): list(row.values())[2:] for row in rows}
    priced = ["aws-g3-4xlarge", "aws-p3-2xlarge", "aws-p3-8xlarge", "aws-g4dn-xlarge", "aws-g5-12xlarge"]
    assert {name for pair in pairs for name in pair} == set(priced) and len(rows) == 5 * 4 / 2
    assert pairs["aws-p3-2xlarge", "aws-g3-4xlarge"] == pytest.approx([3.06 / 1.14] * 2)
    assert pairs["aws-p3-8xlarge", "aws-g3-4xlarge"] == pytest.approx([12.24 / 1.14, 3.06 / 1.14])
    machines = [row["machine"].split(",")[0] for row in rows_of(found, "Machines: makers' peaks")]
    assert machines == ["NVIDIA Tesla V100 SXM2 16 GB", "NVIDIA Tesla M60"]
    assert len([table for table in found.tables if " against NVIDIA" in table.title]) == 1


def test_machines_side_by_side():
    found = find_hardware(SITES)
    assert len(rows_of(found, "Machines")) == len(SITES.gpus) + len(SITES.cpus)
    ratios = {row["figure"]: row["times as much"] for row in rows_of(found, "NVIDIA Tesla V100")}
    assert ratios["FP32, TFLOPS"] == pytest.approx(15.7 / 4.8)
    assert ratios["memory bandwidth, GB/s"] == pytest.approx(5.625)
    assert (ratios["memory, GB"], ratios["memory bus, bits"]) == (2, 16)
    (of_report,) = [table for table in found.tables if "the report" in table.title]
    ratios = {row["figure"]: row["times as much"] for row in rows_of(of_report)}
    assert ratios["FP32, TFLOPS"] == pytest.approx(11.4 / 0.54)
    assert ratios["price to buy, $"] == pytest.approx(699 / 339)
    assert ratios["FP32 GFLOPS per $"] == pytest.approx((11400 / 699) / (540 / 339))
    assert ratios["cores"] == 896 and ratios["clock, GHz"] == pytest.approx(1.6 / 4.2)


def test_retired_machines_are_named_with_their_successor():
    found = find(three_sites())
    (note,) = [note for note in found.notes if note.startswith("aws-g3-16xlarge")]
    assert "is retired since 2025-10-31, its last price $4.56 per hour (2025-10-31" in note
    assert "its successor is aws-g4dn-12xlarge at $3.912 per hour" in note
    assert {name: row["availability"] for name, row in by_site(found, "Prices").items()} == {
        "aws-g3-16xlarge": "retired 2025-10-31, now aws-g4dn-12xlarge",
        "aws-p3-8xlarge": "retired 2025-12-31, now aws-g5-12xlarge",
        "cte-power": "owned: no price per hour",
        "aws-g4dn-12xlarge": "rented",
        "aws-g5-12xlarge": "rented",
    }


# Energy


def metered(site, watts):
    phases = {"training": 10, "validation": 4, "test": 2}
    trace = make_trace(phases, {"cpu0": dict.fromkeys(phases, watts)})
    return [*at(site, [100.0]), *at(site, [100.0], folder="metered/", traces=[trace])]


def test_energy_of_metered_runs():
    found = find(select(metered("aws-p3-8xlarge", 50.0), metered("cte-power", 100.0)))
    other, base = rows_of(found, "Energy by site")
    assert (base["J"], base["EDP, J s"], base["J / cte-power"]) == (1600, 16 * 1600, 1)
    assert (other["J"], other["J / cte-power"], other["EDP / cte-power"]) == (800, 0.5, 0.5)
    words = "The lowest mean energy is that of aws-p3-8xlarge, 800 J (n = 1); a difference is not shown"
    assert words in found.answer
    assert "the shortest median time is that of" in found.answer and "a difference is not shown" in found.answer
    nothing = find(select(metered("aws-p3-8xlarge", 50.0), metered("cte-power", 0.0)))
    assert [row["J / cte-power"] for row in rows_of(nothing, "Energy by site")] == [None, None]


# What cannot be compared


def test_experiments_on_one_site_alone_are_one_note():
    rates = [
        at("cte-power", [10.0], settings={"optimizer": {"learning_rate": rate}}, folder=f"{rate}/")
        for rate in (0.1, 0.2, 0.3)
    ]
    found = find(select(at("cte-power", [10.0]), at("aws-p3-8xlarge", [10.0]), *rates))
    (alone,) = [note for note in found.notes if "only on" in note]
    assert alone.startswith("3 experiments only on cte-power, nothing to compare with: ")


def test_one_site_and_other_settings_are_a_plain_sentence():
    faster = {"settings": {"optimizer": {"learning_rate": 0.5}}}
    other = find(select(at("cte-power", [100.0]), at("aws-p3-8xlarge", [100.0], **faster)))
    assert other.answer.startswith("No experiment ran on two sites: sites cannot be compared.")
    found = find(select(at("aws-p3-8xlarge", [100.0, 101.0])))
    assert found.answer.startswith("All runs are of one site (aws-p3-8xlarge): sites cannot be compared.")
    assert rows_of(found, "Costs")[0]["$ per run"] > 0, "what they cost can be said all the same"


def test_other_first_weights_are_flagged_and_refused(tmp_path, capsys):
    write_site(tmp_path, "cte-power", [100.0, 101.0])
    write_site(tmp_path, "aws-p3-8xlarge", [50.0, 51.0])
    assert main(["clouds", str(tmp_path), "--strict"]) == 0
    others = Hashes(initial_weights="others", sample_order="order1")
    write_site(tmp_path, "aws-g5-12xlarge", [50.0, 51.0], hashes=others)
    capsys.readouterr()
    assert main(["clouds", str(tmp_path), "--strict"]) == 2
    assert "aws-g5-12xlarge: the first weights differ for seed 1, 2" in capsys.readouterr().err


def test_zero_time_and_an_unknown_site_have_no_cost(plots):
    found = find(select(at("cte-power", [0.0]), at("mine", [100.0], totals={"test_accuracy": float("nan")})))
    assert by_site(found, "Costs")["mine"]["$ per run"] == "site not in the table"
    assert any("mine is not in the table of sites" in note for note in found.notes)
    assert "fewer than two sites have timed runs" in found.answer
    assert any("took no time" in flag for flag in found.flags)


# Plots and the page


def test_plots_show_every_run(plots):
    time, cost, accuracy, both, break_even = find(three_sites()).plots
    assert [row[2] for row in accuracy.data.rows if row[1] == "aws-p3-8xlarge"] == [96] * 6
    assert (len(accuracy.data.rows), len(time.data.rows), len(cost.data.rows)) == (18, 18, 12)
    assert len(break_even.data.rows) == 2 * 20 and len(break_even.figure.axes[0].lines) == 2
    assert {row[1] for row in cost.data.rows} == {"aws-g3-16xlarge", "aws-p3-8xlarge"}  # CTE-POWER has no price
    assert min(row[2] for row in cost.data.rows) == pytest.approx((2 * 98 + 15) / 3600 * 12.24)
    assert sorted(row[3] for row in both.data.rows) == sorted(row[2] for row in cost.data.rows)
    rates = [row[3] / row[2] for row in both.data.rows if row[1] == "aws-p3-8xlarge"]
    assert rates == pytest.approx([12.24 / 3600] * 6)
    assert sum(len(line.get_xdata()) for line in both.figure.axes[0].lines) == 12
    assert time.figure.get_suptitle() == "Training time by site, n = 6 runs each; all points, median, 95 % interval"


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


def test_the_page_of_runs_is_about_them(tmp_path, capsys, plots):
    for site in ("cte-power", "aws-g3-16xlarge", "aws-p3-8xlarge"):
        write_site(tmp_path / "runs", site, [100.0, 102.0], world=FOUR_GPUS)
    assert main(["clouds", str(tmp_path / "runs"), "--output", str(tmp_path / "page.html")]) == 0
    text = (tmp_path / "page.html").read_text()
    assert "<title>Which site is the fastest" in text and "CTE-POWER or AWS?" not in text and "projected" not in text
    at_the_top = text[: text.index('<dl class="questions">')]
    places = [at_the_top.index(f'id="{name}"') for name in ("clouds-time", "clouds-cost-time", "clouds-accuracy")]
    assert places == sorted(places)
    assert "clouds-break-even" not in at_the_top and "GTX 1080" not in capsys.readouterr().out + text
