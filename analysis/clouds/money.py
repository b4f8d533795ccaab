"""Cost against time to a target for every machine of the table, projected: who is on the Pareto front."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from analysis.clouds.workloads import TO_TARGET, NodeTime, node_times, not_projected
from analysis.output.finding import Finding, Plot
from analysis.output.plots import COLORS, IDEAL, legend_below
from analysis.output.tables import Cell, Table
from analysis.projection.ratio import EQUAL
from analysis.questions.clouds.break_even import BreakEven, break_even_usd, owned_plots, owned_table
from analysis.questions.clouds.machines import availability
from analysis.questions.clouds.pricing import Pricing
from analysis.questions.projection.errors import usual_error
from common.sites.prices import Price

BASE = "cte-power"
MOST_GPUS_NAMED = 4  # of retired nodes: as many as those of CTE-POWER have
SPAN = "#d5dde6"  # of an interval, behind the points
_SECONDS = 3600.0


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A node on which the workload is projected, and its prices.

    Attributes:
        usd, spot_usd: of the time to the target, on demand (or of ownership) and on spot; None: no price.
        job_usd: with set-up and idle minutes.
    """

    time: NodeTime
    price: Price | None
    usd: float | None
    spot_usd: float | None
    job_usd: float | None

    @property
    def name(self) -> str:
        """The site's."""
        return self.time.name

    @property
    def usd_interval(self) -> tuple[float, float] | None:
        """The dollars at both ends of the interval of the time."""
        if self.price is None:
            return None
        return self.price.usd_per_hour * self.time.low, self.price.usd_per_hour * self.time.high

    @property
    def to_rent(self) -> bool:
        """Whether one can rent it now, at a known price."""
        return self.time.site.kind == "rented" and self.time.site.retired is None and self.usd is not None

    @property
    def owned(self) -> bool:
        """Whether it is a machine of one's own whose price is known."""
        return self.time.site.kind == "owned" and self.usd is not None


def offers(pricing: Pricing) -> list[Offer]:
    """Return all projected machines, the fastest first."""
    found = []
    for time in node_times(pricing.sites, TO_TARGET):
        seconds = time.hours * _SECONDS
        around = 60 * pricing.job_minutes if time.site.kind == "rented" else 0.0
        spot = time.site.price(on=pricing.on, spot=True)
        found.append(
            Offer(
                time=time,
                price=time.site.price(on=pricing.on),
                usd=time.site.cost_usd(seconds, on=pricing.on),
                spot_usd=spot.usd_per_hour * time.hours if spot else None,
                job_usd=time.site.cost_usd(seconds + around, on=pricing.on),
            )
        )
    return sorted(found, key=lambda one: one.time.hours)


def pareto(found: Sequence[Offer]) -> list[Offer]:
    """Return those to rent or owned that no other beats in both time and cost, the fastest first."""
    front: list[Offer] = []
    for one in sorted((one for one in found if one.to_rent or one.owned), key=lambda one: one.time.hours):
        if not front or (one.usd or 0.0) < (front[-1].usd or 0.0):
            front.append(one)
    return front


def break_evens(found: Sequence[Offer], *, base: str = BASE) -> list[BreakEven]:
    """Return the break-even of the base, if it has no price, against each machine that can be rented."""
    owned = next((one for one in found if one.name == base and one.usd is None), None)
    if owned is None:
        return []
    return [_break_even(owned, one) for one in found if one.to_rent]


def _break_even(owned: Offer, rented: Offer) -> BreakEven:
    middle = break_even_usd(_usd(rented), owned.time.hours)
    low, high = rented.usd_interval or (_usd(rented), _usd(rented))
    ends = middle, break_even_usd(low, owned.time.low), break_even_usd(high, owned.time.high)
    return BreakEven(
        owned=owned.name,
        rented=rented.name,
        what=TO_TARGET.label,
        usd_per_hour=middle,
        kind="projected",
        low=min(ends),
        high=max(ends),
    )


def find_money(pricing: Pricing) -> Finding:
    """Return what the time to a target costs on every machine."""
    found = offers(pricing)
    front, even = pareto(found), break_evens(found)
    return Finding(
        name="money-and-time",
        question="Which machine reaches the target fastest, which cheapest?",
        answer=_answer(found, front, even, pricing),
        tables=[_table(found, front, pricing), *([owned_table(even)] if even else [])],
        plots=[_plot(found, front), *owned_plots(even)],
        notes=[
            f"the training: {TO_TARGET.label}, {TO_TARGET.epochs} epochs, which reached {TO_TARGET.target} in the "
            "thesis; a node's GPUs share the batch, so that updates and accuracy stay the same",
            "cost to the target = hours of training x price of a node; of a job also "
            f"{pricing.job_minutes:g} minutes of set-up and until rented machines stop (--job-minutes)",
            "from and to of dollars: at the ends of the interval of the time; of the break-even: with both times at "
            f"the same end ({EQUAL})",
            *_assumed_links(found),
            *_other_days(found, pricing),
            *not_projected(pricing.sites),
        ],
    )


