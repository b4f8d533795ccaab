"""`python -m analysis clouds`: costs to the cent, ratios by hand, prices of a day, and what cannot be compared."""

import json
from datetime import date

import pytest
from analysis_builders import made_runs, rows_of, select, study
from builders import make_trace, make_world, write_finished_run, write_study

from analysis.__main__ import main
from analysis.questions import frameworks
from analysis.questions.clouds.finding import assigned, find
from analysis.questions.clouds.machines import all_machine_tables, break_even_table, machine_tables
from analysis.questions.clouds.pricing import Pricing
from analysis.questions.clouds.sites import site_comparisons
from analysis.runs.reading import load_runs
from analysis.runs.table import runs_in
from common.errors import UserError
from common.run_folder.records import Hashes, NotRecorded
from common.sites.table import read_sites

SITES = read_sites()
PRICING = Pricing(sites=SITES, today=date(2026, 1, 1))
FOUR_GPUS = make_world(*(f"cuda:{number}" for number in range(4)))


def at(site, times, *, folder="", **changes):
    """Return timed runs of seeds 1, 2 ... on a site; by default they spend no time on checkpoints."""
    changes["lines"] = {"checkpoint_seconds": 0.0} | changes.get("lines", {})
    return study(f"{folder}{site}", seconds=times, site=site, **changes)


def write_site(folder, site, times, **changes):
    write_study(folder, name=site, seconds=times, site=site, lines={"checkpoint_seconds": 0.0}, **changes)


def three_sites():
    """CTE-POWER and two of AWS, which take 7 times and twice as long; six seeds."""
    times = [100.0, 102.0, 98.0, 101.0, 99.0, 100.5]
    return [
        *at("aws-g3-16xlarge", [7 * time for time in times], world=FOUR_GPUS),
        *at("aws-p3-8xlarge", [2 * time for time in times], world=FOUR_GPUS, totals={"test_accuracy": 0.96}),
        *at("cte-power", times, world=FOUR_GPUS),
    ]


def test_times_and_accuracies_against_the_base():
    runs = three_sites()
    found = find(select(runs))
    rows = {row["site"]: row for row in rows_of(found, "Times and accuracies")}
    assert list(rows) == ["aws-g3-16xlarge", "aws-p3-8xlarge", "cte-power"]
    base, slow, other = rows["cte-power"], rows["aws-g3-16xlarge"], rows["aws-p3-8xlarge"]
    assert (base["n"], base["training, s"], base["95 % interval"]) == (6, 100.25, "98.00 to 102.00")
    assert (base["time / cte-power"], base["within 0.5 points"]) == (1.0, "base")
    assert slow["time / cte-power"] == pytest.approx(7) and slow["95 % interval of it"] == "7.000 to 7.000"
    assert other["time / cte-power"] == pytest.approx(2) and other["accuracy, %"] == pytest.approx(96)
    assert other["points to cte-power"] == pytest.approx(6)
    assert (slow["within 0.5 points"], other["within 0.5 points"]) == ("same", "different")
    assert "the fastest is cte-power; aws-p3-8xlarge takes 2.00 times as long." in found.answer
    assert found.flags == []


def test_sites_that_start_ranks_in_different_ways_are_compared():
    """As the shipped sites do: CTE-POWER by srun over MPI on two nodes, AWS by horovodrun over Gloo on one."""
    runs = []
    two_gpus = ("cuda:0", "cuda:1")
    times = [100.0, 102.0, 98.0, 101.0, 99.0, 100.5]
    srun = make_world(*two_gpus, hosts=2, launcher="srun", controller="mpi", threads_per_rank=40)
    gloo = make_world(*two_gpus, launcher="horovodrun", controller="gloo", threads_per_rank=16)
    runs += at("cte-power", times, world=srun)
    runs += at("aws-g3-16xlarge", [7 * time for time in times], world=gloo)
    found = find(select(runs))
    rows = {row["site"]: row for row in rows_of(found, "Times and accuracies")}
    assert rows["aws-g3-16xlarge"]["time / cte-power"] == pytest.approx(7)
    ways = {row["site"]: row for row in rows_of(found, "How the sites ran them")}
    base, other = ways["cte-power"], ways["aws-g3-16xlarge"]
    assert [base[name] for name in ("hosts", "threads", "launcher", "controller")] == [2, 40, "srun", "mpi"]
    assert [other[name] for name in ("hosts", "threads", "launcher", "controller")] == [1, 16, "horovodrun", "gloo"]
    assert base["differs from cte-power in"] == "base"
    assert other["differs from cte-power in"] == "hosts, threads, launcher, controller"
    assert found.answer.startswith("PyTorch, cnn, mnist, np 2: the fastest is cte-power")


