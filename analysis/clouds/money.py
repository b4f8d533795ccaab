"""Money and time, projected: which machine reaches a target fastest, which cheapest, and what owning one may cost."""

from collections.abc import Sequence

from analysis.clouds.cost_plot import cost_plot
from analysis.clouds.offers import Offer, offers, pareto, usd_of
from analysis.clouds.workloads import TO_TARGET, not_projected
from analysis.output.finding import Finding
from analysis.output.tables import Cell, Table
from analysis.projection.ratio import EQUAL
from analysis.questions.clouds.break_even import BreakEven, break_even_usd, owned_plots, owned_table
from analysis.questions.clouds.machines import availability
from analysis.questions.clouds.pricing import Pricing
from analysis.questions.projection.errors import usual_error

BASE = "cte-power"


def break_evens(found: Sequence[Offer], *, base: str = BASE) -> list[BreakEven]:
    """Return the break-even of the base, if it has no price, against each machine that can be rented."""
    owned = next((one for one in found if one.name == base and one.usd is None), None)
    if owned is None:
        return []
    return [_break_even(owned, one) for one in found if one.to_rent]


def _break_even(owned: Offer, rented: Offer) -> BreakEven:
    middle = break_even_usd(usd_of(rented), owned.time.hours)
    low, high = rented.usd_interval or (usd_of(rented), usd_of(rented))
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
        plots=[cost_plot(found, front), *owned_plots(even)],
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
    cheapest = min((one for one in found if one.to_rent), key=usd_of)
    fastest = front[0]
    speed = [
        f"Projected for {TO_TARGET.model} of the thesis, one node: {_faster(found)}",
        f"Projections are rough: their median error is {100 * usual_error():.0f} % on CPUs; no GPU was measured.",
    ]
    renting = [
        f"The fastest of all is {fastest.name}: {_shown(fastest)} for the training alone.",
        f"The cheapest to rent is {cheapest.name}: {_shown(cheapest)}.",
        f"As jobs, with set-up and idle minutes, they cost ${fastest.job_usd:.2f} and ${cheapest.job_usd:.2f}.",
    ]
    owning = [
        f"{one.name} is {'cheaper' if usd_of(one) < usd_of(cheapest) else 'no cheaper'}: ${usd_of(one):.2f} against "
        f"${usd_of(cheapest):.2f} for {cheapest.name}."
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
            "hour of its node in use, the training alone is cheaper there than on every rented machine."
        )
    return "\n".join(" ".join(words) for words in (speed, renting, owning) if words)


def _faster(found: Sequence[Offer]) -> str:
    """Return whether a node of CTE-POWER or the fastest one to rent from AWS takes less time."""
    base = next((one for one in found if one.name == BASE), None)
    aws = next((one for one in found if one.to_rent and one.name.startswith("aws")), None)
    if base is None or aws is None:
        return "CTE-POWER and AWS are not both in the table."
    minutes = f"{60 * aws.time.hours:.1f} minutes on {aws.name} against {60 * base.time.hours:.1f} on {base.name}."
    faster = "faster" if aws.time.hours < base.time.hours else "no faster"
    return f"AWS's fastest node is {faster} than CTE-POWER, {minutes}"


def _shown(one: Offer) -> str:
    low, high = one.usd_interval or (usd_of(one), usd_of(one))
    return f"${usd_of(one):.2f} (${low:.2f} to ${high:.2f})"


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
