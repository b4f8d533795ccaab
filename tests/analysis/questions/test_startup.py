"""What starting the ranks costs: parts and sums by hand, which machines are the same, sites missing in the table."""

import json
from itertools import product
from pathlib import Path

import pytest
from analysis_builders import plot_of, rows_of, select, study
from builders import make_environment, make_trace, make_world, write_finished_run
from question_cases import cases_in, check_case

from analysis.__main__ import main
from analysis.questions.clouds.finding import assigned, find
from analysis.runs.reading import load_runs
from common.errors import UserError
from common.run_folder.records import NotRecorded
from common.sites.table import read_sites

SITES = read_sites()


def world(launcher="horovodrun", *, hosts=1, **changes):
    return make_world("cpu", "cpu", hosts=hosts, launcher=launcher, **changes)


def way(site, times, *, ranks, launch=None, folder="", **changes):
    """Return runs of seeds 1, 2 ...: 10 s of start-up and what `totals` says, 0.25 s more of launch per seed."""
    totals = changes.pop("totals", {})
    return [
        run
        for seed, seconds in enumerate(times, start=1)
        for run in study(
            f"{folder}{site}", seconds=[seconds], first=seed, site=site, world=ranks, **changes,
            totals=totals | ({} if launch is None else {"launch_seconds": launch + seed / 4}),
        )
    ]  # fmt: skip


def starts_of(found):
    """Return site -> row of the table."""
    tables = [table for table in found.tables if table.title.startswith("What starting the ranks costs")]
    return {row["site"]: row for table in tables for row in rows_of(table)}


def test_parts_by_hand_and_launch_methods_in_words():
    """The same machine; slurm is quick to launch after a queue, the two hosts have names of their own."""
    times = [20.0, 21.0, 19.0, 20.5, 19.5, 20.2]
    found = find(
        select(
            way("hosts", [time * 1.5 for time in times], ranks=world(hosts=2), launch=8.0),
            way("local", times, ranks=world(), launch=4.0),
            way("slurm", [time * 0.99 for time in times], ranks=world("srun"), launch=1.0,
                totals={"queue_seconds": 3.0, "startup_seconds": 11.0}),
        )
    )  # fmt: skip
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
    assert "On the same machine training takes 0.99 times as long on slurm as on local (interval 0.99 to 0.99)." in (
        found.answer
    )
    assert "On one kind of machine training takes 1.50 times as long on hosts as on local (interval" in found.answer
    assert found.answer.endswith(
        "Starting takes shortest, 12.9 s, on slurm by srun with mpi. It takes longest, 18.9 s, on hosts by horovodrun "
        "with mpi over 2 hosts."
    )
    assert any(note.startswith("queue: from submission until") for note in found.notes)
    assert found.flags == [], "launcher and queue make no other experiment"


@pytest.mark.parametrize("case", cases_in(Path(__file__).with_name("startup.toml")))
def test_what_is_found(case):
    check_case(case, find)


@pytest.mark.parametrize(
    "environment",
    [
        make_environment(processor="another"),
        make_environment(cores=1),
        make_environment(memory_bytes=1),
        NotRecorded("lost"),
    ],
)
def test_another_machine_is_not_called_the_same(environment):
    local = way("local", [10.0] * 6, ranks=world())
    found = find(select(local, way("slurm", [10.0] * 6, ranks=world("srun"), environment=environment)))
    assert "machine training" not in found.answer and "local" in found.answer


def test_what_disturbs_times_is_left_out_and_what_is_not_known_too():
    known, trace = {"launch_seconds": 4.0}, make_trace({"training": 10}, {"cpu0": {"training": 50.0}})
    runs = [
        way("local", [10.0, 11.0], ranks=world(), launch=4.0),
        study("metered", first=3, world=world(), totals={"launch_seconds": 99.0}, traces=[trace]),
        study("clocks", first=4, world=world(), totals={"launch_seconds": NotRecorded("clocks differ")}),
        study("unknown", first=5, world=NotRecorded("lost"), totals=known),
        way("slurm", [10.0], ranks=world("srun"), launch=4.0, totals={"queue_seconds": NotRecorded("not reported")}),
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
    found = find(load_runs([tmp_path]))
    assert starts_of(found) == {} and "Starting" not in found.answer
    assert [plot.name for plot in found.plots] == ["clouds-time", "clouds-accuracy"]
    assert not any(note.startswith("queue:") for note in found.notes)


def test_launch_methods_on_one_site_are_distinguished(tmp_path, plots):
    for framework, (launcher, ranks) in product(("keras", "torch"), (("horovodrun", 2), ("mpirun", 2), ("none", 1))):
        one = make_world(*["cpu"] * ranks, launcher=launcher, controller="mpi" if ranks == 2 else "none")
        write_finished_run(tmp_path / f"{framework}-{launcher}", framework=framework, world=one,
                           totals={"launch_seconds": 4.0 if launcher == "none" else 2.0})  # fmt: skip
    found = find(load_runs([tmp_path]))
    assert "All runs are of one site (local)" in found.answer and "14.0 s, on local without launcher" in found.answer
    assert "\nStarting takes shortest" in found.answer, "each question is answered on a line of its own"
    plot = plot_of(found, "clouds-startup")
    labels = [label.get_text() for label in plot.figure.axes[0].get_yticklabels()]
    assert len(labels) == 6 and "local by mpirun with mpi\nKeras" in labels
    assert len(plot.data.rows) == 6 * 3  # launch, start-up, training
    assert plot.figure.get_suptitle().endswith("n = 1 runs each")


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


OTHERS = ("scaling", "energy", "frameworks", "times", "report")


@pytest.mark.parametrize("command", ["clouds", "check", *(pytest.param(name, marks=pytest.mark.ci) for name in OTHERS)])
def test_every_command_takes_any_site(command, many_sites, capsys, plots):
    page = many_sites / "report.html"
    assert main([command, str(many_sites / "runs"), *(["-o", str(page)] if command == "report" else [])]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    if command == "clouds":
        assert "my-cluster is not in the table of sites: its machine and price are not known" in shown.out
        assert "site not in the table" in shown.out and "owned: no price per hour" in shown.out
    if command == "report":
        for words in ("my-cluster", "What starting the ranks costs", "Where the time goes"):
            assert words in page.read_text()


def test_runs_are_moved_to_any_site_but_a_misspelt_one(tmp_path):
    for site in ("local", "my-cluster"):
        write_finished_run(tmp_path / site, site=site)

    def sites(name):
        """Return the sites once the runs of local are assigned to this one."""
        return {*assigned(load_runs([tmp_path]), f"{tmp_path / 'local'}={name}", sites=SITES).runs["site"]}

    for name in ("some-laboratory", "my-cluster", "slurm"):
        assert sites(name) == {name, "my-cluster"}
    with pytest.raises(UserError, match="Did you mean slurm"):
        sites("slurmm")
    with pytest.raises(UserError, match="Write RUNS=SITE"):
        sites("")
    # What runs say themselves is no slip of the pen.
    write_finished_run(tmp_path / "slurmm", site="slurmm")
    assert sites("slurmm") == {"slurmm", "my-cluster"}
