"""`python -m analysis clouds`: the same experiment on different sites: time, accuracy, money, energy."""

import argparse
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from analysis.output.finding import Finding, Plot, add_options, selected, show
from analysis.output.options import MARGIN, add_margin_option, add_target_option
from analysis.output.plots import COLORS, MARKERS, ROW_INCHES, SETTINGS, Row, draw_rows, spread_words
from analysis.output.tables import Table, shown_interval
from analysis.questions.clouds.machines import break_even_table, machine_tables, price_notes, price_table
from analysis.questions.clouds.places import Experiment, experiments, times_of
from analysis.questions.clouds.pricing import Pricing, costs
from analysis.questions.clouds.starts import NOTE, starts_plots, starts_tables, starts_words, training_words, ways_of
from analysis.questions.clouds.tables import claims_tables, cost_table, energy_tables, times_table, worth_tables
from analysis.runs.energy import covered, mean_of, metered, values_of
from analysis.runs.published import published_claims
from analysis.runs.reading import Selection
from analysis.runs.validity import flags_of, pair_flags
from analysis.stats.inference import median_of, ratio
from common.errors import UserError
from common.sites.table import SITES_FILE, Sites, read_sites

BASES = ("cte-power", "local")  # by which others are divided, the first that has runs
MOST_SENTENCES = 3  # experiments that the answer speaks of one by one