def test_several_ways_of_one_site_are_never_pooled():
    runs = []
    for launcher, controller, seconds in (
        ("srun", "mpi", 100.0),
        ("mpirun", "mpi", 110.0),
        ("horovodrun", "gloo", 130.0),
    ):
        world = make_world("cpu", "cpu", launcher=launcher, controller=controller)
        runs += at("cte-power", [seconds, seconds + 1], world=world, folder=launcher + "/")
    runs += at("local", [200.0, 202.0], world=make_world("cpu", "cpu", launcher="horovodrun"))
    rows = {row["site"]: row for row in rows_of(find(select(runs)), "Times and accuracies")}
    assert {name: (row["n"], row["training, s"]) for name, row in rows.items()} == {
        "cte-power, controller gloo, horovodrun": (2, 130.5),
        "cte-power, controller mpi, mpirun": (2, 110.5),
        "cte-power, controller mpi, srun": (2, 100.5),
        "local": (2, 201.0),
    }


def test_costs_to_the_cent():
    runs = []
    lines = {"validation_accuracy": 0.9, "validation_seconds": 2.0, "checkpoint_seconds": 5.0}
    runs += at("aws-p3-8xlarge", [3570.0], world=FOUR_GPUS, lines=lines)
    runs += at("cte-power", [3570.0], world=FOUR_GPUS, lines=lines)
    found = find(select(runs), target=0.9)
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
        ("aws-p3-16xlarge", FOUR_GPUS, 1),
        ("aws-p3-16xlarge", make_world(*["cuda:0"] * 4, hosts=2), 2),  # spread over more nodes than needed
        ("aws-p3-2xlarge", make_world("cpu", "cpu"), 1),
        ("mine", FOUR_GPUS, 1),
        ("aws-p3-2xlarge", NotRecorded("lost"), None),
    ],
)
def test_nodes_that_are_paid(tmp_path, site, world, nodes):
    write_finished_run(tmp_path / "run", site=site, world=world)
    (run,) = runs_in(load_runs([tmp_path]).runs)
    assert Pricing(sites=SITES).nodes(run) == nodes


TABLE = """
[gpus.x]
name = "X"
fp32_tflops = 10.0
memory_gb = 1.0
memory_bandwidth_gb_s = 1.0
power_watts = 100.0
energy_counter = true
source = "x"
[sites.local]
title = "here"
kind = "owned"
source = "me"
[sites.cloud]
title = "a cloud"
kind = "rented"
source = "its page"
gpu = "x"
gpus = 2
prices = [
  { date = 2025-01-01, usd_per_hour = 36.0, terms = "on demand", source = "page of 2025" },
  { date = 2026-01-01, usd_per_hour = 18.0, terms = "on demand", source = "page of 2026" },
]
"""


@pytest.mark.parametrize(
    ("on", "dollars", "seen", "note"),
    [
        ([], 1.0, "2026-01-01", None),
        (["--on", "2025-06-30"], 2.0, "2025-01-01", None),
        (
            ["--on", "2020-01-01"],
            2.0,
            "first known price, of 2025-01-01",
            "cloud: no price of 2020-01-01 or before is known; that of 2025",
        ),
    ],
)
def test_old_runs_are_priced_anew(tmp_path, capsys, on, dollars, seen, note):
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
    assert price["TFLOPS for $1 per hour"] == pytest.approx(20 / (dollars * 18))
    assert any(note in line for line in shown["notes"]) if note else not any("no price of" in x for x in shown["notes"])


