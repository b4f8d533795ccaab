"""What a run costs: the time of its nodes at the price of a day."""

import math
from dataclasses import dataclass, field
from datetime import date

from analysis.runs.cells import Cell
from analysis.runs.table import RunRow
from common.run_folder.records import World
from common.sites.table import Site, Sites


@dataclass(frozen=True, kw_only=True)
class Pricing:
    """What a run costs.

    Attributes:
        sites: the table of sites.
        on: the day whose prices apply; None: the latest known.
        today: the day on which prices are judged too old if `on` is None.
    """

    sites: Sites
    on: date | None = None
    today: date = field(default_factory=date.today)

    @property
    def day(self) -> date:
        """The day on which a price is old or not."""
        return self.on or self.today

    def site_of(self, run: RunRow) -> Site | None:
        """Return where it ran; None: not in the table."""
        return self.sites.sites.get(run.site)

    def cost(self, run: RunRow, seconds: float) -> float:
        """Return nodes x seconds x price of a node in dollars; NaN where one of them is not known."""
        site, nodes = self.site_of(run), self.nodes(run)
        cost = site.cost_usd(seconds, nodes=nodes, on=self.on) if site and nodes else None
        return math.nan if cost is None else cost

    def old_price(self, run: RunRow) -> str:
        """Return a warning if what a run costs rests on an old price; else nothing."""
        site = self.site_of(run)
        price = site.price(on=self.on) if site else None
        return f", at the price of {price.dated(on=self.day)}" if price and price.is_old(on=self.day) else ""

    def nodes(self, run: RunRow) -> int | None:
        """Return how many nodes are paid for: as many as have the GPUs that it used, and at least those it ran on."""
        world, site = run.record.world, self.site_of(run)
        if not isinstance(world, World):
            return None
        gpus = sum(device != "cpu" for device in world.devices)
        return max(len(world.hosts), math.ceil(gpus / site.gpus) if site and site.gpus else 1)


def costs(cell: Cell, pricing: Pricing, seconds: str = "paid_seconds") -> list[float]:
    """Return the costs of each timed run in dollars, without runs of which they are not known.

    Args:
        cell: the runs.
        pricing: sites and prices.
        seconds: the column of the table of runs that is paid for.
    """
    return list(cell.seconds(lambda run: pricing.cost(run, getattr(run, seconds))).values())
