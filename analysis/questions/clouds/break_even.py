"""What an hour of a machine without a price may cost before a rented one is cheaper.

    break-even = what the job costs there / hours that it takes here, of all nodes

A machine that works a share u of its hours has earned u times that in each hour of its life: it may cost no more,
whether it works or not.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from analysis.output.finding import Plot
from analysis.output.plots import COLORS, legend_below
from analysis.output.tables import Cell, Table
from analysis.questions.clouds.pricing import Pricing, costs, node_hours
from analysis.questions.clouds.sites import SiteComparison
from analysis.stats.inference import median_of
from common.sites.prices import HOURS_PER_YEAR

UTILIZATIONS = (1.0, 0.75, 0.5, 0.25)
_YEARS = 5
_DASHES = ("-", "--", "-.", ":")
_MOST_LINES = 10


@dataclass(frozen=True, kw_only=True)
class BreakEven:
    """The break-even of an owned machine against a rented one.

    Attributes:
        owned, rented: names of the sites.
        what: the job.
        usd_per_hour: of a node in use at which both cost the same.
        kind: measured or projected.
        low, high: of a projected one, with both times at the same end of their intervals.
    """

    owned: str
    rented: str
    what: str
    usd_per_hour: float
    kind: str
    low: float | None = None
    high: float | None = None

    def budget(self, utilization: float) -> float:
        """Return what the node may cost in an hour of its life."""
        return self.usd_per_hour * utilization


def break_even_usd(rented_usd: float, owned_node_hours: float) -> float:
    """Return the price of an hour of an owned node at which a job costs the same on both.

    Args:
        rented_usd: of the job on the rented machines.
        owned_node_hours: that it takes on the owned one: nodes x hours.
    """
    return rented_usd / owned_node_hours


def measured_break_evens(compared: Sequence[SiteComparison], pricing: Pricing) -> list[BreakEven]:
    """Return the break-even of every base that has no price against every site that has one, for a run."""
    found = []
    for one in compared:
        for name, cell in one.cells.items():
            base, usd = one.base_cell(name), median_of(costs(cell, pricing))
            hours = median_of(node_hours(base, pricing)) if base and not costs(base, pricing) else None
            if base is not None and usd is not None and hours is not None:
                found.append(
                    BreakEven(
                        owned=base.first.site,
                        rented=name,
                        what=one.label,
                        usd_per_hour=break_even_usd(usd, hours),
                        kind="measured",
                    )
                )
    return found


def owned_table(found: Sequence[BreakEven]) -> Table:
    """Return each break-even at several utilizations, and the purchase that the first of them would pay."""
    headings = ["owned", "against", "job", "$ per hour in use", "from", "to",
                *(f"{100 * one:g} % used" for one in UTILIZATIONS[1:]),
                f"purchase, $: {_YEARS} years, {100 * UTILIZATIONS[1]:g} % used", "kind"]  # fmt: skip
    rows: list[list[Cell]] = [
        [one.owned, one.rented, one.what, one.usd_per_hour, one.low, one.high,
         *(one.budget(share) for share in UTILIZATIONS[1:]),
         one.budget(UTILIZATIONS[1]) * _YEARS * HOURS_PER_YEAR, one.kind]
        for one in found
    ]  # fmt: skip
    formats = dict.fromkeys(headings[3:9], ".2f") | {headings[9]: ",.0f"}
    title = "Break-even of the run alone, without set-up: what an hour of an owned node may cost, all included"
    return Table(title, headings, rows, formats)


def owned_plots(found: Sequence[BreakEven]) -> list[Plot]:
    """Draw the break-even over utilization, a line for each of the rented machines that are hardest to beat."""
    if not found:
        return []
    shown = sorted(sorted(found, key=lambda one: one.usd_per_hour)[:_MOST_LINES], key=lambda one: -one.usd_per_hour)
    figure = Figure(figsize=(7.0, 4.6))
    ax = figure.subplots()
    percents = range(5, 101, 5)
    for number, one in enumerate(shown):
        ax.plot(
            percents,
            [one.budget(percent / 100) for percent in percents],
            color=COLORS[number % len(COLORS)],
            linestyle=_DASHES[number // len(COLORS) % len(_DASHES)],
            label=f"{one.rented}, {one.what}" if len({each.what for each in shown}) > 1 else one.rented,
        )
    ax.yaxis.set_major_formatter("${x:g}")
    ax.set_xlim(0, 100)
    ax.set_ylim(bottom=0)
    ax.set_xlabel("utilization of the owned node, % of all hours")
    ax.set_ylabel("cost of the node per hour, used or not")
    legend_below(figure, ncols=3)
    owned = ", ".join(dict.fromkeys(one.owned for one in shown))
    figure.suptitle(f"Below its line {owned} is cheaper than the rented machine ({shown[0].kind})")
    data: list[list[Cell]] = [
        [one.owned, one.rented, one.what, percent, one.budget(percent / 100)] for one in shown for percent in percents
    ]
    headings = ["owned", "against", "job", "utilization, %", "$ per hour"]
    return [
        Plot("clouds-break-even", figure, Table("Break-even by utilization", headings, data, {"$ per hour": ".3f"}))
    ]