def add_command(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    parser = commands.add_parser(
        "clouds",
        help="the same experiment on different sites: time, accuracy, money, energy",
        description="Compare sites: clusters, clouds, machines of one's own; price old runs anew.",
    )
    add_options(parser)
    parser.add_argument(
        "--base", metavar="SITE", help=f"site to divide by (default: {' or '.join(BASES)} if it is there)"
    )
    parser.add_argument("--table", type=Path, default=SITES_FILE, metavar="FILE", help="a table of sites of your own")
    parser.add_argument("--on", metavar="DATE", help="prices of this day, as 2025-10-31 (default: the last ones known)")
    parser.add_argument(
        "--site-of", action="append", default=[], metavar="RUNS=SITE", help="say where the runs in a folder were made"
    )
    add_margin_option(parser)
    add_target_option(parser, shown="cost")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Run the command.

    Raises:
        UserError: an unknown site, no date, no table.
    """
    pricing = Pricing(sites=read_sites(options.table), on=_day(options.on))
    selection = selected(options)
    for words in options.site_of:
        selection = moved(selection, words, sites=pricing.sites)
    target = None if options.target is None else options.target / 100
    found = find(
        selection, base=options.base, pricing=pricing, margin=options.margin / 100, target=target, machines=True
    )
    show(found, options)


def _day(text: str | None) -> date | None:
    try:
        return None if text is None else date.fromisoformat(text)
    except ValueError:
        raise UserError(f"this is no day. Received: --on {text}. Write it as 2025-10-31") from None


def moved(selection: Selection, words: str, *, sites: Sites) -> Selection:
    """Return the runs, those in a folder on the site that `words` (RUNS=SITE) tells.

    A site may be one that no table knows, unless it is written much like one that is known.

    Raises:
        UserError: no runs there, or a site that is misspelt.
    """
    folder, _, site = words.rpartition("=")
    place = Path(folder).resolve()
    inside = {run.folder for run in selection.runs if run.folder.resolve().is_relative_to(place)}
    if not folder or not inside or not site:
        raise UserError(f"no runs to put on a site. Received: --site-of {words}. Write RUNS=SITE, RUNS as given before")
    if site not in {run.site for run in selection.runs} and get_close_matches(site, sites.sites, n=1):
        sites[site]
    runs = [
        replace(run, record=replace(run.record, site=site)) if run.folder in inside else run for run in selection.runs
    ]
    return replace(selection, runs=runs)


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
    names = list(dict.fromkeys(run.site for run in selection.runs))
    if base is not None and base not in names:
        raise UserError(f"no run was made on the base site. Received: {base}. There are runs of {', '.join(names)}")
    base = base or next(name for name in (*BASES, *names) if name in names)
    every = experiments(selection.runs, base=base)
    compared = [one for one in every if len(one.places) > 1]
    shown = compared or every
    cells = [cell for one in shown for cell in one.places.values()]
    ways = ways_of([run for cell in cells for run in cell.runs])
    answers = [_answer(compared, names=names, pricing=pricing), training_words(compared), starts_words(ways)]
    return Finding(
        name="clouds",
        question="Which site is the fastest, which the cheapest, and does it reach the same accuracy?",
        answer=" ".join(words for words in answers if words),
        tables=[
            *claims_tables(published_claims(selection.published), compared),
            times_table(compared, base=base, margin=margin),
            *starts_tables(ways),
            cost_table(shown, pricing=pricing, target=target),
            *energy_tables(compared, base=base),
            *worth_tables(compared, pricing=pricing),
            price_table(pricing.sites, names=names, on=pricing.on),
            break_even_table(pricing.sites, on=pricing.on),
            *machine_tables(pricing.sites, names=[base, *names]),
        ]
        if compared
        else [
            *claims_tables(published_claims(selection.published), compared),
            *starts_tables(ways),
            cost_table(shown, pricing=pricing, target=target),
            price_table(pricing.sites, names=names, on=pricing.on),
            *([break_even_table(pricing.sites, on=pricing.on)] if machines else []),
            *(machine_tables(pricing.sites, names=names) if machines else []),
        ],
        plots=[*_plots(shown, pricing=pricing), *starts_plots(ways)],
        flags=list(dict.fromkeys([*selection.left_out, *flags_of(selection.runs, cells), *_pair_flags(compared)])),
        notes=[
            *price_notes(pricing.sites, names=names, on=pricing.on),
            *_notes(every, compared),
            *([NOTE] if ways else []),
        ],
    )


def _notes(every: Sequence[Experiment], compared: Sequence[Experiment]) -> list[str]:
    alone = [one for one in every if one not in compared]
    notes = [f"{one.label}: on {next(iter(one.places))} only, nothing to compare with" for one in alone if compared]
    if any(len(one.bases) > 1 for one in compared):
        notes.append(
            "the base site has several places: those elsewhere are divided by the one with the same device, if there "
            "is one, all else by the first"
        )
    return [
        *notes,
        "cost = nodes x seconds x price of a node; of a run: start-up, training, validation and test; of an epoch and "
        "to the target: training and validation; queue, launch and storage are not in it",
        "time is that of training, of the slowest rank; ratios with 95 % intervals by Wilcoxon's signed-rank test of "
        "pairs of a seed (6 or more), else by Mann and Whitney's",
    ]


def _pair_flags(compared: Sequence[Experiment]) -> list[str]:
    flags = []
    for one in compared:
        if not one.bases:
            flags.append(f"{one.label}: no runs on the base site; no ratios")
        for name, cell in one.places.items():
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


def _answer(compared: Sequence[Experiment], *, names: Sequence[str], pricing: Pricing) -> str:
    if not compared:
        where = f"All runs are of one site ({names[0]})" if len(names) == 1 else "No experiment was made on two sites"
        return f"{where}: sites cannot be compared. Say where runs were made with --site-of RUNS=SITE."
    winners = [(_fastest(one), _cheapest(one, pricing), _thriftiest(one)) for one in compared]
    if len(compared) <= MOST_SENTENCES:
        return " ".join(
            f"{one.label}: {'; '.join(words for _, words in won)}." for one, won in zip(compared, winners, strict=True)
        )
    tallies = []
    for number, what in enumerate(("the fastest", "the cheapest a run", "the best in energy")):
        count = Counter(name for won in winners if (name := won[number][0]))
        by_name = ", ".join(f"{name} in {times}" for name, times in count.most_common()) or "not known of any"
        tallies.append(f"{what}: {by_name}")
    return f"Of {len(compared)} experiments on two sites or more, {'; '.join(tallies)}."


Winner = tuple[str | None, str]  # a place, None where none has won; and words


def _fastest(one: Experiment) -> Winner:
    medians = {
        name: median for name, cell in one.places.items() if (median := median_of(list(times_of(cell).values())))
    }
    ordered = sorted(medians, key=lambda name: medians[name])
    if len(ordered) < 2:
        return None, "too few sites have timed runs to say which is the fastest"
    first, second = ordered[:2]
    times = [times_of(one.places[name]) for name in (second, first)]
    slower = ratio(*times)
    interval = shown_interval(slower.interval if slower else None, ".2f")
    words = f"{second} takes {medians[second] / medians[first]:.2f} times as long"
    if slower and interval:
        words = f"{second} takes {slower.estimate:.2f} times as long, 95 % interval {interval}"
    n = " and ".join(str(len(side)) for side in reversed(times))
    shown = f"{first}, {medians[first]:.2f} s ({words}; n = {n})"
    if slower and slower.interval and not slower.interval.holds(1.0):
        return first, f"the fastest is {shown}"
    return None, f"the shortest median time has {shown}, but that it is faster is not shown"


def _cheapest(one: Experiment, pricing: Pricing) -> Winner:
    by_place = {name: values for name, cell in one.places.items() if (values := costs(cell, pricing))}
    if not by_place:
        return None, "no site has both a price and timed runs"
    ordered = sorted(by_place, key=lambda name: float(np.median(by_place[name])))
    first = ordered[0]
    cost = f"${np.median(by_place[first]):.4f} (n = {len(by_place[first])})"
    if len(by_place) == 1:
        return None, f"only {first} has a price: a run costs {cost}"
    if _is_less(by_place[first], by_place[ordered[1]]):
        return first, f"the cheapest a run is {first}, {cost}"
    return None, f"the least median cost of a run has {first}, {cost}, but that it is cheaper is not shown"


def _thriftiest(one: Experiment) -> Winner:
    joules = {name: mean_of(runs, "joules") for name, cell in one.places.items() if (runs := metered(cell))}
    if len(joules) < 2:
        return None, "energy was not measured on two sites"
    first, second = sorted(joules, key=lambda name: joules[name])[:2]
    of_runs = [values_of(metered(one.places[name]), "joules") for name in (first, second)]
    taken = f"{joules[first]:,.4g} J (n = {len(of_runs[0])})"
    if _is_less(*of_runs):
        return first, f"the best in energy is {first}, {taken}"
    return None, f"the least mean energy has {first}, {taken}, but that it takes less is not shown"


def _is_less(less: Sequence[float], more: Sequence[float]) -> bool:
    """Return whether the 95 % interval of the ratio of two sets of runs leaves out 1."""
    found = ratio({("more", key): value for key, value in enumerate(more)}, dict(enumerate(less)))
    return found is not None and found.interval is not None and not found.interval.holds(1.0)


def _plots(shown: Sequence[Experiment], *, pricing: Pricing) -> list[Plot]:
    places = list(dict.fromkeys(place for one in shown for place in one.places))
    styles = {
        place: {"color": COLORS[number % len(COLORS)], "marker": MARKERS[number % len(MARKERS)], "label": place}
        for number, place in enumerate(places)
    }
    plots = []
    for name, title, unit, figures_of in (
        ("clouds-time", "Training time by site", "seconds", lambda cell: list(times_of(cell).values())),
        ("clouds-cost", "Cost of a run by site", "dollars", lambda cell: costs(cell, pricing)),
    ):  # fmt: skip
        rows = [
            (one.label, place, Row(label=place, values=values, style=styles[place]))
            for one in shown
            for place, cell in one.places.items()
            if (values := figures_of(cell))
        ]
        if rows:
            plots.append(_plot(name, title, unit, rows))
    return plots


def _plot(name: str, title: str, unit: str, rows: Sequence[tuple[str, str, Row]]) -> Plot:
    groups: dict[str, list[Row]] = defaultdict(list)
    for label, _, row in rows:
        groups[label.replace(", ", "\n", 1)].append(row)
    with matplotlib.rc_context(SETTINGS):
        height = 1.6 + ROW_INCHES * sum(max(len(group), 1.4) + 0.6 for group in groups.values())
        figure = Figure(figsize=(8.0, height), layout="constrained")
        draw_rows(figure.subplots(), list(groups.items()), unit=unit)
        figure.legend(loc="outside lower center", ncols=4)
        figure.suptitle(f"{title}, {spread_words([len(row.values) for _, _, row in rows])}")
    data: list[list[str | float | None]] = [[label, place, value] for label, place, row in rows for value in row.values]
    return Plot(name, figure, Table(title, ["experiment", "site", unit], data, {unit: ".6g"}))
