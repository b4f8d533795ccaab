"""Tables of sites compared: times and accuracies, money, energy, and whether a more expensive site paid off."""

from collections.abc import Sequence

from analysis.output import tables
from analysis.output.tables import Table, effect_cells, in_percent, shown_interval
from analysis.questions.clouds.machines import OWNED, quotient
from analysis.questions.clouds.pricing import Pricing, costs
from analysis.questions.clouds.sites import VARIANT, SiteComparison, times_of, variant_of
from analysis.runs.energy import covered, mean_of, metered
from analysis.runs.published import Claim
from analysis.runs.table import RunRow
from analysis.stats.inference import Effect, difference, equivalence, median_interval, median_of, ratio
from common.sites.table import SECONDS_PER_HOUR


def times_table(compared: Sequence[SiteComparison], *, base: str, margin: float) -> Table:
    """Return training times with their ratio to the base site, and accuracies with their difference."""
    headings = ["experiment", "site", "n", "training, s", "95 % interval", f"time / {base}", "95 % interval of it",
                "accuracy, %", "n of it", f"points to {base}", f"within {100 * margin:g} points"]  # fmt: skip
    rows: list[list[tables.Cell]] = []
    for one in compared:
        for name, cell in one.cells.items():
            times, right = list(times_of(cell).values()), cell.results("accuracy")
            if not times and not right:  # energy alone, of a published result
                continue
            base_cell, is_base = one.base_cell(name), name == one.base_of(name)
            of_base = base_cell.results("accuracy") if base_cell else None
            to_base = [1.0, None] if is_base else effect_cells(one.ratio_to_base(name), ".3f")
            apart = difference(right, of_base) if of_base else None
            rows.append(
                [one.label, name, len(times), median_of(times), shown_interval(median_interval(times), ".2f"), *to_base,
                 in_percent(median_of(right.values())), len(right), in_percent(apart.estimate if apart else None),
                 equivalence(right, of_base, margin=margin) if of_base else "base" if is_base else None]
            )  # fmt: skip
    formats = {"n": "d", "training, s": ".2f", headings[5]: ".3f", "accuracy, %": ".2f", "n of it": "d"}
    return Table("Times and accuracies by site (medians)", headings, rows, formats | {headings[9]: "+.2f"})


def variants_table(compared: Sequence[SiteComparison], *, base: str) -> Table:
    """Return how each site ran the experiments, and in what that differs from the base."""
    headings = ["experiment", "site", *VARIANT, f"differs from {base} in"]
    rows: list[list[tables.Cell]] = [
        [one.label, name, *variant_of(cell).values(),  # type: ignore[list-item]
         ", ".join(one.differs_from_base(name)) or ("base" if name == one.base_of(name) else "nothing")]
        for one in compared
        for name, cell in one.cells.items()
    ]  # fmt: skip
    return Table("How the sites ran them", headings, rows, {"hosts": "d", "threads": "g"})


def cost_table(shown: Sequence[SiteComparison], *, pricing: Pricing, target: float | None) -> Table:
    """Return what a run, an epoch, training to the target and a whole job cost on each site; see `contents_table`.

    Args:
        shown: their column `seconds_to_target` is for this target.
        pricing: sites and prices.
        target: validation accuracy, as a fraction; None: what each run recorded.
    """
    to_target = "$ to target" if target is None else f"$ to {100 * target:g} %"
    headings = ["experiment", "site", "n", "nodes", "$ per hour", "s paid", "$ per run", "95 % interval", "$ per epoch",
                to_target, "reached by", "$ per job"]  # fmt: skip
    rows: list[list[tables.Cell]] = []
    for one in shown:
        for name, cell in one.cells.items():
            first, seconds = cell.first, list(cell.seconds("paid_seconds").values())
            if not seconds:
                continue
            of_run = costs(cell, pricing)
            reached = list(cell.seconds("seconds_to_target").values())
            rows.append(
                [one.label, name, len(seconds), pricing.nodes(first), _price(pricing, first), median_of(seconds),
                 median_of(of_run) if of_run else _no_price(pricing, first),
                 shown_interval(median_interval(of_run), ".4f"),
                 median_of(costs(cell, pricing, "paid_epoch_seconds")),
                 median_of(costs(cell, pricing, "seconds_to_target")),
                 f"{len(reached)} of {len(seconds)}" if reached or target is not None else None,
                 median_of(costs(cell, pricing, pricing.job_seconds))]
            )  # fmt: skip
    formats = {"n": "d", "nodes": "d", "$ per hour": ".3f", "s paid": ".1f"}
    formats |= dict.fromkeys(("$ per run", "$ per epoch", to_target, "$ per job"), ".4f")
    return Table("Costs (medians)", headings, rows, formats)


