"""What starting the ranks costs: parts and sums by hand, which machines are the same, sites missing in the table."""

import json
from dataclasses import asdict
from itertools import product

import pytest
from analysis_builders import rows_of, select, study
from builders import make_environment, make_trace, make_world, write_finished_run

from analysis.__main__ import main
from analysis.questions.clouds.finding import assigned, find
from analysis.runs.reading import load_runs
from analysis.runs.table import runs_in
from common.errors import UserError
from common.run_folder.records import NotRecorded, read_record
from common.sites.table import read_sites

SITES = read_sites()


def world(launcher="horovodrun", *, hosts=1, **changes):
    return make_world("cpu", "cpu", hosts=hosts, launcher=launcher, **changes)


def way(site, times, *, ranks, folder="", **changes):
    """Return runs of seeds 1, 2 ...: 10 s of start-up and what `totals` says, 0.25 s more of launch per seed."""
    totals, runs = changes.pop("totals", {}), []
    for seed, seconds in enumerate(times, start=1):
        launch = totals.get("launch_seconds")
        of_run = totals | ({"launch_seconds": launch + seed / 4} if isinstance(launch, float) else {})
        runs += study(
            f"{folder}{site}", seconds=[seconds], first=seed, site=site, world=ranks, totals=of_run, **changes
        )
    return runs


def three_ways():
    """The same machine; slurm is quick to launch after a queue, the two hosts have names of their own."""
    times = [20.0, 21.0, 19.0, 20.5, 19.5, 20.2]
    slurm = {"launch_seconds": 1.0, "queue_seconds": 3.0, "startup_seconds": 11.0}
    return [
        *way("hosts", [time * 1.5 for time in times], ranks=world(hosts=2), totals={"launch_seconds": 8.0}),
        *way("local", times, ranks=world(), totals={"launch_seconds": 4.0}),
        *way("slurm", [time * 0.99 for time in times], ranks=world("srun"), totals=slurm),
    ]


def starts_of(found):
    """Return site -> row of the table."""
    tables = [table for table in found.tables if table.title.startswith("What starting the ranks costs")]
    return {row["site"]: row for table in tables for row in rows_of(table)}


def test_parts_by_hand():
    found = find(select(three_ways()))
    rows = starts_of(found)
    local, slurm, hosts = rows["local"], rows["slurm"], rows["hosts"]
    assert [local[name] for name in ("launcher", "controller", "hosts", "framework", "np", "n")] == [
        "horovodrun", "mpi", 1, "PyTorch", "2", 6
    ]  # fmt: skip
    assert (slurm["launcher"], hosts["launcher"], hosts["hosts"]) == ("srun", "horovodrun", 2)
    assert (local["queue, s"], local["range of queue"]) == (None, None), "where there is no queue nothing was waited"
    assert (slurm["queue, s"], slurm["range of queue"]) == (3.0, "3.00 to 3.00")
    assert (local["launch, s"], local["range of launch"]) == (4.875, "4.25 to 5.50")
    assert (slurm["start-up, s"], hosts["start-up, s"]) == (11.0, 10.0)
    assert local["training, s"] == pytest.approx(20.1) and hosts["training, s"] == pytest.approx(30.15)
    # Sums run by run, whose median is taken: 4.25 + 10 + 20, 4.5 + 10 + 21, 4.75 + 10 + 19, ...
    assert local["sum, s"] == pytest.approx((34.75 + 35.5) / 2) and local["range of sum"] == "33.75 to 35.70"
    assert slurm["range of sum"] == f"{3 + 1.75 + 11 + 19 * 0.99:.2f} to {3 + 2.5 + 11 + 20.2 * 0.99:.2f}"


def test_the_answer_names_the_launch_methods():
    found = find(select(three_ways()))
    assert "takes 0.99 times as long on slurm as on local (interval 0.99 to 0.99)." in found.answer
    assert "On the same machine training takes 0.99 times" in found.answer
    assert "On one kind of machine training takes 1.50 times as long on hosts as on local (interval" in found.answer
    assert found.answer.endswith(
        "Starting takes shortest, 12.9 s, on slurm by srun with mpi. It takes longest, 18.9 s, on hosts by horovodrun "
        "with mpi over 2 hosts."
    )
    assert any(note.startswith("queue: from submission until") for note in found.notes)
    assert found.flags == [], "launcher and queue make no other experiment"


def test_few_pairs_have_no_interval_and_experiments_are_paired_each_with_itself():
    runs = []
    for site, ranks, factor in (("local", world(), 1.0), ("slurm", world("srun"), 2.0)):
        rates = {0.1: [10.0], 0.2: [1000.0] * 4, 0.3: [7.0] if site == "local" else []}
        for rate, times in rates.items():
            runs += way(site, [time * factor for time in times], ranks=ranks, folder=f"{rate}/",
                        settings={"optimizer": {"learning_rate": rate}})  # fmt: skip
    answer = find(select(runs)).answer
    assert "takes 2.00 times as long on slurm as on local (5 pairs, too few for an interval)." in answer


