"""The table of sites: published figures, prices by date, errors in users' own tables."""

from dataclasses import replace
from datetime import date

import pytest

from common.errors import UserError
from common.sites.prices import Ownership, Price
from common.sites.table import Site, read_sites

RENTED = {  # GPUs, dollars per hour on demand and on spot
    "aws-g3-4xlarge": (1, "m60", 1.14, None), "aws-g3-8xlarge": (2, "m60", 2.28, None),
    "aws-g3-16xlarge": (4, "m60", 4.56, None), "aws-p3-2xlarge": (1, "v100", 3.06, None),
    "aws-p3-8xlarge": (4, "v100", 12.24, None), "aws-p3-16xlarge": (8, "v100", 24.48, None),
    "aws-g4dn-xlarge": (1, "t4", 0.526, None), "aws-g4dn-12xlarge": (4, "t4", 3.912, None),
    "aws-g5-12xlarge": (4, "a10g", 5.672, None), "aws-g5-48xlarge": (8, "a10g", 16.288, None),
    "aws-c7i-16xlarge": (0, None, 2.856, 63), "aws-c7a-16xlarge": (0, None, 3.28448, 64),
    "aws-hpc7a-96xlarge": (0, None, 8.6674, None), "aws-g6-xlarge": (1, "l4", 0.8048, 49),
    "aws-g6-12xlarge": (4, "l4", 4.6016, 59), "aws-g6e-xlarge": (1, "l40s", 1.861, 58),
    "aws-g6e-12xlarge": (4, "l40s", 10.49264, 56), "aws-p4d-24xlarge": (8, "a100-40gb", 21.957642, 67),
    "aws-p4de-24xlarge": (8, "a100-80gb", 27.44705, 65), "aws-p5-4xlarge": (1, "h100", 6.88, None),
    "aws-p5-48xlarge": (8, "h100", 55.04, 52), "gcp-a2-highgpu-1g": (1, "a100-40gb", 3.673385, 2.12081),
    "gcp-a2-highgpu-8g": (8, "a100-40gb", 29.38708, 16.96648), "gcp-a3-highgpu-8g": (8, "h100", 88.49, 53.093625),
}  # fmt: skip
OWNED = {"local", "hosts", "slurm", "kubernetes", "cte-power", "marenostrum5", "thesis-machine"}


def test_the_shipped_table_has_the_published_figures():
    """Spot prices of AWS are the price on demand less the percentage that its Spot Instance Advisor showed."""
    table = read_sites()
    assert set(table.sites) == OWNED | set(RENTED)
    for name, (gpus, gpu, dollars, spot) in RENTED.items():
        site = table[name]
        price, lower = site.price(), site.price(spot=True)
        assert price and (site.gpus, site.gpu, price.usd_per_hour) == (gpus, gpu, dollars)
        assert not price.spot and price.terms.startswith("on demand") and price.source
        if spot is not None:
            lowered = dollars * (100 - spot) / 100 if name.startswith("aws") else spot
            assert lower and lower.spot and lower.usd_per_hour == pytest.approx(lowered, abs=5e-4)
            assert lower.terms.startswith("spot") and lower.source
        assert (lower is None) == (spot is None)
    acc, h100 = table["marenostrum5"], table.gpus["h100-64gb"]
    assert (acc.gpu, acc.gpus, acc.cores, acc.memory_gb, acc.network_bytes_per_second) == (
        "h100-64gb",
        4,
        80,
        512,
        1e11,
    )
    assert (h100.memory_gb, h100.memory_bandwidth_gb_s) == (64, None)
    assert table["aws-p5-48xlarge"].network_bytes_per_second == 4e11
    cte, v100, m60 = table["cte-power"], table.gpus["v100"], table.gpus["m60"]
    assert (cte.gpu, cte.gpus, cte.cores, cte.memory_gb, cte.prices) == ("v100", 4, 40, 512.0, [])
    assert (v100.fp32_tflops, v100.tensor_tflops, v100.memory_gb, v100.memory_bandwidth_gb_s) == (15.7, 125, 16, 900)
    assert (m60.fp32_tflops, m60.memory_gb, m60.memory_bandwidth_gb_s, m60.tensor_tflops) == (4.8, 8, 160, None)
    links = {name: site.gpu_link_gb_s for name, site in table.sites.items() if site.gpu_link_gb_s}
    assert links == {  # one way: NVIDIA's 300, 600 and 900 are of both; half of CTE-POWER's lead to the processor
        "cte-power": 75, "aws-p3-8xlarge": 150, "aws-p3-16xlarge": 150, "aws-p4d-24xlarge": 300,
        "aws-p4de-24xlarge": 300, "aws-p5-48xlarge": 450, "gcp-a2-highgpu-8g": 300, "gcp-a3-highgpu-8g": 450,
    }  # fmt: skip
    assert (table.gpus["a10g"].fp32_tflops, table.gpus["a10g"].tensor_tflops) == (35, 70)
    assert v100.energy_counter and not m60.energy_counter  # since Volta
    assert (v100.memory_bus_bits, m60.memory_bus_bits) == (4096, 256)
    capabilities = {name: gpu.compute_capability for name, gpu in table.gpus.items()}
    assert capabilities == {  # NVIDIA's "CUDA GPUs" and "Legacy CUDA GPUs"; the A10G's is the A10's
        "v100": "7.0", "m60": "5.2", "t4": "7.5", "a10g": "8.6", "a100-40gb": "8.0", "a100-80gb": "8.0", "h100": "9.0",
        "h100-64gb": "9.0", "l4": "8.9", "l40s": "8.9", "k20m": "3.5", "gtx-1080-ti": "6.1",
    }  # fmt: skip
    bought, cpu = table.gpus["gtx-1080-ti"], table.cpus["i7-7700k"]  # of the report
    assert (bought.fp32_tflops, bought.cores, bought.clock_ghz, bought.purchase_usd) == (11.4, 3584, 1.6, 699)
    assert (bought.memory_gb, bought.memory_bandwidth_gb_s, bought.power_watts) == (11, 484, 250)
    assert (cpu.fp32_tflops, cpu.cores, cpu.threads, cpu.clock_ghz, cpu.purchase_usd) == (0.54, 4, 8, 4.2, 339)
    assert not bought.energy_counter and "the report" in bought.source and "the report" in cpu.source
    assert cpu.memory_bandwidth_gb_s == 38.4  # 2 channels x 8 bytes x 2.4 GT/s
    retired = {name for name, site in table.sites.items() if site.retired}
    assert retired == {name for name in RENTED if name.startswith(("aws-g3-", "aws-p3-"))}
    for name in retired:
        successor = table[table[name].successor or ""]
        assert successor.retired is None