def test_a_dearer_site_is_worth_its_price_or_not():
    runs = three_sites()
    (row,) = rows_of(find(select(runs)), "Worth its price? Prices")
    assert (row["dearer site"], row["against"]) == ("aws-p3-8xlarge", "aws-g3-16xlarge")
    assert row["worth it if faster than, times"] == pytest.approx(12.24 / 4.56)
    assert row["measured, times"] == pytest.approx(3.5)
    assert row["verdict"] == "worth its price"
    pricing = Pricing(sites=SITES, on=date(2025, 1, 1))
    answer = find(select(runs), pricing=pricing).answer
    marked = "n = 6, at the first known price, of 2025-12-31"  # (2 x 100.25 + 15) s at $12.24 per hour
    assert f"The cheapest is aws-p3-8xlarge, $0.7327 ({marked}) per run" in answer


@pytest.mark.parametrize(
    ("times", "verdict"), [([100.0, 101, 99, 102, 98, 100], "not worth its price"), ([50.0], "too few runs")]
)
def test_the_verdict_follows_the_interval(times, verdict):
    runs = at("aws-g3-4xlarge", [200.0, 202, 198, 204, 196, 200][: len(times)], world=make_world("cuda:0"))
    runs += at("aws-p3-2xlarge", times, world=make_world("cuda:0"))
    (row,) = rows_of(find(select(runs)), "Worth its price? Prices")
    assert row["verdict"] == verdict


def test_a_picture_of_many_experiments_shows_the_first_of_them(plots):
    """Hundreds of rows make a picture of meters: it says how many it shows, and the table has them all."""
    found = find(
        select(*(made_runs(f"b{batch}", seconds=[float(batch)], global_batch=batch) for batch in range(1, 31)))
    )
    (times,) = [plot for plot in found.plots if plot.name == "clouds-time"]
    assert times.figure.get_suptitle().endswith("; the first 25 of 30 experiments") and len(times.data.rows) == 25
    assert len(times.figure.axes[0].get_yticks()) == 25
    assert len(rows_of(found, "Costs")) == 30


def test_a_picture_of_both_frameworks_shows_the_first_experiments_however_many_there_are(plots):
    found = frameworks.find(
        select(*(made_runs(f"b{batch}", seconds=[float(batch)], global_batch=batch) for batch in range(1, 152)))
    )
    assert len(found.plots) == 3 and len(rows_of(found, "Times")) == 151
    for plot in found.plots:
        assert plot.figure.get_suptitle().endswith("; the first 25 of 151 experiments")
        assert len(plot.figure.axes[0].get_yticks()) == 25


def test_the_sites_of_runs_and_their_successors_are_paired():
    found = rows_of(
        break_even_table(PRICING, names=["cte-power", "aws-g3-4xlarge", "aws-p3-2xlarge", "aws-p3-8xlarge"])
    )
    rows = {(row["this site"], row["against"]): list(row.values())[2:] for row in found}
    priced = ["aws-g3-4xlarge", "aws-p3-2xlarge", "aws-p3-8xlarge", "aws-g4dn-xlarge", "aws-g5-12xlarge"]
    assert {name for pair in rows for name in pair} == set(priced) and len(rows) == 5 * 4 / 2
    assert rows["aws-p3-2xlarge", "aws-g3-4xlarge"] == pytest.approx([3.06 / 1.14] * 2)
    assert rows["aws-p3-8xlarge", "aws-g3-4xlarge"] == pytest.approx([12.24 / 1.14, 3.06 / 1.14])