@pytest.mark.parametrize(
    "other",
    [
        {"environment": make_environment(processor="another")},
        {"environment": make_environment(cores=1)},
        {"environment": make_environment(memory_bytes=1)},
        {"environment": NotRecorded("lost")},
        {"ranks": world("srun", threads_per_rank=2)},
        {"ranks": make_world("cuda:0", "cuda:1", launcher="srun")},
    ],
)
def test_another_machine_is_not_called_the_same(other):
    local, slurm = (
        way("local", [10.0] * 6, ranks=world()),
        way("slurm", [10.0] * 6, **{"ranks": world("srun"), **other}),
    )
    answer = find(select(local, slurm)).answer
    assert "machine training" not in answer and "local" in answer


def test_what_disturbs_times_is_left_out_and_what_is_not_known_too():
    known, trace = {"launch_seconds": 4.0}, make_trace({"training": 10}, {"cpu0": {"training": 50.0}})
    queue = {**known, "queue_seconds": NotRecorded("not reported")}
    runs = [
        way("local", [10.0, 11.0], ranks=world(), totals=known),
        study("metered", first=3, world=world(), totals={"launch_seconds": 99.0}, traces=[trace]),
        study("clocks", first=4, world=world(), totals={"launch_seconds": NotRecorded("clocks differ")}),
        study("unknown", first=5, world=NotRecorded("lost"), totals=known),
        way("slurm", [10.0], ranks=world("srun"), totals=queue),
    ]
    rows = starts_of(find(select(*runs)))
    assert (rows["local"]["n"], rows["local"]["range of launch"]) == (2, "4.25 to 4.50")
    assert (rows["slurm"]["launch, s"], rows["slurm"]["queue, s"], rows["slurm"]["sum, s"]) == (4.25, None, None)


def test_older_runs_have_no_start_times(tmp_path, plots):
    for site in ("local", "slurm"):
        write_finished_run(tmp_path / site, site=site, world=world(None))
    # As they were written before: without the fields.
    for folder in tmp_path.iterdir():
        text = json.loads((folder / "run.json").read_text())
        del text["world"]["launcher"], text["totals"]["launch_seconds"], text["totals"]["queue_seconds"]
        (folder / "run.json").write_text(json.dumps(text))
        record = read_record(folder)
        assert asdict(record)["totals"]["launch_seconds"] is None and asdict(record)["world"]["launcher"] is None
    found = find(load_runs([tmp_path]))
    assert starts_of(found) == {} and "Starting" not in found.answer
    assert [plot.name for plot in found.plots] == ["clouds-time", "clouds-accuracy"]
    assert not any(note.startswith("queue:") for note in found.notes)


def test_launch_methods_on_one_site_are_distinguished(tmp_path, capsys, plots):
    for framework in ("keras", "torch"):
        for launcher, ranks in (("horovodrun", 2), ("mpirun", 2), ("none", 1)):
            one = make_world(*["cpu"] * ranks, launcher=launcher, controller="mpi" if ranks == 2 else "none")
            write_finished_run(tmp_path / f"{framework}-{launcher}", framework=framework, world=one,
                           totals={"launch_seconds": 4.0 if launcher == "none" else 2.0})  # fmt: skip
    assert main(["clouds", str(tmp_path), "--plots", str(tmp_path / "plots")]) == 0
    shown = capsys.readouterr().out
    assert "All runs are of one site (local)" in shown and "14.0 s, on local without launcher" in shown
    assert "\nStarting takes shortest" in shown, "each question is answered on a line of its own"
    (plot,) = [plot for plot in find(load_runs([tmp_path])).plots if plot.name == "clouds-startup"]
    labels = [label.get_text() for label in plot.figure.axes[0].get_yticklabels()]
    assert len(labels) == 6 and "local by mpirun with mpi\nKeras" in labels
    assert len(plot.data.rows) == 6 * 3  # launch, start-up, training
    assert plot.figure.get_suptitle().endswith("n = 1 runs each")
    assert {file.name for file in (tmp_path / "plots").glob("clouds-startup*")} == {
        "clouds-startup.csv",
        "clouds-startup.png",
        "clouds-startup.svg",
    }


def test_starts_that_take_about_the_same_are_not_ranked():
    for seconds, said in ((1.0, False), (3.0, True)):  # with 10 s of start-up and 0.25 s more for each: 11.25 s, then
        ways = [
            way("local", [10.0], folder=f"{launcher}/", ranks=world(launcher), totals={"launch_seconds": launch})
            for launcher, launch in (("horovodrun", 0.0), ("mpirun", seconds))
        ]
        assert ("Starting takes" in find(select(*ways)).answer) == said


