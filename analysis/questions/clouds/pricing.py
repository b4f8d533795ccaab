"""What a run costs: the time of its nodes at the price of a day."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from operator import attrgetter

from analysis.runs.cells import Cell
from analysis.runs.table import RunRow
from common.run_folder.records import World
from common.sites.table import SECONDS_PER_HOUR, Site, Sites

# Set-up of a rented machine, with the compilation of Horovod (README), and the idle minutes after which SkyPilot stops
# it (`autostop_minutes` of its sites).
JOB_MINUTES = 6.0 + 10.0


@dataclass(frozen=True, kw_only=True)
class Pricing:
    """What a run costs.

    Attributes:
        sites: the table of sites.
        on: the day whose prices apply; None: the latest known.
        today: the day on which prices are judged too old if `on` is None.
        job_minutes: on the bill of a job on rented machines besides its run.
    """

    sites: Sites
    on: date | None = None
    today: date = field(default_factory=date.today)
    job_minutes: float = JOB_MINUTES

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

    def seconds_around(self, site: Site | None) -> float:
        """Return the seconds of set-up and until the machines stop, on the bill of a job where they are rented."""
        return 60.0 * self.job_minutes if site and site.kind == "rented" else 0.0

    def job_seconds(self, run: RunRow) -> float:
        """Return the seconds that a job with this run is paid for; a launch that was not recorded is left out."""
        launch = 0.0 if math.isnan(run.launch_seconds) else run.launch_seconds
        return float(run.paid_seconds + launch + self.seconds_around(self.site_of(run)))

    def old_price(self, run: RunRow) -> str:
        """Return a warning if what a run costs rests on an old price, or on one of a later day; else nothing."""
        site = self.site_of(run)
        price = site.price(on=self.on) if site else None
        if price and self.on and price.is_later(on=self.on):
            return f", at the {price.dated(on=self.on)}"
        return f", at the price of {price.dated(on=self.day)}" if price and price.is_old(on=self.day) else ""

    def nodes(self, run: RunRow) -> int | None:
        """Return how many nodes are paid for: as many as have the GPUs that it used, and at least those it ran on."""
        world, site = run.record.world, self.site_of(run)
        if not isinstance(world, World):
            return None
        gpus = sum(device != "cpu" for device in world.devices)
        return max(len(world.hosts), math.ceil(gpus / site.gpus) if site and site.gpus else 1)


def costs(cell: Cell, pricing: Pricing, seconds: str | Callable[[RunRow], float] = "paid_seconds") -> list[float]:
    """Return the costs of each timed run in dollars, without runs of which they are not known.

    Args:
        cell: the runs.
        pricing: sites and prices.
        seconds: what is paid for: a column of the table of runs, or a function of a run.
    """
    paid = attrgetter(seconds) if isinstance(seconds, str) else seconds
    return list(cell.seconds(lambda run: pricing.cost(run, paid(run))).values())


def node_hours(cell: Cell, pricing: Pricing) -> list[float]:
    """Return nodes x hours of each timed run, without runs of which the nodes are not known."""
    hours = cell.seconds(lambda run: (pricing.nodes(run) or math.nan) * run.paid_seconds / SECONDS_PER_HOUR)
    return list(hours.values())
