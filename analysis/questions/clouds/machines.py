"""Tables of what machines can do and cost, from the table of sites: figures side by side, and when a price pays."""

from collections.abc import Callable, Collection
from itertools import combinations

from analysis.output.tables import Cell, Table
from analysis.questions.clouds.pricing import Pricing
from common.sites.table import Cpu, Gpu, Site, Sites

# Compared in the article (memory alone) and in the report.
PUBLISHED_PAIRS = (("v100", "m60"), ("gtx-1080-ti", "i7-7700k"))
GIGA_IN_TERA = 1000.0
OWNED = "owned: no price per hour"
Machine = Gpu | Cpu


def _field(name: str) -> Callable[[Machine], float | None]:
    """Return what reads a figure; processors lack some of those that GPUs have."""
    return lambda machine: getattr(machine, name, None)


# Heading -> figure of a machine; None: not known, or not of its kind.
FIGURES: dict[str, Callable[[Machine], float | None]] = {
    "FP32, TFLOPS": _field("fp32_tflops"),
    "tensor cores, TFLOPS": _field("tensor_tflops"),
    "cores": _field("cores"),
    "threads": _field("threads"),
    "clock, GHz": _field("clock_ghz"),
    "memory, GB": _field("memory_gb"),
    "memory bus, bits": _field("memory_bus_bits"),
    "memory bandwidth, GB/s": _field("memory_bandwidth_gb_s"),
    "power, W": _field("power_watts"),
    "price to buy, $": _field("purchase_usd"),
    "FP32 GFLOPS per W": lambda machine: _gigaflops_per(machine, "power_watts"),
    "FP32 GFLOPS per $": lambda machine: _gigaflops_per(machine, "purchase_usd"),
}


def _gigaflops_per(machine: Machine, name: str) -> float | None:
    """Peak operations a second for each watt of the board's limit, or for each dollar of its price."""
    return quotient(GIGA_IN_TERA * machine.fp32_tflops, _field(name)(machine))


def quotient(value: float | None, base: float | None) -> float | None:
    """Return value / base; None where one of them is not known, or the base is 0."""
    return value / base if value is not None and base else None


def machine_tables(sites: Sites, *, names: Collection[str]) -> list[Table]:
    """Return the figures of the machines of some sites, then each pair of them side by side.

    Args:
        sites: the table of sites.
        names: of sites, the first compared with those after it.
    """
    known = [sites[name] for name in names if name in sites.sites]
    found: list[Machine | None] = [machine for site in known for machine in (sites.gpu_of(site), sites.cpu_of(site))]
    machines = list({machine.name: machine for machine in found if machine}.values())
    return [_peaks(machines)] + [_side_by_side(*pair) for pair in combinations(machines, 2)]


def all_machine_tables(sites: Sites) -> list[Table]:
    """Return the figures of all machines of the table, then each published pair side by side."""
    machines: dict[str, Machine] = {**sites.gpus, **sites.cpus}
    pairs = [[machines[name] for name in pair] for pair in PUBLISHED_PAIRS if {*pair} <= machines.keys()]
    return [_peaks(machines.values())] + [_side_by_side(*pair) for pair in pairs]


def _peaks(machines: Collection[Machine]) -> Table:
    known = [name for name, of in FIGURES.items() if any(of(machine) is not None for machine in machines)]
    rows = [[machine.name, *(FIGURES[name](machine) for name in known), machine.source] for machine in machines]
    return Table("Machines: makers' peaks", ["machine", *known, "source"], rows, dict.fromkeys(known, ".4g"))


def _side_by_side(first: Machine, second: Machine) -> Table:
    rows: list[list[Cell]] = []
    for name, of in FIGURES.items():
        values = of(first), of(second)
        if None not in values:
            rows.append([name, *values, quotient(*values)])
    headings = ["figure", first.name, second.name, "times as much"]
    title = f"{first.name} against {second.name} (sources: {'; '.join(dict.fromkeys((first.source, second.source)))})"
    return Table(title, headings, rows, dict.fromkeys(headings[1:], ".4g"))