def test_one_way_alone_needs_no_plot_and_no_sentence(plots):
    found = find(select(way("local", [10.0, 11.0], ranks=world(), totals={"launch_seconds": 4.0})))
    assert "Starting" not in found.answer and [plot.name for plot in found.plots] == ["clouds-time"]
    assert starts_of(found)["local"]["n"] == 2


# Sites that are in no table

NAMES = ("local", "hosts", "my-cluster", "Ünï cörn " + "x" * 80)


@pytest.fixture(scope="module")
def many_sites(tmp_path_factory):
    """Folder with runs of both frameworks on sites that are in the table, and on some that are not."""
    folder = tmp_path_factory.mktemp("sites")
    phases = {"training": 10, "validation": 1, "test": 1}
    trace = make_trace(phases, {"cpu0": dict.fromkeys(phases, 50.0)})
    for name, framework in product(NAMES, ("torch", "keras")):
        where = {"site": name, "framework": framework}
        for size, seed in ((1, 1), (2, 1), (2, 2)):
            ranks = make_world(*["cpu"] * size, launcher="srun")
            write_finished_run(folder / "runs" / f"{name}-{framework}-{size}-{seed}", seed=seed, world=ranks,
                           seconds=100.0 / size + seed, totals={"launch_seconds": 1.0}, **where)  # fmt: skip
        write_finished_run(folder / "runs" / f"{name}-{framework}-metered", world=ranks, traces=[trace], **where)
    return folder


@pytest.mark.parametrize(
    "command",
    [
        "clouds",
        "check",
        *(pytest.param(name, marks=pytest.mark.ci) for name in ("scaling", "energy", "frameworks", "times")),
    ],
)
def test_every_command_takes_any_site(command, many_sites, capsys, plots):
    assert main([command, str(many_sites / "runs")]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    if command == "clouds":
        assert "my-cluster is not in the table of sites: its machine and price are not known" in shown.out
        assert "site not in the table" in shown.out and "owned: no price per hour" in shown.out


@pytest.mark.ci
def test_the_report_takes_any_site(many_sites, capsys, plots):
    runs = [str(folder) for folder in (many_sites / "runs").iterdir() if folder.name.startswith(("hosts-", "my-"))]
    assert main(["report", *runs, "-o", str(many_sites / "report.html")]) == 0
    page = (many_sites / "report.html").read_text()
    assert "my-cluster" in page and "What starting the ranks costs" in page and "Where the time goes" in page


def test_a_custom_table_prices_such_a_site(many_sites, capsys):
    table = many_sites / "mine.toml"
    table.write_text(
        '[launch]\ntitle = "how jobs are started there"\n[sites.my-cluster]\ntitle = "mine"\nkind = "rented"\n'
        'source = "its page"\nprices = [{ date = 2026-01-01, usd_per_hour = 36.0, terms = "x", source = "y" }]\n'
    )
    assert main(["clouds", str(many_sites / "runs"), "--table", str(table), "--format", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    (costs,) = [one["rows"] for one in shown["tables"] if one["title"] == "Costs (medians)"]
    of_site = [row["$ per run"] for row in costs if row["site"] == "my-cluster" and "np 1" in row["experiment"]]
    assert of_site == [pytest.approx((10 + 101 + 4 + 3 * 0.25 + 1) / 100)] * 2
    assert not any(note.startswith("my-cluster is not") for note in shown["notes"])
    assert any(note.startswith("Ünï cörn xx") for note in shown["notes"])


def test_runs_are_moved_to_any_site_but_a_misspelt_one(tmp_path):
    for site in ("local", "my-cluster"):
        write_finished_run(tmp_path / site, site=site)
    selection = load_runs([tmp_path])
    folder = tmp_path / "local"
    for name in ("some-laboratory", "my-cluster", "slurm"):
        (site,) = {
            run.site
            for run in runs_in(assigned(selection, f"{folder}={name}", sites=SITES).runs)
            if run.folder == folder
        }
        assert site == name
    with pytest.raises(UserError, match="Did you mean slurm"):
        assigned(selection, f"{folder}=slurmm", sites=SITES)
    with pytest.raises(UserError, match="Write RUNS=SITE"):
        assigned(selection, f"{folder}=", sites=SITES)
    # What runs say themselves is no slip of the pen.
    write_finished_run(tmp_path / "slurmm", site="slurmm")
    assert {*assigned(load_runs([tmp_path]), f"{folder}=slurmm", sites=SITES).runs["site"]} == {
        "slurmm", "my-cluster"
    }  # fmt: skip


def test_the_base_is_local_where_it_is_not_cte_power():
    runs = [way(site, [10.0], ranks=world()) for site in ("a-cluster", "local")]
    (times,) = [table for table in find(select(*runs)).tables if table.title.startswith("Times and acc")]
    assert "time / local" in times.headings