def _other_days(found: Sequence[Offer], pricing: Pricing) -> list[str]:
    """Return notes on the machines whose prices, on demand and on spot, are too old, or of a later day."""
    notes = []
    for spot, words in ((False, "prices"), (True, "spot prices")):
        prices = {one.name: one.time.site.price(on=pricing.on, spot=spot) for one in found}
        old = [name for name, price in prices.items() if price and price.is_old(on=pricing.day)]
        if old:
            notes.append(f"{words} over a year old: {', '.join(old)}")
        later = [f"{name} ({price.date})" for name, price in prices.items() if price and price.is_later(on=pricing.day)]
        if later:
            notes.append(f"no {words} of {pricing.day} or before are known; the first known: {', '.join(later)}")
    return notes


def _assumed_links(found: Sequence[Offer]) -> list[str]:
    """Return a note on the nodes with several GPUs whose links are not in the table."""
    names = [one.name for one in found if one.time.site.gpus > 1 and one.time.site.gpu_link_gb_s is None]
    return [f"assumption: PCIe 3.0 x16 between the GPUs of {', '.join(names)}"] if names else []


def _answer(found: Sequence[Offer], front: Sequence[Offer], even: Sequence[BreakEven], pricing: Pricing) -> str:
    cheapest = min((one for one in found if one.to_rent), key=_usd)
    fastest = front[0]
    speed = [
        f"Projected for {TO_TARGET.model} of the thesis, one node: {_faster(found)}",
        f"Projections are rough: their median error is {100 * usual_error():.0f} % on CPUs; no GPU was measured.",
    ]
    renting = [
        f"The fastest of all is {fastest.name} at {_shown(fastest)}.",
        f"The cheapest to rent is {cheapest.name} at {_shown(cheapest)}.",
    ]
    owning = [
        f"{one.name} is {'cheaper' if _usd(one) < _usd(cheapest) else 'no cheaper'}: ${_usd(one):.2f} against "
        f"${_usd(cheapest):.2f} for {cheapest.name}."
        for one in found
        if one.owned
    ]
    if any(one.price and one.price.is_old(on=pricing.day) for one in (fastest, cheapest)):
        renting.append("Their prices are over a year old.")
    elif any(one.price and one.price.is_later(on=pricing.day) for one in (fastest, cheapest)):
        renting.append(f"No prices of {pricing.day} are known; these are the first of a later day.")
    if even:
        lowest = min(even, key=lambda one: one.usd_per_hour)
        low, high = min(one.low or 0.0 for one in even), min(one.high or 0.0 for one in even)
        owning.append(
            f"No price of {lowest.owned} is known: below ${lowest.usd_per_hour:.2f} (${low:.2f} to ${high:.2f}) per "
            "hour of its node in use it is cheaper than every rented machine."
        )
    return "\n".join(" ".join(words) for words in (speed, renting, owning) if words)


def _faster(found: Sequence[Offer]) -> str:
    """Return whether a node of CTE-POWER or the fastest one to rent from AWS takes less time."""
    base = next((one for one in found if one.name == BASE), None)
    aws = next((one for one in found if one.to_rent and one.name.startswith("aws")), None)
    if base is None or aws is None:
        return "CTE-POWER and AWS are not both in the table."
    minutes = f"{60 * aws.time.hours:.1f} minutes on {aws.name} against {60 * base.time.hours:.1f} on {base.name}."
    first, second = ("AWS", "CTE-POWER") if aws.time.hours < base.time.hours else ("CTE-POWER", "AWS")
    return f"{first} is faster than {second}, {minutes}"


def _usd(one: Offer) -> float:
    """Return its cost; only of those that have a price."""
    assert one.usd is not None, "it has a price"
    return one.usd


def _shown(one: Offer) -> str:
    low, high = one.usd_interval or (_usd(one), _usd(one))
    return f"${_usd(one):.2f} (${low:.2f} to ${high:.2f})"