def test_old_prices_are_marked_in_the_answer_the_table_and_the_notes():
    runs = at("aws-g3-4xlarge", [100.0] * 6, world=make_world("cuda:0"))
    runs += at("cte-power", [100.0] * 6, world=make_world("cuda:0"))
    runs = select(runs)
    fresh = find(runs, pricing=Pricing(sites=SITES, today=date(2026, 10, 31)))  # 365 days are no more than a year
    later = find(runs, pricing=Pricing(sites=SITES, today=date(2026, 11, 1)))
    mark = "2025-10-31, over a year old"
    assert mark not in str(fresh.answer) + str(fresh.tables) + str(fresh.notes)
    assert f"a run costs $0.0364 (n = 6, at the price of {mark})" in later.answer
    price, *_ = rows_of(later, "Prices of a whole node")
    assert (price["seen on"], price["spot, $ per hour"]) == (mark, None)
    assert any(note.startswith("aws-g3-4xlarge is retired") and mark in note for note in later.notes)


def test_machines_side_by_side():
    every, memory, of_001 = all_machine_tables(SITES)
    assert len(every.rows) == len(SITES.gpus) + len(SITES.cpus)
    ratios = {row["figure"]: row["times as much"] for row in rows_of(memory)}
    assert ratios["FP32, TFLOPS"] == pytest.approx(15.7 / 4.8)
    assert ratios["memory bandwidth, GB/s"] == pytest.approx(5.625)
    assert (ratios["memory, GB"], ratios["memory bus, bits"]) == (2, 16)
    ratios = {row["figure"]: row["times as much"] for row in rows_of(of_001)}
    assert ratios["FP32, TFLOPS"] == pytest.approx(11.4 / 0.54)
    assert ratios["price to buy, $"] == pytest.approx(699 / 339)
    assert ratios["FP32 GFLOPS per $"] == pytest.approx((11400 / 699) / (540 / 339))
    assert ratios["cores"] == 896 and ratios["clock, GHz"] == pytest.approx(1.6 / 4.2)
    assert "the report" in of_001.title
    of_sites, *pairs = machine_tables(SITES, names=["cte-power", "aws-g3-4xlarge", "aws-g4dn-xlarge", "unknown"])
    assert [row[0].split(",")[0] for row in of_sites.rows] == [
        "NVIDIA Tesla V100 SXM2 16 GB", "NVIDIA Tesla M60", "NVIDIA T4"
    ]  # fmt: skip
    assert [table.title.split(" (")[0].count("T4") for table in pairs] == [0, 1, 1]
    assert not any(table.rows for table in machine_tables(SITES, names=["local"]))


def test_retired_machines_are_named_with_their_successor():
    runs = three_sites()
    found = find(select(runs))
    (note,) = [note for note in found.notes if note.startswith("aws-g3-16xlarge")]
    assert "is retired since 2025-10-31, its last price $4.56 per hour (2025-10-31" in note
    assert "its successor is aws-g4dn-12xlarge at $3.912 per hour" in note
    availabilities = {row["site"]: row["availability"] for row in rows_of(found, "Prices")}
    assert availabilities == {
        "aws-g3-16xlarge": "retired 2025-10-31, now aws-g4dn-12xlarge",
        "aws-p3-8xlarge": "retired 2025-12-31, now aws-g5-12xlarge",
        "cte-power": "owned: no price per hour",
        "aws-g4dn-12xlarge": "rented",
        "aws-g5-12xlarge": "rented",
    }


def test_energy_of_metered_runs():
    runs = []
    phases = {"training": 10, "validation": 4, "test": 2}
    for site, watts in (("aws-p3-8xlarge", 50.0), ("cte-power", 100.0)):
        runs += at(site, [100.0])
        trace = make_trace(phases, {"cpu0": dict.fromkeys(phases, watts)})
        runs += at(site, [100.0], folder="metered/", traces=[trace])
    found = find(select(runs))
    other, base = rows_of(found, "Energy by site")
    assert (base["J"], base["EDP, J s"], base["J / cte-power"]) == (1600, 16 * 1600, 1)
    assert (other["J"], other["J / cte-power"], other["EDP / cte-power"]) == (800, 0.5, 0.5)
    words = "The lowest mean energy is that of aws-p3-8xlarge, 800 J (n = 1); a difference is not shown"
    assert words in found.answer
    assert "the shortest median time is that of" in found.answer and "a difference is not shown" in found.answer