PRICES = [
    Price(date=date(2024, 1, 1), usd_per_hour=2.0, terms="", source=""),
    Price(date=date(2023, 1, 1), usd_per_hour=3.0, terms="", source=""),
]


@pytest.mark.parametrize(
    ("on", "dollars"),
    [(None, 2.0), (date(2025, 5, 5), 2.0), (date(2024, 1, 1), 2.0), (date(2023, 12, 31), 3.0), (date(2020, 1, 1), 3.0)],
)
def test_the_price_is_that_of_the_day(on, dollars):
    site = Site(title="", kind="rented", source="", prices=PRICES)
    price = site.price(on=on)
    assert price is not None and price.usd_per_hour == dollars
    assert site.cost_usd(1800.0, nodes=3, on=on) == pytest.approx(1.5 * dollars)


def test_an_owned_machine_has_no_price_and_an_unknown_cost():
    site = read_sites()["cte-power"]
    assert site.price() is None and site.cost_usd(3600.0) is None


@pytest.mark.parametrize(
    ("figures", "dollars"),
    [
        ({"purchase_usd": 43830.0, "years": 5.0}, 1.0),  # 5 years are 43,830 hours
        ({"purchase_usd": 43830.0, "years": 5.0, "utilization": 0.5}, 2.0),
        ({"purchase_usd": 43830.0, "utilization": 0.5, "watts": 1500.0, "usd_per_kwh": 0.2}, 2.3),
        ({"rate_usd_per_hour": 1.7}, 1.7),
        ({"rate_usd_per_hour": 1.7, "watts": 1000.0, "usd_per_kwh": 0.1}, 1.8),
    ],
)
def test_the_price_of_an_owned_machine_by_its_formula(figures, dollars):
    ownership = Ownership(date=date(2026, 1, 1), source="its bill", **figures)
    site = Site(title="", kind="owned", source="", ownership=ownership)
    price = site.price()
    assert price and price.usd_per_hour == pytest.approx(dollars) and price.terms.startswith("computed: ")
    assert site.cost_usd(7200.0, nodes=3) == pytest.approx(6 * dollars) and site.price(spot=True) is None


def test_a_price_is_old_after_a_year():
    price = PRICES[0]
    assert price.dated(on=date(2024, 12, 31)) == "2024-01-01"  # 365 days
    assert price.dated(on=date(2025, 1, 1)) == "2024-01-01, over a year old"


def test_a_price_of_a_later_day_is_marked():
    price = PRICES[0]
    assert price.dated(on=price.date) == "2024-01-01"
    assert price.dated(on=date(2023, 12, 31)) == "first known price, of 2024-01-01"


