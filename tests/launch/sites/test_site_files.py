"""Site files: what ships, files of one's own, everything that may be wrong in one, and the ways of starting ranks."""

import re
from datetime import date

import pytest

from common.errors import UserError
from common.sites.table import read_sites
from launch import __main__ as launch
from launch.sites.options import SlurmOptions
from launch.sites.site_files import SITE_FILES, read_launch_site, shipped_sites
from launch.starting.launchers import Slots, assign_ranks, launcher_at, parse_hosts, read_host_file

SHIPPED = {
    "local": ("local", "horovodrun", ["local"]),
    "hosts": ("hosts", "horovodrun", ["hosts"]),
    "slurm": ("slurm", "srun", ["slurm"]),
    "cte-power": ("slurm", "srun", ["cte-power"]),
    "aws-g3": ("skypilot", "horovodrun", ["aws-g3-4xlarge", "aws-g3-8xlarge", "aws-g3-16xlarge"]),
    "aws-p3": ("skypilot", "horovodrun", ["aws-p3-2xlarge", "aws-p3-8xlarge", "aws-p3-16xlarge"]),
    "aws-g4dn": ("skypilot", "horovodrun", ["aws-g4dn-xlarge", "aws-g4dn-12xlarge"]),
    "aws-g5": ("skypilot", "horovodrun", ["aws-g5-12xlarge", "aws-g5-48xlarge"]),
    "gcp": ("skypilot", "horovodrun", ["gcp-a2-highgpu-1g", "gcp-a2-highgpu-8g", "gcp-a3-highgpu-8g"]),
    "marenostrum5": ("slurm", "srun", ["marenostrum5"]),
    "kubernetes": ("kubernetes", "mpirun", ["kubernetes"]),
}


def test_the_sites_of_the_documents_ship():
    assert set(SHIPPED) <= set(shipped_sites())
    for name, (scheduler, launcher, nodes) in SHIPPED.items():
        site = read_launch_site(name)
        assert (site.name, site.scheduler, site.launcher, site.nodes) == (name, scheduler, launcher, nodes)
        assert site.source and site.title and site.checked <= date.today()
        assert site.reference == name


def test_cte_power_agrees_with_its_guide():
    site = read_launch_site("cte-power")
    node = site.machines["cte-power"]
    assert (node.gpu, node.gpus, node.cores, node.memory_gb) == ("v100", 4, 40, 512)
    assert not site.internet and (site.slurm.cores_per_gpu, site.slurm.max_hours) == (40, 48)
    assert [module.split("/")[0] for module in site.modules] == ["gcc", "cuda", "nccl", "openmpi"]


@pytest.mark.parametrize(
    ("site", "gpus", "node"),
    [
        ("aws-g4dn", 0, "aws-g4dn-xlarge"),
        ("aws-g4dn", 1, "aws-g4dn-xlarge"),
        ("aws-g4dn", 2, "aws-g4dn-12xlarge"),
        ("aws-p3", 8, "aws-p3-16xlarge"),
        ("cte-power", 4, "cte-power"),
        ("slurm", 8, "slurm"),  # of a machine that is not described any number is taken
        ("aws-p3-8xlarge", 4, "aws-p3-8xlarge"),
        ("aws", 0, "aws-c7i-16xlarge"),
        ("aws", 1, "aws-g6-xlarge"),
        ("aws", 8, "aws-p4d-24xlarge"),
        ("aws:p5-48xlarge", 8, "aws-p5-48xlarge"),
        ("aws:aws-g6e-xlarge", 0, "aws-g6e-xlarge"),
    ],
)
def test_the_kind_of_node_goes_by_its_gpus(site, gpus, node):
    assert read_launch_site(site).node_for(gpus)[0] == node


def test_a_kind_of_node_is_named_behind_the_site():
    site = read_launch_site("aws:p5-48xlarge")
    assert (site.name, site.nodes, site.reference) == ("aws", ["aws-p5-48xlarge"], "aws:p5-48xlarge")
    assert read_launch_site(site.reference) == site
    with pytest.raises(UserError, match=r"no node of aws has that many GPUs. Received: --gpus-per-node 4"):
        read_launch_site("aws:g6-xlarge").node_for(4)
    with pytest.raises(UserError, match=r"aws has no such kind of node. Received: aws:p9. Use aws-c7i-16xlarge, "):
        read_launch_site("aws:p9")


def test_marenostrum_5_agrees_with_its_guide():
    site = read_launch_site("marenostrum5")
    assert not site.internet
    assert (site.slurm.partition, site.slurm.cores_per_gpu, site.slurm.max_hours) == ("acc", 20, 72)


