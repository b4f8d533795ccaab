"""`python -m common sites`: look at the table of places to run."""

import argparse
from pathlib import Path

from tabulate import tabulate

from common.sites.table import SITES_FILE, Price, Sites, read_sites
from common.utils.command_line import Parser


def add_parser(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Add the `sites` command; each of its actions sets `run`, a function of the parsed options."""
    parser = commands.add_parser("sites", help="list and show places to run, their machines and prices")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="show all sites")
    listing.set_defaults(run=lambda options: list_sites(options.table))
    showing = actions.add_parser("show", help="show all that is known of a site")
    showing.add_argument("name", metavar="NAME")
    showing.set_defaults(run=lambda options: show_site(options.name, options.table))
    for action in (listing, showing):
        action.add_argument("--table", type=Path, default=SITES_FILE, metavar="FILE", help="a table of your own (TOML)")


def list_sites(path: Path) -> None:
    """Print a line for each site."""
    table = read_sites(path)
    rows = []
    for name, site in table.sites.items():
        gpu, price = table.gpu_of(site), site.price()
        rows.append(
            [
                name,
                site.title,
                site.cores,
                f"{site.gpus} x {gpu.name.removeprefix('NVIDIA ')}" if gpu else "",
                f"{price.usd_per_hour:.3f}" if price else site.kind,
                f"retired {site.retired}, now {site.successor}" if site.retired else "",
            ]
        )
    print(tabulate(rows, headers=["site", "what", "cores", "GPUs", "$ an hour", ""], disable_numparse=True))


def show_site(name: str, path: Path) -> None:
    """Print all fields of a site, its GPU and its prices, with their sources."""
    print(tabulate(describe_machine(name, read_sites(path)), tablefmt="plain", disable_numparse=True))


def describe_machine(name: str, table: Sites) -> list[tuple[str, object]]:
    """Return name and value of all that is known of a site, its GPU and its prices."""
    site = table[name]
    gpu = table.gpu_of(site)
    rows = [(title, value) for title, value in vars(site).items() if value not in (None, []) and title != "prices"]
    rows += [(f"gpu {title}", value) for title, value in vars(gpu).items() if value is not None] if gpu else []
    return rows + [("price", _describe(price)) for price in sorted(site.prices, key=lambda price: price.date)]


def _describe(price: Price) -> str:
    return f"${price.usd_per_hour} an hour ({price.terms}; {price.date}; {price.source})"
