"""The table of sites: published figures, prices by date, a user's own table; what is wrong in one: `refusals/`."""

from dataclasses import replace
from datetime import date

import pytest

from common.sites.prices import Ownership, Price
from common.sites.table import Site, read_sites

OWNED = {"local", "hosts", "slurm", "kubernetes", "cte-power", "marenostrum5", "thesis-machine"}


def test_every_rented_site_has_prices_with_sources_and_every_retired_one_a_successor():
    table = read_sites()
    assert {name for name, site in table.sites.items() if site.kind == "owned"} == OWNED
    for name in table.sites.keys() - OWNED:
        site = table[name]
        price, lower = site.price(), site.price(spot=True)
        assert price.terms.startswith("on demand") and price.source and not price.spot
        assert lower is None or (lower.terms.startswith("spot") and lower.source and lower.spot)
        assert lower is None or 0.1 * price.usd_per_hour < lower.usd_per_hour < price.usd_per_hour
        assert bool(site.retired) == name.startswith(("aws-g3-", "aws-p3-"))
        assert not site.retired or table[site.successor].retired is None
    assert table["cte-power"].price() is None and table["cte-power"].cost_usd(3600.0) is None


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
    assert price.dated(on=price.date) == str(price.date)


@pytest.mark.parametrize(
    ("figures", "dollars"),
    [
        ({"purchase_usd": 43830.0, "years": 5.0}, 1.0),  # 5 years are 43,830 hours
        ({"purchase_usd": 43830.0, "utilization": 0.5, "watts": 1500.0, "usd_per_kwh": 0.2}, 2.3),
        ({"rate_usd_per_hour": 1.7, "watts": 1000.0, "usd_per_kwh": 0.1}, 1.8),
    ],
)
def test_the_price_of_an_owned_machine_by_its_formula(figures, dollars):
    ownership = Ownership(date=date(2026, 1, 1), source="its bill", **figures)
    site = Site(title="", kind="owned", source="", ownership=ownership)
    price = site.price()
    assert price and price.usd_per_hour == pytest.approx(dollars) and price.terms.startswith("computed: ")
    assert site.cost_usd(7200.0, nodes=3) == pytest.approx(6 * dollars) and site.price(spot=True) is None


def test_a_users_table_extends_the_shipped_one(tmp_path):
    (tmp_path / "mine.toml").write_text(
        '[sites.mine]\ntitle = "mine"\nkind = "owned"\nsource = "me"\ngpu = "v100"\ngpus = 2\n'
        '[sites.cte-power.ownership]\ndate = 2026-01-01\nsource = "me"\nrate_usd_per_hour = 2.0\n'
    )
    table, shipped = read_sites(tmp_path / "mine.toml"), read_sites()
    assert table.gpu_of(table["mine"]) == shipped.gpus["v100"]
    assert table["cte-power"].price() and replace(table["cte-power"], ownership=None) == shipped["cte-power"]