def _table(found: Sequence[Offer], front: Sequence[Offer], pricing: Pricing) -> Table:
    headings = ["machine", "GPUs", "minutes to target", "from", "to", "$ per hour", "seen on", "$ to target",
                "$ from", "$ to", "$ to target, spot", "$ per job", "Pareto front", "availability", "kind"]  # fmt: skip
    rows: list[list[Cell]] = [
        [one.name, f"{one.time.site.gpus} x {one.time.gpu.name}",
         *(60 * hours for hours in (one.time.hours, one.time.low, one.time.high)),
         one.price.usd_per_hour if one.price else None, one.price.dated(on=pricing.day) if one.price else None,
         one.usd, *(one.usd_interval or (None, None)), one.spot_usd, one.job_usd, "yes" if one in front else None,
         availability(one.time.site), "projected"]
        for one in found
    ]  # fmt: skip
    formats = dict.fromkeys(headings[2:5], ",.1f") | dict.fromkeys(("$ per hour", *headings[7:12]), ".2f")
    return Table(f"Cost and time to the target: {TO_TARGET.label}, one node", headings, rows, formats)


def _points(found: Sequence[Offer], price: str) -> tuple[list[float], list[float]]:
    """Return minutes and dollars of those that have this price."""
    known = [(60 * one.time.hours, usd) for one in found if (usd := getattr(one, price)) is not None]
    return [minutes for minutes, _ in known], [usd for _, usd in known]


def _label(ax: Axes, found: Sequence[Offer], front: Sequence[Offer]) -> None:
    """Name the machines of the front and small retired ones, and draw a line where there is no price."""
    small = [one for one in found if one.time.site.gpus <= MOST_GPUS_NAMED]
    retired = [one for one in small if one.time.site.retired and one.usd is not None]
    text: dict[str, Any] = {"fontsize": 7, "textcoords": "offset points"}
    for one in found:
        minutes = 60 * one.time.hours
        if one.usd is None:
            ax.axvline(minutes, **IDEAL)
            ax.annotate(f"{one.name}: no price", (minutes, 0.01), xycoords=("data", "axes fraction"), rotation=90,
                        va="bottom", ha="right", fontsize=7, color=IDEAL["color"])  # fmt: skip
        elif one in front[1:]:
            ax.annotate(one.name, (minutes, one.usd), xytext=(-6, -11), ha="right", **text)
        elif one in front:
            ax.annotate(one.name, (minutes, one.usd), xytext=(0, 7), ha="left", **text)
        elif one in retired:
            above = retired.index(one) % 2 == 1
            ax.annotate(one.name, (minutes, one.usd), xytext=(0, 7 if above else -13), ha="center", **text)


_KINDS = (  # label, color, marker, of which offers
    ("AWS", COLORS[0], "o", lambda one: one.to_rent and one.name.startswith("aws")),
    ("other clouds", COLORS[2], "D", lambda one: one.to_rent and not one.name.startswith("aws")),
    ("retired", "#888888", "s", lambda one: one.time.site.retired is not None),
    ("owned, by its formula", COLORS[5], "P", lambda one: one.time.site.kind == "owned"),
)


def _plot(found: Sequence[Offer], front: Sequence[Offer]) -> Plot:
    figure = Figure(figsize=(7.6, 5.4))
    ax = figure.subplots()
    for label, color, marker, belongs in _KINDS:
        priced = [one for one in found if one.usd is not None and belongs(one)]
        look: dict[str, Any] = {"color": color, "marker": marker, "linestyle": ""}
        if priced:
            ax.plot(*_points(priced, "usd"), label=label, **look)
        if any(one.spot_usd is not None for one in priced):
            ax.plot(*_points(priced, "spot_usd"), label=f"{label}, spot", **look, markerfacecolor="none")
    ax.set_xscale("log")
    ax.set_yscale("log")
    for one in front:
        if one.usd_interval:
            ax.plot([60 * one.time.low, 60 * one.time.high], one.usd_interval, color=SPAN, linewidth=2.5, zorder=0,
                    label="interval of the time, and so of the cost: an assumption")  # fmt: skip
    label = "Pareto front of prices on demand or of ownership"
    ax.plot(*_points(front, "usd"), color="black", linewidth=0.9, label=label, zorder=1)
    _label(ax, found, front)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_minor_formatter(NullFormatter())
    ax.xaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_major_formatter("${x:g}")
    ax.set_xlabel("minutes to the target (projected)")
    ax.set_ylabel("dollars to the target")
    legend_below(figure, ncols=3)
    figure.suptitle(f"Cost against time to a target: {TO_TARGET.label}, one node of each site")
    headings = ["machine", "minutes", "$", "$, spot", "Pareto front"]
    data: list[list[Cell]] = [
        [one.name, 60 * one.time.hours, one.usd, one.spot_usd, "yes" if one in front else None] for one in found
    ]
    formats = dict.fromkeys(headings[1:4], ".4g")
    return Plot("clouds-cost-against-time", figure, Table("Cost against time to the target", headings, data, formats))