SOFTWARE = {  # of GPU nodes: driver and CUDA toolkits; by SkyPilot's default images GPUs older than Turing have others
    **dict.fromkeys(("aws", "aws-g4dn", "aws-g5", "gcp"), ("580", ["12.9", "13.0"])),
    "aws-g3": ("535.216.01", ["12.4"]), "aws-p3": ("535.216.01", ["12.4"]),
    "aws-parallelcluster": ("595.112.07", ["13.2"]), "marenostrum5": (None, ["12.3", "12.8", "13.2"]),
    "cte-power": (None, ["10.2"]),
}  # fmt: skip


def test_the_software_of_gpu_nodes(tmp_path, capsys):
    found = {name: read_launch_site(name).software for name in shipped_sites()}
    assert {name: (one.driver, one.toolkits) for name, one in found.items() if one} == SOFTWARE
    assert all(one.source for one in found.values() if one)
    assert (ours := with_all_keys("slurm", tmp_path).software) and ours.toolkits == ["12.8", "13.0"]
    assert launch.main(["sites", "aws-p3"]) == 0
    shown = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()]
    assert ["software", "driver", "535.216.01"] in shown and ["software", "toolkits", "12.4"] in shown
    assert ["gpu", "compute_capability", "7.0"] in shown


def test_prices_older_than_a_year_are_marked(capsys):
    lines = {}
    for day in ("2026-06-28", "2026-06-29"):
        assert launch.main(["sites", "--on", day]) == 0
        *rows, last = capsys.readouterr().out.splitlines()
        lines[day] = next(row.split() for row in rows if " aws-p4d-24xlarge " in row), last
    assert lines["2026-06-28"][0][-3:] == ["21.958+", "7.246", "us-east-1"] and "older" not in lines["2026-06-28"][1]
    assert lines["2026-06-28"][1].startswith("+ first known price, of a day after 2026-06-28")
    assert lines["2026-06-29"][0][-3:] == ["21.958+", "7.246*", "us-east-1"]
    assert lines["2026-06-29"][1].startswith("* price older than a year on 2026-06-29")
    assert launch.main(["sites", "aws:p4d-24xlarge", "--on", "2026-06-29"]) == 0
    assert "$7.246 an hour (spot, Linux, us-east-1; 2025-06-28, over a year old; AWS" in capsys.readouterr().out


def test_more_gpus_than_any_node_has():
    with pytest.raises(UserError, match=r"--gpus-per-node 5. Give 4 or fewer, and more --nodes"):
        read_launch_site("cte-power").node_for(5)


OWN = """
[launch]
title = "ours"
source = "its guide"
checked = 2026-11-21
scheduler = "slurm"
nodes = ["fat"]

[sites.fat]
title = "a fat node"
kind = "owned"
source = "its guide"
gpu = "{gpu}"
gpus = 2
processor = "two of them"
"""


