"""`python -m analysis strategies`: ways to share one batch's work, side by side, in each framework."""

from collections.abc import Sequence
from typing import Any

from analysis.output.finding import Finding, add_question, brief, named_briefly
from analysis.output.options import MARGIN, add_margin_option, add_target_option
from analysis.output.tables import Cell as TableCell
from analysis.output.tables import Table, effect_cells, in_percent, shown_interval
from analysis.questions.strategies.claims import claims_table
from analysis.questions.strategies.curves import AllProgress, at_equal_time, progress_of
from analysis.questions.strategies.parts import (
    GROWN,
    bubble_by_formula,
    forecast_megabytes,
    grown_megabytes,
    peak_megabytes,
    waiting_share,
    within_budget,
)
from analysis.questions.strategies.plots import plots_of
from analysis.questions.strategies.ways import (
    Alone,
    Place,
    Way,
    bytes_per_image,
    bytes_per_update,
    efficiency,
    ended_by_limit,
    exchange_shares,
    formula_bytes_per_image,
    main_places,
    places_of,
    ranks_alone,
    staleness_at,
    staleness_of,
    why_no_exchange,
)
from analysis.runs.cells import Cell, cells_of
from analysis.runs.energy import mean_of, metered
from analysis.runs.labels import framework_label
from analysis.runs.table import Selection, runs_to
from analysis.runs.validity import cell_runs, chance_of, flags_of, is_guess, many_comparisons
from analysis.stats.inference import difference, harmonic_mean, median_interval, median_of

NO_EXCHANGE = "exchange, %, is empty where it was not measured: "  # first words of notes
_NOTHING = "No run shares its work in another way than by all-reduce: there is nothing to compare."