GPU = """
[gpus.x]
name = "x"
fp32_tflops = 1.0
memory_gb = 1.0
memory_bandwidth_gb_s = 1.0
power_watts = 1.0
energy_counter = true
source = "x"
"""
SITE = '[sites.mine]\ntitle = "mine"\nkind = "owned"\nsource = "me"\n'
OWNERSHIP = '[sites.mine.ownership]\ndate = 2026-01-01\nsource = "me"\n{}\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot read the sites: No such file or directory"),
        ("[sites", "is not TOML"),
        ("sites = 1", "sites: Input should be an object"),
        ("[site.mine]", "site: Unexpected"),
        ("[gpus]\n" + SITE + "color = 1\n", "sites.mine.color"),
        ("[gpus]\n" + SITE.replace("owned", "borrowed"), "Received: 'borrowed'"),
        ("[gpus]\n" + SITE + 'gpu = "y"\ngpus = 1\n', "the gpu of mine is not in it. Received: y"),
        (GPU + 'compute_capability = "sm_80"\n', "gpus.x.compute_capability: "),
        (GPU + SITE + 'gpu = "x"\n', "needs both `gpu` and `gpus`"),
        ("[gpus]\n" + SITE + "gpus = 2\n", "needs both `gpu` and `gpus`"),
        ("[gpus]\n" + SITE + 'successor = "theirs"\n', "the successor of mine is not in it. Received: theirs"),
        (
            "[gpus]\n" + SITE + 'prices = [{date = 2024-01-01, usd_per_hour = -1.0, terms = "", source = ""}]\n',
            "sites.mine.prices.0.usd_per_hour: Input should be greater than or equal to 0. Received: -1.0",
        ),
        ("[gpus]\n" + SITE + "cores = 0\n", "sites.mine.cores: Input should be greater than 0. Received: 0"),
        ("[gpus]\n" + SITE + "gpus = -1\n", "sites.mine.gpus: Input should be greater than or equal to 0"),
        (GPU.replace("memory_gb = 1.0", "memory_gb = -1.0"), "gpus.x.memory_gb: Input should be greater than 0"),
        (GPU.replace("tflops = 1.0", "tflops = inf"), "gpus.x.fp32_tflops: "),
        (
            "[gpus]\n" + SITE + OWNERSHIP.format(""),
            "sites.mine.ownership: give either purchase_usd or rate_usd_per_hour, there is neither. Received: {",
        ),
        (
            "[gpus]\n" + SITE + OWNERSHIP.format("purchase_usd = 1.0\nrate_usd_per_hour = 1.0"),
            "rate_usd_per_hour, there are both. Received: {",
        ),
        (
            "[gpus]\n" + SITE + OWNERSHIP.format("purchase_usd = 1.0\nyears = 1e-300"),
            "sites.mine.ownership.years: Input should be greater than or equal to 0.01. Received: 1e-300",
        ),
        ("[gpus]\n" + SITE + OWNERSHIP.format("utilization = 0.0"), "utilization"),
        (
            "[gpus]\n" + SITE.replace("owned", "rented") + OWNERSHIP.format("purchase_usd = 1.0"),
            "only owned machines have costs of ownership. Received: [sites.mine.ownership]",
        ),
        (
            "[gpus]\n" + SITE + 'prices = [{date = "soon", usd_per_hour = 1.0, terms = "", source = ""}]\n',
            "sites.mine.prices.0.date",
        ),
    ],
)
def test_a_wrong_table_is_refused_in_one_line(tmp_path, text, words):
    if text is not None:
        (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(UserError) as refused:
        read_sites(tmp_path / "mine.toml")
    error = str(refused.value)
    assert "\n" not in error and words in error and str(tmp_path) in error


def test_a_users_table(tmp_path):
    (tmp_path / "mine.toml").write_text(GPU + SITE + 'gpu = "x"\ngpus = 2\n')
    own = read_sites(tmp_path / "mine.toml")
    gpu = own.gpu_of(own["mine"])
    assert gpu is not None and gpu.name == "x" and "cte-power" in own.sites
    (tmp_path / "mine.toml").write_text(OWNERSHIP.replace("mine", "cte-power").format("rate_usd_per_hour = 2.0"))
    extended, shipped = read_sites(tmp_path / "mine.toml")["cte-power"], read_sites()["cte-power"]
    assert extended.price() and replace(extended, ownership=None) == shipped


def test_an_unknown_site_suggests_a_close_name():
    with pytest.raises(UserError, match=r"Did you mean cte-power\?"):
        read_sites()["cte-powr"]


def test_the_speed_of_a_network_is_read_from_its_words():
    speeds = {name: read_sites()[name].network_bytes_per_second for name in ("cte-power", "aws-g3-4xlarge", "local")}
    assert speeds == {"cte-power": 12.5e9, "aws-g3-4xlarge": 1.25e9, "local": None}
