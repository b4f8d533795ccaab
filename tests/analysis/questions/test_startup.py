"""Sites that are in no table."""

from itertools import product

import pytest
from builders import make_trace, write_finished_run

from analysis.__main__ import main
from analysis.questions.clouds.finding import assigned
from analysis.runs.reading import load_runs
from common.errors import UserError
from common.sites.table import read_sites

SITES = read_sites()


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