def add_command(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    parser = add_question(
        commands,
        "strategies",
        find,
        "ways to share the work, side by side: time, accuracy, bytes, waiting, staleness",
        keywords=("margin", "target"),
    )
    add_margin_option(parser)
    add_target_option(parser, shown="time")


def find(selection: Selection, *, margin: float = MARGIN, target: float | None = None) -> Finding:
    """Compare strategies with plain all-reduce, framework by framework.

    Args:
        selection: the runs.
        margin: of accuracy, as a fraction, within which two are the same.
        target: validation accuracy, as a fraction, to which the time is shown; None: what runs recorded.
    """
    cells = cells_of(runs_to(selection, target))
    places = places_of(cells, margin=margin)
    question = "Which strategy shares the work best?"
    if not places:
        return Finding(name="strategies", question=question, answer=_NOTHING)
    used = [way.cell for place in places for way in place.ways if len(way.cell.finished)]
    alone = ranks_alone(cells)
    progress = progress_of(selection, places)
    plots, missing = plots_of(places, progress, alone)
    equal_time, why_not = _equal_time(places, progress)
    tables = [
        _against_allreduce(places, margin=margin),
        _figures(places, alone, target=target),
        equal_time,
        claims_table(places, cells, margin=margin),
    ]
    return Finding(
        name="strategies",
        question=question,
        answer=brief(_answers(places, margin=margin)),
        tables=[table for table in tables if table.rows],
        plots=plots,
        flags=list(
            dict.fromkeys(
                [
                    *flags_of(cell_runs(used), used),
                    *(flag for place in places for way in place.ways for flag in way.flags),
                ]
            )
        ),
        notes=[
            *_METHODS,
            *dict.fromkeys(f"{NO_EXCHANGE}{reason}" for cell in used for reason in why_no_exchange(cell)),
            *many_comparisons(len(tables[0].rows)),
            *why_not,
            *missing,
        ],
    )


_METHODS = (
    "time is that of training, of the slowest rank; intervals and tests are those of `frameworks`, pairs by seed",
    "efficiency of W workers: the time of one rank alone / (W x time), both of training, on the same global batches in "
    "the same experiment: that of `scaling`, counted by workers instead of cores; empty where one rank did not train",
    "bytes per image, and per update of the weights: what all workers hand to their messages and get back, as counted; "
    "and by the formula of the wire, per image: of a ring what ranks send (they receive as much), of servers what "
    "workers send and receive",
    "exchange: mean over workers of the time in messages, waiting for others included, by the training time; waiting: "
    "of the stages of a pipeline, for each other; bubble: (S - 1) / (M + S - 1) of S stages and M microbatches, what "
    "even stages wait that have a core each",
    f"{GROWN}: the most memory of a rank less what it had before, as Python, the framework and MPI take some already; "
    "on a GPU all that the framework took there. It holds what the framework takes while it trains: buffers of layers "
    "and messages, memory kept for reuse, and libraries loaded at first use. by forecast: weights, gradients, the "
    "optimizer's state and the outputs of layers that wait for the backward pass, and nothing else",
    "ended by the limit: runs in which a rank needed more memory than --memory-limit allowed beyond what it had before "
    "its model was built, in memory of its own, without mapped files",
    "staleness: updates that others made between a fetch and its push, over all runs of a row",
)


# Words


def _answers(places: Sequence[Place], *, margin: float) -> list[str]:
    """Return a sentence per framework, about the work that was done in most ways."""
    return [f"{framework_label(one.framework)}: {_advice(one, margin=margin)}" for one in main_places(places)]


def _advice(place: Place, *, margin: float) -> str:
    if any(way.ended_by_limit for way in place.ways):
        return f"{within_budget(place)}."
    if not place.ways[0].is_base:
        return "there are no runs of plain allreduce to compare with."
    faster = [way for way in place.ways if way.is_faster]
    alike = [way for way in faster if way.equivalence == "same"]
    if alike:
        best = min(alike, key=_ratio)
        name, factor = named_briefly(best.label, figures=2), f"{1 / _ratio(best):.2f} times as fast as allreduce"
        chance, accuracy = chance_of(best.cell), median_of(best.cell.results("accuracy").values())
        if chance and accuracy is not None and is_guess(accuracy, chance=chance):
            return f"{name} is {factor}, but neither has learned: both guess."
        return f"use {name}, {factor} at the same accuracy."
    words = f"use allreduce: no other way is measurably faster at the same accuracy, to within {100 * margin:g} points."
    if not faster:
        return words
    best = min(faster, key=_ratio)
    return f"{words[:-1]}; {best.strategy} is faster, but its accuracy {_ACCURACY[best.equivalence]}."


_ACCURACY = {"different": "differs", "not shown": "is not shown to be the same", "same": "is the same"}


def _ratio(way: Way) -> float:
    assert way.time, "a way that is faster"
    return way.time.estimate


# Tables

COUNTS = ("n", "timed")


def _counts(cell: Cell) -> tuple[int, int]:
    """Return the number of runs with an accuracy, and of those with a time that counts."""
    return len(cell.results("accuracy")), len(cell.timed)


def _against_allreduce(places: Sequence[Place], *, margin: float) -> Table:
    headings = ["framework", "model, data set, workers, site", "strategy", *COUNTS, "time / allreduce", "95 % interval",
                "p", "verdict", "accuracy - allreduce's, points", "95 % interval of it",
                f"within {100 * margin:g} points"]  # fmt: skip
    rows: list[list[TableCell]] = [
        [framework_label(place.framework), place.label, way.label, *map(min, _counts(way.cell), _counts(way.base)),
         *effect_cells(way.time, ".3f"), way.time.p_value if way.time else None, _verdict(way),
         *effect_cells(way.accuracy, "+.2f", scale=100), way.equivalence]
        for place in places for way in place.ways if way.base and not way.is_base
    ]  # fmt: skip
    formats = {headings[5]: ".3f", "p": ".2g", headings[9]: "+.2f"} | dict.fromkeys(COUNTS, "d")
    return Table("Against plain allreduce of the same work (below 1: faster)", headings, rows, formats)


def _verdict(way: Way) -> str:
    if way.time is None or way.time.interval is None:
        return "too few runs"
    if way.is_faster:
        return "faster"
    return "slower" if way.time.interval.low > 1 else "not shown"


def _figures(places: Sequence[Place], alone: Alone, *, target: float | None) -> Table:
    to_target = "s to target" if target is None else f"s to {100 * target:g} %"
    headings = ["framework", "model, data set, workers, site", "strategy", *COUNTS, "ended by the limit",
                "training, s", "95 % interval", "images/s", "efficiency, %", "accuracy, %", to_target, "bytes/update",
                "bytes/image", "by formula", "exchange, %", "waiting, %", "bubble, %",
                "staleness: median", "95 % of pushes", "most", "joules",
                "memory per rank, MB", GROWN, "by forecast"]  # fmt: skip
    rows = [
        [framework_label(place.framework), place.label, way.label, *_figures_of(way.cell, alone)]
        for place in places
        for way in place.ways
    ]
    formats = dict.fromkeys(("training, s", "accuracy, %", to_target), ".2f")
    formats |= dict.fromkeys((*COUNTS, "ended by the limit"), "d")
    formats |= dict.fromkeys(
        ("images/s", "bytes/update", "bytes/image", "by formula", "joules", "memory per rank, MB"), ",.0f"
    )
    formats |= dict.fromkeys((GROWN, "by forecast"), ",.0f")
    formats |= dict.fromkeys(("efficiency, %", "exchange, %", "waiting, %", "bubble, %"), ".1f") | dict.fromkeys(
        ("staleness: median", "95 % of pushes", "most"), "d"
    )
    return Table(
        "Time, accuracy and what they cost (medians; images/s: harmonic means; joules: means)", headings, rows, formats
    )


def _figures_of(cell: Cell, alone: Alone) -> list[TableCell]:
    seconds = list(cell.seconds("training_seconds").values())
    lags = staleness_of(cell)
    return [
        *_counts(cell),
        ended_by_limit(cell) or None,
        median_of(seconds),
        shown_interval(median_interval(seconds), ".2f"),
        harmonic_mean(list(cell.seconds("images_per_second").values())),
        in_percent(efficiency(cell, alone)),
        in_percent(median_of(cell.results("accuracy").values())),
        median_of(cell.seconds("seconds_to_target").values()),
        bytes_per_update(cell),
        bytes_per_image(cell),
        formula_bytes_per_image(cell),
        in_percent(median_of(exchange_shares(cell))),
        in_percent(waiting_share(cell)),
        in_percent(bubble_by_formula(cell)),
        staleness_at(lags, 0.5),
        staleness_at(lags, 0.95),
        max(lags, default=None),
        mean_of(runs, "joules") if (runs := metered(cell)) else None,
        peak_megabytes(cell),
        grown_megabytes(cell),
        forecast_megabytes(cell),
    ]


def _equal_time(places: Sequence[Place], progress: AllProgress) -> tuple[Table, list[str]]:
    """Return the accuracies at equal time, and which places have none."""
    headings = ["framework", "model, data set, workers, site", "at, s", "strategy", "n", "validation accuracy, %",
                "95 % interval", "minus allreduce's, points", "95 % interval of it"]  # fmt: skip
    rows: list[list[TableCell]] = []
    notes: list[str] = []
    for place in places:
        cut = at_equal_time(progress, place)
        if cut is None:
            notes.append(f"{place.name}: no accuracies at equal time: it takes two ways whose runs validated twice")
            continue
        seconds, accuracies = cut
        base = accuracies.get(0, {}) if place.ways[0].is_base else {}
        for number, values in accuracies.items():
            if not values:
                notes.append(f"{place.name}: {place.ways[number].label} had not validated after {seconds:.2f} s")
                continue
            percents = [100 * value for value in values.values()]
            effect = difference(values, base) if number else None
            rows.append(
                [framework_label(place.framework), place.label, seconds, place.ways[number].label, len(values),
                 median_of(percents), shown_interval(median_interval(percents), ".2f"),
                 *effect_cells(effect, "+.2f", scale=100)]
            )  # fmt: skip
    formats = {"at, s": ".2f", "n": "d", headings[5]: ".2f", headings[7]: "+.2f"}
    return Table("At equal time: that of the fastest, cut from the same runs", headings, rows, formats), notes