def test_a_custom_site_is_one_file(tmp_path, capsys):
    file = tmp_path / "ours.toml"
    file.write_text(OWN.format(gpu="v100"))  # a GPU of the project's table
    site = read_launch_site(str(file))
    assert (site.name, site.reference, site.node_for(2)[0]) == ("ours", str(file), "fat")
    assert launch.main(["sites", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "a fat node" in shown and "Tesla V100" in shown
    ownership = '[sites.fat.ownership]\ndate = 2026-11-21\nsource = "its bill"\npurchase_usd = 87660\n'
    file.write_text(OWN.format(gpu="v100") + ownership)
    assert launch.main(["sites", str(file)]) == 0
    assert "$2 an hour (computed: $87,660 over 5 years, used 100 % of the time; " in capsys.readouterr().out
    # The same file is a table of machines for the estimates and prices of other commands.
    assert read_sites(file)["fat"].gpus == 2
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
    assert read_launch_site("slurm").slurm == SlurmOptions()


def one_line(text):
    return '[launch]\ntitle = "x"\nsource = "x"\nchecked = 2026-11-21\n' + text


LOCAL = 'scheduler = "local"\nnodes = ["local"]\n'
SLURM = 'scheduler = "slurm"\nnodes = ["slurm"]\n'
PYXIS = '[launch.container]\nruntime = "pyxis"\nimage = "x"\n'
CLOUD = 'scheduler = "skypilot"\nnodes = ["aws-g4dn-xlarge"]\n[launch.skypilot]\n'
HOSTS = 'scheduler = "hosts"\nnodes = ["hosts"]\n[launch.hosts]\n'
CLUSTER = 'scheduler = "kubernetes"\nnodes = ["kubernetes"]\n[launch.kubernetes]\n'


SOFTWARE_ERRORS = [
    ('driver = "R580"', 'software.driver: write a version, such as "580.126.09".'),
    ("driver = 580.126", 'software.driver: write a version, such as "580.126.09".'),
    ('toolkits = ["13"]', 'software.toolkits.0: write a version of two numbers, such as "12.8".'),
    ('toolkits = ["12.8", "/usr/local/cuda"]', 'software.toolkits.1: write a version of two numbers, such as "12.8".'),
]
EXTRAS = [
    ("exclusive", 'write an option of sbatch with its hyphens, such as "--exclusive"'),
    ("--mem=5G", "this has a key of its own: write memory under [launch.slurm]"),
    ("--time=5", "each job sets this: give --minutes to submit"),
    ("--ntasks=5", "each job sets this: give --ranks-per-node to submit"),
    ("--output=x", "the script sets this itself: leave it out"),
]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot read the site: No such file or directory"),
        ("[launch", "is not TOML"),
        ('[sites.x]\ntitle = "x"', "has no table [launch]. Received: sites"),
        (one_line('scheduler = "local"\n'), "nodes: "),
        (one_line('scheduler = "pbs"\nnodes = ["local"]\n'), "Received: 'pbs'"),
        (one_line('scheduler = "local"\nnodes = []\n'), "nodes: List should have at least 1 item"),
        (one_line('scheduler = "local"\nnodes = ["moon"]\n'), "a node is not in the table of machines. Received: moon"),
        (one_line(LOCAL + "color = 1\n"), "color: "),
        (one_line(LOCAL + "internet = 1\n"), "internet: "),
        (
            one_line(LOCAL + "[launch.slurm]\n"),
            "its scheduler is local. Received: [launch.slurm]",
        ),
        (one_line(LOCAL + 'launcher = "srun"\n'), "srun needs Slurm. Received: scheduler local"),
        (one_line(LOCAL + "[launch.container]\nbinds = []\n"), "container.image: "),
        (
            one_line('scheduler = "kubernetes"\nnodes = ["kubernetes"]\n[launch.container]\nimage = "x"\n'),
            "kubernetes has an image of its own. Received: [launch.container]",
        ),
        (
            one_line(SLURM + 'launcher = "mpirun"\ncontroller = "gloo"\n'),
            "only horovodrun starts Gloo",
        ),
        (
            one_line(SLURM + '[launch.slurm]\nextra = ["--x\\n#SBATCH --y"]\n'),
            "slurm.extra.0: a text must be one line",
        ),
        (one_line(LOCAL + 'scratch_folder = "/a\\u0000b"\n'), "scratch_folder: a text must be one line"),
        (one_line(LOCAL + '[launch.environment]\n"A B" = "1"\n'), "environment.A B.[key]: write the name"),
        (
            one_line(LOCAL + '[launch.environment]\nAWS_SECRET_ACCESS_KEY = "1"\n'),
            "scripts would show this secret",
        ),
        (one_line(LOCAL + '[launch.environment]\nhub_token = "1"\n'), "scripts would show this secret"),
        (
            one_line(LOCAL + '[launch.environment]\nSSH_PASSPHRASE = "1"\n'),
            "scripts would show this secret",
        ),
        *(
            (one_line(LOCAL + f'[launch.software]\nsource = "x"\n{key}\n'), f"{words} Received: ")
            for key, words in SOFTWARE_ERRORS
        ),
        (one_line(LOCAL + '[launch.software]\ndriver = "580"\n'), "software.source: Field required"),
        (one_line(SLURM + "[launch.slurm]\nmax_hours = -1.0\n"), "slurm.max_hours: Input should be greater than 0"),
        (one_line(SLURM + "[launch.slurm]\nmax_hours = inf\n"), "slurm.max_hours: "),
        (one_line(SLURM + '[launch.slurm]\nmemory = "12 GB"\n'), 'slurm.memory: write "240G"'),
        (one_line(SLURM + "[launch.slurm]\nmemory = 240\n"), 'slurm.memory: write "240G", or "0" for'),
        *(
            (one_line(SLURM + f'[launch.slurm]\nextra = ["{extra}"]\n'), f"slurm.extra.0: {words}")
            for extra, words in EXTRAS
        ),
        (one_line(SLURM + 'setup = [" "]\n'), "setup.0: a text must not be empty"),
        *(
            (
                one_line(LOCAL + f'[launch.container]\nimage = "{image}"\n'),
                "container.image: a word without blanks is expected",
            )
            for image in ("", "a b")
        ),
        (one_line(CLOUD + 'region = "us east"\n'), "skypilot.region: a word without blanks"),
        (one_line(CLOUD + 'bucket = "ours"\n'), "skypilot.bucket: write a bucket and its kind"),
        (one_line(CLOUD + 'bucket = "s3://$(x)"\n'), "skypilot.bucket: write a bucket and its kind"),
        *(
            (one_line(f"{CLUSTER}{key} = {value}\n"), f"kubernetes.{key}{words}")
            for key, value, words in [
                ("namespace", '"Ours"', ": write a name of lower-case letters"),
                ("image", '"a b"', ": write an image"),
                ("volume_claim", '"$(x)"', ": write a name"),
                ("cpus_per_rank", "-1", ": Input should be greater than 0"),
                ("node_selector", '{ a = "b c" }', ".a: write letters"),
                ("tolerations", '[{ key = "x", operator = "Exists", value = "y" }]', ".0: "),
                ("tolerations", '[{ effect = "NoSchedule" }]', ".0: "),
                ("tolerations", '[{ key = "x", effect = "Never" }]', ".0.effect: "),
            ]
        ),
        *(
            (one_line(f"{HOSTS}{key} = {value}\n"), f"hosts.{key}{words}")
            for key, value, words in [
                ("names", '["a b"]', ".0: write a host and its slots"),
                ("names", '["a:0"]', ".0: write a host and its slots"),
                ("names", '["a;reboot:1"]', ".0: write a host and its slots"),
                ("identity_file", '"/root/my key"', ": write a path without blanks"),
                ("mpi_folder", '"/opt/$(reboot)"', ": write a path without blanks"),
                ("ssh_port", "70000", ": Input should be less than 65536. Received: 70000"),
            ]
        ),
        (one_line(CLUSTER + 'tolerations = [{ key = "a b", operator = "Exists" }]\n'), "key: a word without blanks"),
        *(
            (one_line(CLUSTER + f"{key}\n"), 'digits and "-", such as "')
            for key in ('pull_secrets = ["A b"]', "queue = 1", 'service_account = "a_b"', f'queue = "{"a" * 64}"')
        ),
        (one_line(SLURM + 'setup = ["a\\nb"]\n'), "setup.0: a text must be one line"),
        (one_line(SLURM + 'purge = "no"\n'), "purge: Input should be a valid boolean"),
        (one_line(SLURM + PYXIS), "Pyxis is a plugin of srun. Received: launcher horovodrun. Use srun"),
        (one_line(SLURM + 'launcher = "srun"\n' + PYXIS + 'binds = ["/a b"]\n'), "Pyxis takes no blank in a path"),
        (
            one_line(LOCAL + '[launch.container]\nimage = "x"\nbinds = ["/a,/b"]\n'),
            "container.binds.0: write an absolute path",
        ),
        (one_line(SLURM + "[launch.slurm]\nnotice_seconds = 65536\n"), "slurm.notice_seconds: Input should be less"),
        (one_line(SLURM + "[launch.slurm]\ncores_per_gpu = 0\n"), "slurm.cores_per_gpu: Input should be greater"),
        (one_line(CLOUD + "autostop_minutes = -5\n"), "skypilot.autostop_minutes: Input should be greater than 0"),
        (one_line(CLOUD + "autostop_minutes = 99999999999\n"), "skypilot.autostop_minutes: Input should be less"),
        (one_line(CLOUD + "disk_gb = 0\n"), "skypilot.disk_gb: Input should be greater than 0"),
        (one_line(CLUSTER + "memory_gb_per_rank = 0.0\n"), "kubernetes.memory_gb_per_rank: Input should be greater"),
        (one_line(CLUSTER + "group_id = -1\n"), "kubernetes.group_id: Input should be greater"),
    ],
)
def test_a_wrong_site_is_one_line(tmp_path, capsys, text, words):
    file = tmp_path / "ours.toml"
    if text is not None:
        file.write_text(text)
    assert launch.main(["sites", str(file)]) == 2
    error = capsys.readouterr().err.splitlines()
    assert len(error) == 1 and words in error[0] and str(file) in error[0], error


