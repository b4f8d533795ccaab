"""What starting the ranks costs: parts and sums by hand, which machines are the same, sites missing in the table."""

from itertools import product

import pytest
from analysis_builders import plot_of, rows_of, select, study
from builders import make_trace, make_world, write_finished_run

from analysis.__main__ import main
from analysis.questions.clouds.finding import assigned, find
from analysis.runs.reading import load_runs
from common.errors import UserError
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
    local, slurm = rows["local"], rows["slurm"]
    assert [local[name] for name in ("launcher", "controller", "hosts", "framework", "np", "n")] == [
        "horovodrun", "mpi", 1, "PyTorch", "2", 6
    ]  # fmt: skip
    assert (local["queue, s"], local["range of queue"]) == (None, None), "where there is no queue nothing was waited"
    assert (slurm["queue, s"], slurm["range of queue"]) == (3.0, "3.00 to 3.00")
    assert (local["launch, s"], local["range of launch"]) == (4.875, "4.25 to 5.50")
    # Sums run by run, whose median is taken: 4.25 + 10 + 20, 4.5 + 10 + 21, 4.75 + 10 + 19, ...
    assert local["sum, s"] == pytest.approx((34.75 + 35.5) / 2) and local["range of sum"] == "33.75 to 35.70"
    assert "On the same machine training takes 0.99 times as long on slurm as on local (interval 0.99 to 0.99)." in (
        found.answer
    )
    assert "On one kind of machine training takes 1.50 times as long on hosts as on local (interval" in found.answer
    assert found.flags == [], "launcher and queue make no other experiment"


def test_launch_methods_have_a_row_each_in_the_picture(tmp_path, plots):
    for framework, (launcher, ranks) in product(("keras", "torch"), (("horovodrun", 2), ("mpirun", 2), ("none", 1))):
        one = make_world(*["cpu"] * ranks, launcher=launcher, controller="mpi" if ranks == 2 else "none")
        write_finished_run(tmp_path / f"{framework}-{launcher}", framework=framework, world=one,
                           totals={"launch_seconds": 4.0 if launcher == "none" else 2.0})  # fmt: skip
    found = find(load_runs([tmp_path]))
    plot = plot_of(found, "clouds-startup")
    labels = [label.get_text() for label in plot.figure.axes[0].get_yticklabels()]
    assert len(labels) == 6 and "local by mpirun with mpi\nKeras" in labels
    assert len(plot.data.rows) == 6 * 3  # launch, start-up, training
    assert plot.figure.get_suptitle().endswith("n = 1 runs each")


# Sites that are in no table


@pytest.mark.parametrize(
    "command",
    ["clouds", *(pytest.param(name, marks=pytest.mark.ci) for name in ("check", "scaling", "energy", "report"))],
)
def test_every_command_takes_a_site_that_is_in_no_table(command, tmp_path, capsys, plots):
    trace = make_trace({"training": 10}, {"cpu0": {"training": 50.0}})
    for name, traces in product(("local", "my-cluster", "Ünï cörn " + "x" * 80), (None, [trace])):
        write_finished_run(tmp_path / "runs" / f"{name}-{traces is None}", site=name, traces=traces)
    page = ["-o", str(tmp_path / "report.html")] if command == "report" else []
    assert main([command, str(tmp_path / "runs"), *page]) == 0
    shown = capsys.readouterr()
    words = "my-cluster is not in the table of sites: its machine and price are not known"
    assert shown.err == "" and (words in shown.out) == (command == "clouds")


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
