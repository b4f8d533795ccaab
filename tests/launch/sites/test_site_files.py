"""Site files: what ships, files of one's own, and the ways of starting ranks.

What may be wrong in a site's file or in the names of hosts is in `tests/refusals/launch-files.toml`.
"""

import re
from datetime import date

import pytest
from processes import call

from common.sites.table import read_sites
from launch import __main__ as launch
from launch.sites.options import SlurmOptions
from launch.sites.site_files import SITE_FILES, read_launch_site, shipped_sites
from launch.starting import launchers
from launch.starting.launchers import Slots, assign_ranks, launcher_at, parse_hosts


def test_every_shipped_site_and_every_machine_is_listed():
    for name in shipped_sites():
        site = read_launch_site(name)
        assert site.source and site.title and site.checked <= date.today()
        assert (site.name, site.reference) == (name, name)
    shown = call(launch.main, "sites", "--on", "2026-01-01")  # no price is old
    rows = [line.split() for line in shown.splitlines()[2:-1]]
    assert {row[0] for row in rows} - {"thesis-machine"} == {path.stem for path in SITE_FILES.glob("*.toml")}
    assert {row[0] for row in rows} | {row[1] for row in rows} >= set(read_sites().sites)


@pytest.mark.parametrize(
    ("site", "gpus", "node"),
    [
        ("aws-g4dn", 0, "aws-g4dn-xlarge"),
        ("aws-g4dn", 2, "aws-g4dn-12xlarge"),
        ("aws-p3", 8, "aws-p3-16xlarge"),
        ("cte-power", 4, "cte-power"),
        ("slurm", 8, "slurm"),  # of a machine that is not described any number is taken
        ("aws", 0, "aws-c7i-16xlarge"),
        ("aws", 1, "aws-g6-xlarge"),
        ("aws:p5-48xlarge", 8, "aws-p5-48xlarge"),
        ("aws:aws-g6e-xlarge", 0, "aws-g6e-xlarge"),
    ],
)
def test_the_kind_of_node_goes_by_its_gpus_or_is_named_behind_the_site(site, gpus, node):
    place = read_launch_site(site)
    assert place.node_for(gpus)[0] == node
    assert read_launch_site(place.reference) == place


def test_prices_older_than_a_year_are_marked():
    lines = {}
    for day in ("2026-06-28", "2026-06-29"):
        *rows, last = call(launch.main, "sites", "--on", day).splitlines()
        lines[day] = next(row.split() for row in rows if " aws-p4d-24xlarge " in row), last
    assert lines["2026-06-28"][0][-3:] == ["21.958+", "7.246", "us-east-1"] and "older" not in lines["2026-06-28"][1]
    assert lines["2026-06-28"][1].startswith("+ first known price, of a day after 2026-06-28")
    assert lines["2026-06-29"][0][-3:] == ["21.958+", "7.246*", "us-east-1"]
    assert lines["2026-06-29"][1].startswith("* price older than a year on 2026-06-29")
    price = "$7.246 an hour (spot, Linux, us-east-1; 2025-06-28, over a year old; AWS"
    call(launch.main, "sites", "aws:p4d-24xlarge", "--on", "2026-06-29", shows=price)


OWN = """
[launch]
title = "ours"
source = "its guide"
checked = 2026-11-21
scheduler = "slurm"
nodes = ["fat", "own"]

[sites.fat]
title = "a fat node"
kind = "owned"
source = "its guide"
gpu = "v100"  # of the project's table
gpus = 2
processor = "two of them"

[sites.own]
title = "of its own kind"
kind = "owned"
source = "its guide"
gpu = "x"
gpus = 4

[gpus.x]
name = "own GPU"
fp32_tflops = 1.0
memory_gb = 1.0
memory_bandwidth_gb_s = 1.0
power_watts = 1.0
energy_counter = true
source = "its guide"
"""


def test_a_custom_site_is_one_file(tmp_path):
    """Which is a table of machines for other commands, too."""
    file = tmp_path / "ours.toml"
    file.write_text(OWN)
    site = read_launch_site(str(file))
    assert (site.name, site.reference, site.node_for(2)[0]) == ("ours", str(file), "fat")
    shown = call(launch.main, "sites", str(file))
    assert "a fat node" in shown and "Tesla V100" in shown and "own GPU" in shown
    rows = [line.split() for line in call(launch.main, "sites", "--table", str(file)).splitlines()]
    assert ["own", "4", "x", "own", "GPU"] in rows
    assert "aws-p3-8xlarge" in read_sites(file).sites


def with_all_keys(name, folder):
    """Return a shipped site with the keys in its comments."""
    text = (SITE_FILES / f"{name}.toml").read_text()
    file = folder / f"{name}.toml"
    file.write_text(re.sub(r"^# (?=[a-z_]+ = |\[)", "", text, flags=re.MULTILINE).replace('["slurm"]', '["ours"]'))
    return read_launch_site(str(file))


def test_the_keys_in_the_comments_of_sites_can_be_used(tmp_path):
    """And none of Slurm's is left out."""
    assert with_all_keys("kubernetes", tmp_path).kubernetes.queue == "gpus"
    site = with_all_keys("slurm", tmp_path)
    unused = [name for name, value in vars(site.slurm).items() if value == getattr(SlurmOptions(), name)]
    assert (unused, site.purge, site.machines["ours"].cores) == ([], False, 64)
    assert site.container and site.container.by_srun
    assert site.software and site.software.toolkits == ["12.8", "13.0"]
    assert read_launch_site("slurm").slurm == SlurmOptions()


@pytest.mark.parametrize(
    ("np", "spread", "placed"),
    [
        (1, False, "a:1"), (3, False, "a:2,b:1"), (6, False, "a:2,b:3,c:1"),
        (1, True, "a:1"), (2, True, "a:1,b:1"), (3, True, "a:1,b:1,c:1"), (4, True, "a:2,b:2"),
        (6, True, "a:2,b:3,c:1"),
    ],
)  # fmt: skip
def test_ranks_fill_hosts_or_spread_over_them(np, spread, placed):
    hosts = parse_hosts("a:2, b:3,c")
    assert hosts == [Slots("a", 2), Slots("b", 3), Slots("c", 1)]
    assert ",".join(map(str, assign_ranks(hosts, np=np, spread=spread))) == placed


def test_as_many_ranks_fit_as_there_are_slots_or_tasks_of_slurm(monkeypatch):
    monkeypatch.delenv("SLURM_NTASKS", raising=False)
    assert launcher_at("slurm", hosts=None).slots() is None
    monkeypatch.setenv("SLURM_NTASKS", "8")
    assert launcher_at("slurm", hosts=None).slots() == 8
    assert launcher_at("slurm", hosts="a:2,b:1").slots() == 3
    assert launcher_at("local", hosts=None).slots() is None


def test_hosts_may_be_many():
    """Longer than the name of a file may be, which they could be as well."""
    assert launcher_at(None, hosts=",".join(f"node{number:03}:4" for number in range(40))).slots() == 160


def test_ranks_over_gloo_are_started_on_all_nodes_of_a_job_of_slurm(monkeypatch):
    monkeypatch.setattr(launchers, "slurm_hosts", lambda: [Slots("n1", 1), Slots("n2", 1)])
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    words = launcher_at("slurm", hosts=None).words(np=2, controller="gloo")
    assert words[:5] == ["horovodrun", "-np", "2", "-H", "n1:1,n2:1"] and words[-1] == "--gloo"
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "1")
    assert launcher_at("slurm", hosts=None).words(np=2, controller="gloo") == ["horovodrun", "-np", "2", "--gloo"]
