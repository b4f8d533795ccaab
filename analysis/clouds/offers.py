"""What the time to a target costs on every machine of the table, projected, and who is on the Pareto front."""

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.clouds.workloads import TO_TARGET, NodeTime, node_times
from analysis.questions.clouds.pricing import Pricing
from common.sites.prices import Price
from common.sites.table import SECONDS_PER_HOUR


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
        seconds = time.hours * SECONDS_PER_HOUR
        spot = time.site.price(on=pricing.on, spot=True)
        found.append(
            Offer(
                time=time,
                price=time.site.price(on=pricing.on),
                usd=time.site.cost_usd(seconds, on=pricing.on),
                spot_usd=spot.usd_per_hour * time.hours if spot else None,
                job_usd=time.site.cost_usd(seconds + pricing.seconds_around(time.site), on=pricing.on),
            )
        )
    return sorted(found, key=lambda one: one.time.hours)


def pareto(found: Sequence[Offer]) -> list[Offer]:
    """Return those to rent or owned that no other beats in both time and cost, the fastest first."""
    front: list[Offer] = []
    for one in sorted((one for one in found if one.to_rent or one.owned), key=lambda one: one.time.hours):
        if not front or usd_of(one) < usd_of(front[-1]):
            front.append(one)
    return front


def usd_of(one: Offer) -> float:
    """Return its cost; only of those that have a price."""
    assert one.usd is not None, "it has a price"
    return one.usd
