"""The same experiment on different sites: time, accuracy, cost, energy. The command is in `analysis/clouds`."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

import numpy as np

from analysis.output.finding import Finding, Plot, brief
from analysis.output.options import MARGIN
from analysis.output.plots import COLORS, MARKERS, MOST_DRAWN, Row, figure_of_rows, first_of_words, spread_words
from analysis.output.tables import Table, in_figures
from analysis.questions.clouds.break_even import measured_break_evens, owned_plots, owned_table
from analysis.questions.clouds.cost_time import cost_against_time
from analysis.questions.clouds.machines import break_even_table, machine_tables, price_notes, price_table
from analysis.questions.clouds.pricing import Pricing, costs
from analysis.questions.clouds.sites import SiteComparison, site_comparisons, times_of
from analysis.questions.clouds.startup import (
    NOTE,
    startup_plots,
    startup_statements,
    startup_table,
    startups_of,
    training_statements,
)
from analysis.questions.clouds.tables import (
    claims_table,
    contents_table,
    cost_table,
    energy_table,
    times_table,
    variants_table,
    worth_table,
)
from analysis.runs.cells import Cell
from analysis.runs.energy import covered, mean_of, metered, values_of
from analysis.runs.published import published_claims
from analysis.runs.table import Selection, runs_to
from analysis.runs.validity import flags_of, listed, pair_flags
from analysis.stats.inference import median_of, ratio
from common.distributed.console import counted
from common.errors import UserError
from common.sites.table import Sites, read_sites

BASES = ("cte-power", "local")  # by which others are divided, the first that has runs
MOST_SENTENCES = 3  # experiments that the answer names one by one


def assigned(selection: Selection, words: str, *, sites: Sites) -> Selection:
    """Return the selection, with the runs in a folder assigned to a site: `words` is RUNS=SITE.

    The site may be missing in the table, unless its name is close to one that is there.

    Raises:
        UserError: no runs there, or a site that is misspelled.
    """
    folder, _, site = words.rpartition("=")
    parent, runs = Path(folder).resolve(), selection.runs
    inside = runs["folder"].map(lambda one: one.resolve().is_relative_to(parent)) & (runs["origin"] != "published")
    if not folder or not inside.any() or not site:
        raise UserError(f"no runs to assign to a site. Received: --site-of {words}. Write RUNS=SITE, RUNS as before")
    if site not in set(runs["site"]) and get_close_matches(site, sites.sites, n=1):
        sites[site]  # raises the error that names the close one
    return replace(selection, runs=runs.assign(site=runs["site"].mask(inside, site)))


def find(
    selection: Selection,
    *,
    base: str | None = None,
    pricing: Pricing | None = None,
    margin: float = MARGIN,
    target: float | None = None,
    machines: bool = False,
) -> Finding:
    """Compare sites.

    Args:
        selection: the runs.
        base: site that others are divided by; None: one of `BASES`, or the first where they have no runs.
        pricing: the table of sites, and the day of its prices; None: the project's, with the last known.
        margin: of accuracy, as a fraction, within which two sites are the same.
        target: validation accuracy, as a fraction, to which the cost is shown; None: what runs recorded.
        machines: show the figures of machines and what their prices ask of them also where all runs are of one site.

    Raises:
        UserError: there are no runs on the base site.
    """
    pricing = pricing or Pricing(sites=read_sites())
    names = list(selection.runs["site"].unique())
    selection = replace(selection, runs=runs_to(selection, target))
    if base is not None and base not in names:
        raise UserError(f"no run was made on the base site. Received: {base}. There are runs of {', '.join(names)}")
    base = base or next(name for name in (*BASES, *names) if name in names)
    every = site_comparisons(selection.runs, base=base)
    compared = [one for one in every if one.has_several]
    shown = compared or every
    cells = [cell for one in shown for cell in one.cells.values()]
    startups = startups_of(cells)
    flags = flags_of(selection.rows, cells) + _pair_flags(compared)
    answers = [
        _answers(compared, names=names, pricing=pricing), training_statements(compared), startup_statements(startups)
    ]  # fmt: skip
    tables = [
        claims_table(published_claims(selection.published), compared),
        times_table(compared, base=base, margin=margin),
        variants_table(compared, base=base),
        startup_table(startups),
    ]
    break_evens = measured_break_evens(compared, pricing)
    of_price = [
        energy_table(compared, base=base), worth_table(compared, pricing=pricing), owned_table(break_evens)
    ]  # fmt: skip
    return Finding(
        name="clouds",
        question="Which site is the fastest, which the cheapest, and does it reach the same accuracy?",
        answer="\n".join(brief(statements) for statements in answers if statements),
        tables=[
            *(table for table in tables if table.rows),
            cost_table(shown, pricing=pricing, target=target),
            contents_table(pricing),
            *(table for table in of_price if table.rows),
            *_machine_tables(pricing, names, base=base if compared else None, machines=machines or bool(compared)),
        ],
        plots=[*_plots(shown, pricing=pricing), *owned_plots(break_evens), *startup_plots(startups)],
        flags=list(dict.fromkeys(flags)),
        notes=[
            *price_notes(pricing, names=names),
            *_notes(every, compared),
            *([NOTE] if startups else []),
        ],
    )


def _machine_tables(pricing: Pricing, names: Sequence[str], *, base: str | None, machines: bool) -> list[Table]:
    """Return the prices of these sites and, if asked for, what prices require and the figures of the machines."""
    tables = [price_table(pricing, names=names)]
    if machines:
        tables.append(break_even_table(pricing, names=names))
        tables += machine_tables(pricing.sites, names=[base, *names] if base else names)
    return [table for table in tables if table.rows]


def _notes(every: Sequence[SiteComparison], compared: Sequence[SiteComparison]) -> list[str]:
    alone = [one for one in every if one not in compared]
    places: dict[str, list[str]] = defaultdict(list)
    for one in alone if compared else ():
        places[next(iter(one.cells))].append(one.label)
    notes = [
        f"{counted(len(labels), 'experiment')} only on {name}, nothing to compare with: {listed(labels, apart='; ')}"
        for name, labels in places.items()
    ]
    if any(len(one.bases) > 1 for one in compared):
        notes.append(
            "the base site has several kinds of machine: cells elsewhere are divided by the one with the same device, "
            "or else one of its kind (cpu, gpu), if there is one, others by the first"
        )
    return [
        *notes,
        "time is that of training, of the slowest rank; ratios with 95 % intervals by Wilcoxon's signed-rank test of "
        "pairs of a seed (6 or more), else by Mann and Whitney's",
    ]


def _pair_flags(compared: Sequence[SiteComparison]) -> list[str]:
    flags = []
    for one in compared:
        if not one.bases:
            flags.append(f"{one.label}: no runs on the base site; no ratios")
        for name, cell in one.cells.items():
            base = one.base_cell(name)
            if base is None:
                continue
            flags += pair_flags(base, cell)
            runs = metered(base), metered(cell)
            if all(runs) and covered(runs[0]) != covered(runs[1]):
                flags.append(
                    f"{one.label}: energy of {one.base_of(name)} counts {covered(runs[0])}, of {name} "
                    f"{covered(runs[1])}: not the same devices"
                )
    return flags


def _answers(compared: Sequence[SiteComparison], *, names: Sequence[str], pricing: Pricing) -> list[str]:
    if not compared:
        where = f"All runs are of one site ({names[0]})" if len(names) == 1 else "No experiment ran on two sites"
        return [f"{where}: sites cannot be compared. Assign runs to sites with --site-of RUNS=SITE."]
    winners = [(_fastest(one), _cheapest(one, pricing), _most_efficient(one)) for one in compared]
    if len(compared) <= MOST_SENTENCES:
        return [
            f"{one.label}: {' '.join(words for _, words in won if words)}"
            for one, won in zip(compared, winners, strict=True)
        ]
    statements = [f"{len(compared)} experiments ran on two sites or more."]
    for number, what in enumerate(("fastest", "cheapest", "best in energy")):
        count = Counter(name for won in winners if (name := won[number][0]))
        if count:
            by_name = " and ".join(f"{name} in {times}" for name, times in count.most_common(2))
            statements.append(f"Shown to be the {what}: {by_name}.")
    return statements


Winner = tuple[str | None, str]  # name of a cell, None where none has won; and a sentence, "" where nothing is known


def _fastest(one: SiteComparison) -> Winner:
    medians = {name: median for name, cell in one.cells.items() if (median := median_of(list(times_of(cell).values())))}
    ordered = sorted(medians, key=lambda name: medians[name])
    if len(ordered) < 2:
        return None, "fewer than two sites have timed runs."
    first, second = ordered[:2]
    slower = ratio(*[times_of(one.cells[name]) for name in (second, first)])
    if slower is None or slower.interval is None or slower.interval.low <= 1.0:
        return None, f"the shortest median time is that of {first}; a difference is not shown."
    return first, f"the fastest is {first}; {second} takes {slower.estimate:.2f} times as long."


def _cheapest(one: SiteComparison, pricing: Pricing) -> Winner:
    by_site = {name: values for name, cell in one.cells.items() if (values := costs(cell, pricing))}
    if not by_site:
        return None, "No site has both a price and timed runs."
    ordered = sorted(by_site, key=lambda name: float(np.median(by_site[name])))
    first = ordered[0]
    aged = pricing.old_price(one.cells[first].first)
    cost = f"${np.median(by_site[first]):.4f} (n = {len(by_site[first])}{aged})"
    if len(by_site) == 1:
        return None, f"Only {first} has a price: a run costs {cost}."
    if _is_less(by_site[first], by_site[ordered[1]]):
        return first, f"The cheapest is {first}, {cost} per run."
    return None, f"The lowest median cost per run is that of {first}, {cost}; a difference is not shown."


def _most_efficient(one: SiteComparison) -> Winner:
    joules = {name: mean_of(runs, "joules") for name, cell in one.cells.items() if (runs := metered(cell))}
    if len(joules) < 2:
        return None, ""
    first, second = sorted(joules, key=lambda name: joules[name])[:2]
    of_runs = [values_of(metered(one.cells[name]), "joules") for name in (first, second)]
    taken = f"{in_figures(joules[first], 4)} J (n = {len(of_runs[0])})"
    if _is_less(*of_runs):
        return first, f"The best in energy is {first}, {taken}."
    return None, f"The lowest mean energy is that of {first}, {taken}; a difference is not shown."


def _is_less(less: Sequence[float], more: Sequence[float]) -> bool:
    """Return whether the 95 % interval of more / less, which are two sets of runs, is above 1."""
    found = ratio({("more", key): value for key, value in enumerate(more)}, dict(enumerate(less)))
    return found is not None and found.interval is not None and found.interval.low > 1.0


def _plots(shown: Sequence[SiteComparison], *, pricing: Pricing) -> list[Plot]:
    names = list(dict.fromkeys(name for one in shown for name in one.cells))
    styles = {
        name: {"color": COLORS[number % len(COLORS)], "marker": MARKERS[number % len(MARKERS)], "label": name}
        for number, name in enumerate(names)
    }
    plots = []
    figures: list[tuple[str, str, str, Callable[[Cell], Sequence[float]]]] = [
        ("clouds-time", "Training time by site", "seconds", lambda cell: list(times_of(cell).values())),
        ("clouds-cost", "Cost of a run by site", "dollars", lambda cell: costs(cell, pricing)),
    ]  # fmt: skip
    if any(one.has_several for one in shown):
        figures.append(("clouds-accuracy", "Accuracy by site", "%", _percents))
    for name, title, unit, figures_of in figures:
        rows = [
            (one.label, site, Row(values=values, style=styles[site], published=cell.is_published))
            for one in shown
            for site, cell in one.cells.items()
            if (values := figures_of(cell))
        ]
        if rows:
            plots.append(_plot(name, title, unit, rows))
    return [*plots, *cost_against_time(shown, styles, pricing=pricing)]


def _percents(cell: Cell) -> list[float]:
    return [100 * value for value in cell.results("accuracy").values()]


def _plot(name: str, title: str, unit: str, rows: Sequence[tuple[str, str, Row]]) -> Plot:
    labels = list(dict.fromkeys(label for label, _, _ in rows))
    more = first_of_words(len(labels), "experiments")
    drawn = [row for row in rows if row[0] in labels[:MOST_DRAWN]]
    groups: dict[str, list[Row]] = defaultdict(list)
    for label, _, row in drawn:
        groups[label.replace(", ", "\n", 1)].append(row)
    spread = spread_words([len(row.values) for _, _, row in drawn])
    figure = figure_of_rows(groups, f"{title}, {spread}{more}", unit=unit)
    data: list[list[str | float | None]] = [[label, site, value] for label, site, row in drawn for value in row.values]
    return Plot(name, figure, Table(title, ["experiment", "site", unit], data, {unit: ".6g"}))
