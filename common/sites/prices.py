"""The price of a node-hour: dated prices of rented machines, and what a machine of one's own costs, by a formula."""

import datetime as dt
import re
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from common.errors import UserError
from common.json_records import Record

HOURS_PER_YEAR = 24 * 365.25
OLD_AFTER = dt.timedelta(days=365)
_Dollars = Annotated[float, Field(gt=0, le=1e12)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True)
class Price(Record):
    """Price of a whole node per hour.

    Attributes:
        date: when it was looked up; for retired machines their last day.
        spot: of a machine that may be taken away.
    """

    date: dt.date
    usd_per_hour: NotNegative
    terms: str
    source: str
    spot: bool = False

    @property
    def region(self) -> str | None:
        """The region of the cloud that its terms name, such as "us-east-1"; None: they name none."""
        found = re.search(r"\b[a-z]+(-[a-z]+)+-?[0-9]\b", self.terms)
        return found[0] if found else None

    def is_old(self, *, on: dt.date) -> bool:
        """Return whether it is older than a year on a day."""
        return on - self.date > OLD_AFTER

    def is_later(self, *, on: dt.date) -> bool:
        """Return whether it is the first known one, of a later day."""
        return self.date > on

    def dated(self, *, on: dt.date) -> str:
        """Return its date, with a warning if it is older than a year on a day, or of a later one."""
        if self.is_later(on=on):
            return f"first known price, of {self.date}"
        return f"{self.date}, over a year old" if self.is_old(on=on) else str(self.date)


@dataclass(frozen=True, kw_only=True)
class Ownership(Record):
    """What a node of one's own costs per hour of use:

        purchase_usd / (years x 8766 h x utilization) + watts / 1000 x usd_per_kwh

    Depreciation in equal parts over the hours of use, and the energy of those hours: the capital and energy terms of
    Barroso, Hölzle and Ranganathan, The Datacenter as a Computer, 3rd edition (2018), chapter 6. Staff, building and
    idle energy are not in it. An internal rate, which holds what its owner put into it, replaces the first term.

    Attributes:
        date, source: of these figures.
        purchase_usd: of a node.
        rate_usd_per_hour: internal rate of a node, instead of a purchase.
        years: of use.
        utilization: hours of use / all hours.
        watts: of the node in use, with its share of cooling.
        usd_per_kwh: price of energy.
    """

    date: dt.date
    source: str
    purchase_usd: _Dollars | None = None
    rate_usd_per_hour: _Dollars | None = None
    years: Annotated[float, Field(ge=0.01, le=100)] = 5.0
    utilization: Annotated[float, Field(ge=0.001, le=1)] = 1.0
    watts: Annotated[float, Field(ge=0, le=1e9)] = 0.0
    usd_per_kwh: Annotated[float, Field(ge=0, le=1e6)] = 0.0

    def __post_init__(self) -> None:
        """Check what pydantic cannot see in a single value.

        Raises:
            ValueError: neither a purchase nor a rate, or both.
        """
        if (self.purchase_usd is None) == (self.rate_usd_per_hour is None):
            problem = "there is neither" if self.purchase_usd is None else "there are both"
            raise ValueError(f"give either purchase_usd or rate_usd_per_hour, {problem}")

    @property
    def price(self) -> Price:
        """The price of an hour of use."""
        capital = self.rate_usd_per_hour
        terms = "internal rate"
        if self.purchase_usd is not None:
            capital = self.purchase_usd / (self.years * HOURS_PER_YEAR * self.utilization)
            terms = (
                f"${self.purchase_usd:,.0f} over {self.years:g} years, used {100 * self.utilization:g} % of the time"
            )
        assert capital is not None, "checked above"
        energy = self.watts / 1000 * self.usd_per_kwh
        if energy:
            terms += f", {self.watts:g} W at ${self.usd_per_kwh:g} per kWh"
        return Price(date=self.date, usd_per_hour=capital + energy, terms=f"computed: {terms}", source=self.source)


def read_day(text: str | None) -> dt.date | None:
    """Return the day given to --on.

    Raises:
        UserError: this is not a date.
    """
    try:
        return None if text is None else dt.date.fromisoformat(text)
    except ValueError:
        raise UserError(f"this is not a date. Received: --on {text or repr(text)}. Write it as 2025-10-31") from None
