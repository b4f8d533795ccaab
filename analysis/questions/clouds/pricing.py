"""What a run costs: the time of its nodes at the price of a day."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date

from analysis.runs.cells import Cell
from analysis.runs.reading import StudiedRun
from common.run_folder.records import World
from common.sites.table import Site, Sites


@dataclass(frozen=True, kw_only=True)
class Pricing:
    """What is paid for a run: a table of sites, and the day whose prices hold; None: the last ones known."""

    sites: Sites
    on: date | None = None

    def site_of(self, run: StudiedRun) -> Site | None:
        """Return where it ran; None: not in the table."""
        return self.sites.sites.get(run.site)

    def cost(self, run: StudiedRun, seconds: float) -> float:
        """Return nodes x seconds x price of a node in dollars; NaN where one of them is not known."""
        site, nodes = self.site_of(run), self.nodes(run)
        cost = site.cost_usd(seconds, nodes=nodes, on=self.on) if site and nodes else None
        return math.nan if cost is None else cost

    def nodes(self, run: StudiedRun) -> int | None:
        """Return how many nodes are paid: as many as have the GPUs that it used, and not fewer than it ran on."""
        world, site = run.record.world, self.site_of(run)
        if not isinstance(world, World):
            return None
        gpus = sum(device != "cpu" for device in world.devices)
        return max(len(world.hosts), math.ceil(gpus / site.gpus) if site and site.gpus else 1)


def paid_seconds(run: StudiedRun) -> float:
    """Return start-up + training + validation + test, for which a node is paid; NaN: not known."""
    startup = run.total("startup_seconds")
    return run.total_seconds + (0.0 if math.isnan(startup) else startup)


def epoch_seconds(run: StudiedRun) -> float:
    """Return training and validation seconds of an epoch, mean over all epochs; NaN: not known."""
    epochs, validation = run.total("epochs"), run.total("validation_seconds")
    spent = run.training_seconds + (0.0 if math.isnan(validation) else validation)
    return spent / epochs if epochs > 0 else math.nan


def costs(cell: Cell, pricing: Pricing, seconds: Callable[[StudiedRun], float] = paid_seconds) -> list[float]:
    """Return what some of the seconds of each timed run cost, in dollars; without runs of which it is not known."""
    return list(cell.seconds(lambda run: pricing.cost(run, seconds(run))).values())