AT = ["preflight", "train", "experiment run startup --dry-run"]
NO_SITE, NO_HOST = "unknown site. Received: ''.", "no host is named. Received: --hosts ''"


def test_every_shipped_site_and_every_machine_is_listed(capsys):
    assert launch.main(["sites", "--on", "2026-01-01"]) == 0  # no price is old
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[2:-1]]
    assert {row[0] for row in rows} - {"thesis-machine"} == {path.stem for path in SITE_FILES.glob("*.toml")}
    assert {row[0] for row in rows} | {row[1] for row in rows} >= set(read_sites().sites)
    (node,) = (" ".join(row) for row in rows if "aws-p3-8xlarge" in row)
    assert node == (
        "aws-p3 aws-p3-8xlarge skypilot horovodrun 32 4 x Tesla V100 SXM2 16 GB 12.240 us-east-1 "
        "2025-12-31, now aws-g5-12xlarge"
    )


def test_a_site_is_shown_with_its_machines_and_prices(capsys):
    assert launch.main(["sites", "aws-g3"]) == 0
    shown = capsys.readouterr().out
    assert "$1.14 an hour (on demand, Linux, us-east-1; 2025-10-31" in shown and "4.8" in shown


def test_a_custom_table_is_listed(tmp_path, capsys):
    file = tmp_path / "mine.toml"
    file.write_text(
        '[gpus.x]\nname = "x"\nfp32_tflops = 1.0\nmemory_gb = 1.0\nmemory_bandwidth_gb_s = 1.0\npower_watts = 1.0\n'
        'energy_counter = true\nsource = "s"\n[sites.mine]\ntitle = "m"\n'
        'kind = "owned"\nsource = "s"\ngpu = "x"\ngpus = 2\n'
    )
    assert launch.main(["sites", "mine", "--table", str(file)]) == 0
    assert capsys.readouterr().out.splitlines()[0].split() == ["title", "m"]
    assert launch.main(["sites", "--table", str(file)]) == 0
    (row,) = (line for line in capsys.readouterr().out.splitlines() if "mine" in line)
    assert row.split() == ["mine", "2", "x", "x"]