def contents_table(pricing: Pricing) -> Table:
    """Return which time each cost contains."""
    rows: list[list[tables.Cell]] = [
        ["per run", "start-up, training, validation, checkpoints, test"],
        ["per epoch", "training, validation, checkpoints"],
        ["to target", "training and validation until the target is reached"],
        ["per job", f"launch, the run, and on rented machines {pricing.job_minutes:g} minutes of set-up and until they "
                    "stop (--job-minutes); not the queue, storage and transfers"],
    ]  # fmt: skip
    return Table("What each cost contains: nodes x price of a node x", ["$", "time"], rows, {})


def _price(pricing: Pricing, run: RunRow) -> float | None:
    site = pricing.site_of(run)
    price = site.price(on=pricing.on) if site else None
    return price.usd_per_hour if price else None


def _no_price(pricing: Pricing, run: RunRow) -> str:
    """Return why there is no cost."""
    site = pricing.site_of(run)
    if site is None:
        return "site not in the table"
    if not site.prices:
        return OWNED if site.kind == "owned" else "no price known"
    return "nodes not recorded"


def energy_table(compared: Sequence[SiteComparison], *, base: str) -> Table:
    """Return the energy of metered runs."""
    headings = ["experiment", "site", "metered runs", "J", f"J / {base}", "EDP, J s", f"EDP / {base}", "measured"]
    rows: list[list[tables.Cell]] = []
    for one in compared:
        for name, cell in one.cells.items():
            if runs := metered(cell):
                base_name = one.base_of(name)
                of_base = metered(one.cells[base_name]) if base_name else []
                figures = [
                    (mean, quotient(mean, mean_of(of_base, quantity) if of_base else None))
                    for quantity in ("joules", "edp_joule_seconds")
                    for mean in [mean_of(runs, quantity)]
                ]
                rows.append([one.label, name, len(runs), *figures[0], *figures[1], covered(runs)])
    formats = {"metered runs": "d", "J": ".5g", "EDP, J s": ".5g"} | dict.fromkeys((headings[4], headings[6]), ".4f")
    return Table("Energy by site (means over metered runs, used devices)", headings, rows, formats)


def worth_table(compared: Sequence[SiteComparison], *, pricing: Pricing) -> Table:
    """Return for every pair of priced sites with timed runs whether the more expensive one was worth its price."""
    headings = ["experiment", "dearer site", "against", "worth it if faster than, times", "measured, times",
                "95 % interval", "verdict"]  # fmt: skip
    rows: list[list[tables.Cell]] = []
    for one in compared:
        hourly = {
            name: pricing.cost(cell.first, SECONDS_PER_HOUR) for name, cell in one.cells.items() if times_of(cell)
        }
        priced = sorted((name for name, usd in hourly.items() if usd > 0), key=lambda name: -hourly[name])
        for number, dear in enumerate(priced):
            for cheap in priced[number + 1 :]:
                needed = hourly[dear] / hourly[cheap]
                faster = ratio(times_of(one.cells[cheap]), times_of(one.cells[dear]))
                rows.append([one.label, dear, cheap, needed, *effect_cells(faster, ".3f"), _worth(faster, needed)])
    formats = dict.fromkeys((headings[3], headings[4]), ".3f")
    return Table("Worth its price? Prices of the nodes that a run needs", headings, rows, formats)


def claims_table(claims: Sequence[Claim], compared: Sequence[SiteComparison]) -> Table:
    """Return published claims about these sites, each with the ratio of every experiment that has runs on both."""
    headings = ["published in", "claim, published", "times as long, published", "experiment", "site", "against",
                "times as long, these runs", "95 % interval"]  # fmt: skip
    rows: list[list[tables.Cell]] = []
    for claim in claims:
        if claim.base is None:
            continue
        stated: list[tables.Cell] = [f"{claim.source}, {claim.where}", claim.words, claim.times]
        found: list[list[tables.Cell]] = []
        for one in compared:
            of_site = {name: cell for name, cell in one.cells.items() if cell.first.site in claim.sites}
            of_base = {name: cell for name, cell in one.cells.items() if cell.first.site == claim.base}
            for name, cell in of_site.items():
                for base, other in of_base.items():
                    slower = ratio(times_of(cell), times_of(other))
                    if slower:
                        found.append([*stated, one.label, name, base, *effect_cells(slower, ".3f")])
        rows += found or [[*stated, "no timed runs on both", None, None, None, None]]
    formats = {"times as long, published": "g", "times as long, these runs": ".3f"}
    return Table("Published claims about sites", headings, rows, formats)


def _worth(faster: Effect | None, needed: float) -> str:
    if faster is None or faster.interval is None:
        return "too few runs"
    if faster.interval.low > needed:
        return "worth its price"
    return "not worth its price" if faster.interval.high < needed else "not shown"