def test_zero_joules_are_handled(plots):
    runs = []
    for site, watts in (("cte-power", 0.0), ("aws-p3-8xlarge", 50.0)):
        trace = make_trace({"training": 10}, {"cpu0": {"training": watts}})
        runs += at(site, [100.0], traces=[trace])
    base, other = (row["J / cte-power"] for row in reversed(rows_of(find(select(runs)), "Energy by site")))
    assert base is None and other is None


def test_experiments_on_one_site_alone_are_one_note():
    runs = []
    for site in ("cte-power", "aws-p3-8xlarge"):
        runs += at(site, [10.0])
    for seed, rate in enumerate((0.1, 0.2, 0.3)):
        runs += at("cte-power", [10.0], settings={"optimizer": {"learning_rate": rate}}, folder=f"{seed}/")
    alone = [note for note in find(select(runs)).notes if "only on" in note]
    assert len(alone) == 1 and alone[0].startswith("3 experiments only on cte-power, nothing to compare with: ")


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


def test_a_processor_and_a_gpu_have_separate_bases():
    runs = []
    for site, factor in (("cte-power", 1), ("aws-p3-8xlarge", 2)):
        runs += at(site, [300.0 * factor, 310.0 * factor], world=make_world("cpu"), folder="cpu/")
        runs += at(site, [10.0 * factor, 11.0 * factor], world=make_world("cuda:0"), folder="gpu/")
    found = find(select(runs))
    ratios = {row["site"]: row["time / cte-power"] for row in rows_of(found, "Times and accuracies")}
    assert ratios == {
        "cte-power, cpu": 1.0,
        "cte-power, gpu": pytest.approx(10.5 / 305, rel=0.01),
        "aws-p3-8xlarge, cpu": pytest.approx(2, rel=0.02),
        "aws-p3-8xlarge, gpu": pytest.approx(2, rel=0.02),
    }
    assert any(note.startswith("the base site has several kinds of machine") for note in found.notes)


def test_the_model_of_a_gpu_is_a_difference_of_sites():
    runs = []
    for site, model in (("cte-power", "Tesla V100-SXM2-16GB"), ("aws-g4dn-xlarge", "Tesla T4")):
        runs += at(site, [10.0, 11.0], world=make_world("cuda:0", gpus=[model]))
    runs += at("old", [10.0, 11.0], world=make_world("cuda:0"))
    rows = {row["site"]: row for row in rows_of(find(select(runs)), "How the sites ran them")}
    assert {site: row["device"] for site, row in rows.items()} == {
        "aws-g4dn-xlarge": "gpu Tesla T4", "cte-power": "gpu Tesla V100-SXM2-16GB", "old": "gpu",
    }  # fmt: skip
    assert rows["aws-g4dn-xlarge"]["differs from cte-power in"] == "device"


def test_two_models_of_gpu_behind_one_processor_are_never_pooled():
    runs = []
    for model in ("A", "B"):
        runs += at("cte-power", [10.0, 11.0], world=make_world("cuda:0", gpus=[model]), folder=model + "/")
    runs += at("cte-power", [300.0, 310.0], world=make_world("cpu", gpus=[None]), folder="cpu/")
    for model in ("B", "C"):
        runs += at("local", [20.0, 22.0], world=make_world("cuda:0", gpus=[model]), folder=model + "/")
    (one,) = site_comparisons(select(runs).runs, base="cte-power")
    assert {name: one.base_of(name) for name in one.cells if name.startswith("local")} == {
        "local, gpu B": "cte-power, gpu B", "local, gpu C": "cte-power, gpu A",
    }  # fmt: skip
    assert [len(cell.runs) for cell in one.cells.values()] == [2] * 5


