"""`slow_strategies.py`: a run is recorded as one of the site of its link."""

from types import SimpleNamespace

from slow_strategies import train

from launch.experiments.plan import read_plan
from launch.starting.launchers import launcher_at


def test_a_run_is_of_the_site_of_its_link(tmp_path):
    """The launcher names a site, too: the last one counts."""
    given = []

    def run(host, command, **_):
        given.append(command)
        return SimpleNamespace(returncode=0)

    planned = read_plan("slow-links", runs_folder=tmp_path).runs[0]
    hosts = SimpleNamespace(run=run)
    train(hosts, launcher_at(None, hosts="a:1,b:1"), planned, folder=tmp_path / "10mbit")
    assert given[0].count("--site") == 2
    assert given[0][-2:] == ["--site", "link-10mbit"]