def price_table(pricing: Pricing, *, names: Collection[str]) -> Table:
    """Return the price of each of the sites that is in the table and its successor's, with date, terms and source."""
    sites = pricing.sites
    headings = ["site", "what", "GPUs of a node", "$ per hour", "TFLOPS for $1 per hour", "seen on", "terms", "source",
                "spot, $ per hour", "spot seen on", "availability"]  # fmt: skip
    rows: list[list[Cell]] = []
    for name in with_successors(sites, names):
        site = sites[name]
        gpu = sites.gpu_of(site)
        price, spot = (site.price(on=pricing.on, spot=is_spot) for is_spot in (False, True))
        dollars = price.usd_per_hour if price else None
        seen = [price.dated(on=pricing.day), price.terms, price.source] if price else [None] * 3
        lower = [spot.usd_per_hour, spot.dated(on=pricing.day)] if spot else [None] * 2
        rows.append(
            [name, site.title, f"{site.gpus} x {gpu.name}" if gpu else "none", dollars,
             quotient(site.gpus * gpu.fp32_tflops if gpu else None, dollars), *seen, *lower, availability(site)]
        )  # fmt: skip
    formats = {"$ per hour": ".3f", "TFLOPS for $1 per hour": ".2f", "spot, $ per hour": ".3f"}
    return Table("Prices of a whole node", headings, rows, formats)


def with_successors(sites: Sites, names: Collection[str]) -> list[str]:
    """Return the sites that are in the table, then the successors of the retired ones, each once."""
    known = [name for name in names if name in sites.sites]
    return list(dict.fromkeys((*known, *(after for name in known if (after := sites[name].successor)))))


def availability(site: Site) -> str:
    """Return whether one can have such a machine, and which to take instead."""
    if site.retired:
        return f"retired {site.retired}" + (f", now {site.successor}" if site.successor else "")
    return OWNED if site.kind == "owned" and site.price() is None else site.kind


def price_notes(pricing: Pricing, *, names: Collection[str]) -> list[str]:
    """Return what is to be known of the prices of some sites: retired machines, prices of other days or too old."""
    notes = []
    for name in names:
        site = pricing.sites.sites.get(name)
        price = site.price(on=pricing.on) if site else None
        if site and site.retired:
            note = f"{name} is retired since {site.retired}"
            if price:
                note += (
                    f", its last price ${price.usd_per_hour:g} per hour ({price.dated(on=pricing.day)}; {price.source})"
                )
            if site.successor:
                there = pricing.sites[site.successor].price(on=pricing.on)
                note += f"; its successor is {site.successor}" + (
                    f" at ${there.usd_per_hour:g} per hour" if there else ""
                )
            notes.append(note)
        elif price and price.is_old(on=pricing.day):
            notes.append(f"{name}: the price is of {price.dated(on=pricing.day)}")
        if price and pricing.on and price.is_later(on=pricing.on):
            notes.append(f"{name}: no price of {pricing.on} or before is known; that of {price.date} is taken")
        if site is None:
            notes.append(f"{name} is not in the table of sites: its machine and price are not known")
    return notes


def break_even_table(pricing: Pricing, *, names: Collection[str]) -> Table:
    """Return for every two priced sites how many times faster the more expensive one must be to be worth its price.

    x = price of a node of one site / price of a node of the other, and the same per GPU.

    Args:
        pricing: sites and prices.
        names: the sites to pair, those of the runs; and the successors of the retired ones.
    """
    sites = pricing.sites
    priced = [(name, sites[name].price(on=pricing.on)) for name in with_successors(sites, names)]
    prices = {name: price.usd_per_hour for name, price in priced if price}
    headings = ["this site", "against", "a node has to be faster, times", "a GPU has to be faster, times"]
    rows: list[list[Cell]] = []
    for pair in combinations(prices, 2):
        dear, cheap = sorted(pair, key=lambda name: -prices[name])
        of_gpu = [prices[name] / sites[name].gpus if sites[name].gpus else None for name in (dear, cheap)]
        rows.append([dear, cheap, quotient(prices[dear], prices[cheap]), quotient(*of_gpu)])
    formats = dict.fromkeys(headings[2:], ".3f")
    return Table("Worth its price if more than so many times faster", headings, rows, formats)