@pytest.mark.parametrize(
    ("np", "spread", "placed"),
    [
        (1, False, "a:1"), (2, False, "a:2"), (3, False, "a:2,b:1"), (6, False, "a:2,b:3,c:1"),
        (1, True, "a:1"), (2, True, "a:1,b:1"), (3, True, "a:1,b:1,c:1"), (4, True, "a:2,b:2"),
        (6, True, "a:2,b:3,c:1"),
    ],
)  # fmt: skip
def test_ranks_fill_hosts_or_spread_over_them(np, spread, placed):
    hosts = parse_hosts("a:2, b:3,c")
    assert hosts == [Slots("a", 2), Slots("b", 3), Slots("c", 1)]
    assert ",".join(map(str, assign_ranks(hosts, np=np, spread=spread))) == placed


def test_too_few_slots():
    with pytest.raises(UserError, match=r"fewer slots than ranks. Received: 4 ranks, 3 slots on a:2, b:1"):
        assign_ranks(parse_hosts("a:2,b"), np=4, spread=False)


@pytest.mark.parametrize("text", ["", "a,,b", "a:x", "a:-1", "a:9999999", "-oProxyCommand=x:1", "a b", ":2"])
def test_invalid_hosts(text):
    with pytest.raises(UserError, match=r"hosts are written as name:slots"):
        parse_hosts(text)


def test_a_host_named_twice_and_one_without_slots():
    with pytest.raises(UserError, match=r"a host is named twice. Received: a"):
        parse_hosts("a:1,b:1,a:2")
    with pytest.raises(UserError, match="a host without slots"):
        parse_hosts("a:0")


def test_a_host_file(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("# two nodes\nnode1   slots=4\n\nnode2:2 # the small one\nnode3\n")
    assert read_host_file(file) == [Slots("node1", 4), Slots("node2", 2), Slots("node3", 1)]
    file.write_text("# nothing\n")
    with pytest.raises(UserError, match="the host file names no host"):
        read_host_file(file)
    with pytest.raises(UserError, match="cannot read the host file"):
        read_host_file(tmp_path / "none")


def test_commands_here_and_there():
    here = launcher_at(None, hosts=None)
    assert here.words(np=4) == ["horovodrun", "-np", "4"]
    assert here.words(np=4, controller="gloo") == ["horovodrun", "-np", "4", "--gloo"]
    assert here.recorded_arguments(["--epochs", "1"]) == ["--epochs", "1"]
    there = launcher_at("cte-power", hosts=None, gpus_per_node=4)
    assert there.words(np=8)[0] == "srun" and "--mpi=pmix" in there.words(np=8)
    assert there.recorded_arguments([]) == ["--site", "cte-power"]
    assert launcher_at("hosts", hosts="a:2,b:2").slots() == 4
    with pytest.raises(UserError, match=r"the site names no hosts. Received: hosts. Write them"):
        launcher_at("hosts", hosts=None)