def test_other_settings_are_other_experiments():
    runs = at("cte-power", [100.0])
    runs += at("aws-p3-8xlarge", [100.0], settings={"optimizer": {"learning_rate": 0.5}})
    found = find(select(runs))
    assert found.answer.startswith("No experiment ran on two sites: sites cannot be compared.")


def test_other_first_weights_are_flagged_and_refused(tmp_path, capsys):
    write_site(tmp_path, "cte-power", [100.0, 101.0])
    write_site(tmp_path, "aws-p3-8xlarge", [50.0, 51.0])
    assert main(["clouds", str(tmp_path), "--strict"]) == 0
    others = Hashes(initial_weights="others", sample_order="order1")
    write_site(tmp_path, "aws-g5-12xlarge", [50.0, 51.0], hashes=others)
    capsys.readouterr()
    assert main(["clouds", str(tmp_path), "--strict"]) == 2
    assert "aws-g5-12xlarge: the first weights differ for seed 1, 2" in capsys.readouterr().err


def test_one_site_is_a_plain_sentence(tmp_path, capsys):
    write_site(tmp_path, "aws-p3-8xlarge", [100.0, 101.0])
    assert main(["clouds", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "All runs are of one site (aws-p3-8xlarge): sites cannot be compared." in shown
    assert "$ per run" in shown  # what they cost can be said all the same


def test_zero_time_and_an_unknown_site_have_no_cost(plots):
    runs = at("cte-power", [0.0])
    runs += at("mine", [100.0], totals={"test_accuracy": float("nan")})
    found = find(select(runs))
    rows = {row["site"]: row for row in rows_of(found, "Costs")}
    assert rows["mine"]["$ per run"] == "site not in the table"
    assert any("mine is not in the table of sites" in note for note in found.notes)
    assert "fewer than two sites have timed runs" in found.answer
    assert any("took no time" in flag for flag in found.flags)


def test_runs_are_assigned_to_a_known_site_only(tmp_path):
    write_site(tmp_path, "local", [100.0])
    with pytest.raises(UserError, match="Did you mean cte-power"):
        assigned(load_runs([tmp_path]), f"{tmp_path}=cte-powr", sites=SITES)
    assert {*assigned(load_runs([tmp_path]), f"{tmp_path}=cte-power", sites=SITES).runs["site"]} == {"cte-power"}


def test_plots_show_every_run(plots):
    runs = three_sites()
    time, cost, accuracy, both, break_even = find(select(runs)).plots
    assert len(accuracy.data.rows) == 18 and {row[2] for row in accuracy.data.rows if row[1] == "aws-p3-8xlarge"} == {
        96
    }
    assert (len(time.data.rows), len(cost.data.rows)) == (18, 12)  # CTE-POWER has no price
    assert len(break_even.data.rows) == 2 * 20 and len(break_even.figure.axes[0].lines) == 2
    assert {row[1] for row in cost.data.rows} == {"aws-g3-16xlarge", "aws-p3-8xlarge"}
    assert min(row[2] for row in cost.data.rows) == pytest.approx((2 * 98 + 15) / 3600 * 12.24)
    assert sorted(row[3] for row in both.data.rows) == sorted(row[2] for row in cost.data.rows)
    rates = [row[3] / row[2] for row in both.data.rows if row[1] == "aws-p3-8xlarge"]
    assert rates == pytest.approx([12.24 / 3600] * 6)
    assert sum(len(line.get_xdata()) for line in both.figure.axes[0].lines) == 12


def test_machines_of_one_site_are_distinguished(plots):
    runs = at("cte-power", [10.0, 11.0], world=make_world("cuda:0"), folder="gpu/")
    runs += at("cte-power", [300.0, 310.0], world=make_world("cpu"), folder="cpu/")
    plot, _ = find(select(runs)).plots
    (legend,) = plot.figure.legends
    assert {text.get_text() for text in legend.get_texts()} == {"cte-power, cpu", "cte-power, gpu"}
    assert plot.figure.get_suptitle() == "Training time by site, n = 2 runs each; all points, median"
