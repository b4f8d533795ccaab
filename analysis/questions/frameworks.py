"""`python -m analysis frameworks`: tf.keras against PyTorch, model by model."""

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.output.finding import Finding, Plot, add_question
from analysis.output.options import MARGIN, add_margin_option, add_target_option
from analysis.output.plots import MOST_DRAWN, Row, figure_of_rows, first_of_words, framework_style, spread_words
from analysis.output.tables import Table, effect_cells, shown_interval
from analysis.runs.cells import IN_FORCE, Cell, cells_of
from analysis.runs.labels import framework_label
from analysis.runs.settings import SERIES
from analysis.runs.table import Selection, runs_to
from analysis.runs.validity import flags_of, many_comparisons, pair_flags, unlike_flags
from analysis.stats.inference import (
    Effect,
    Equivalence,
    difference,
    equivalence,
    harmonic_mean,
    median_interval,
    median_of,
    olympic_mean,
    ratio,
)

BASE, OTHER = "torch", "keras"
_TOO_FEW = "too few runs"


@dataclass(frozen=True)
class Match:
    """The same experiment in both frameworks, or what comes nearest to it."""

    base: Cell
    other: Cell
    time: Effect | None
    accuracy: Effect | None
    equivalence: Equivalence
    flags: list[str]
    is_unlike: bool  # not shown to be the same experiment

    @property
    def faster(self) -> str | None:
        """The framework that is faster; None: neither is shown to be, as the 95 % interval contains 1 or is unknown."""
        if self.time is None or self.time.interval is None or self.time.interval.contains(1.0):
            return None
        return OTHER if self.time.estimate < 1 else BASE

    @property
    def runs(self) -> int:
        """Number of runs on either side whose times are compared: the smaller one."""
        return min(self.time.n) if self.time else 0

    @property
    def factor(self) -> float:
        """How many times as fast it is."""
        return max(self.time.estimate, 1 / self.time.estimate) if self.time else math.nan

    @property
    def verdict(self) -> str:
        """Who is faster, in words."""
        if self.time is None or self.time.interval is None:
            return _TOO_FEW
        return f"{framework_label(self.faster)} faster" if self.faster else "not shown"


def add_command(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    parser = add_question(
        commands,
        "frameworks",
        find,
        "Keras against PyTorch: time, throughput, accuracy",
        keywords=("margin", "target"),
    )
    add_margin_option(parser)
    add_target_option(parser, shown="time")


def find(selection: Selection, *, margin: float = MARGIN, target: float | None = None) -> Finding:
    """Compare the frameworks.

    Args:
        selection: the runs.
        margin: of accuracy, as a fraction, within which both are the same.
        target: validation accuracy, as a fraction, to which the time is shown; None: what runs recorded.
    """
    cells = cells_of(runs_to(selection, target))
    pairs, alone = pairs_of(cells)
    matches = [_match(base, other, margin=margin) for base, other in pairs]
    flags = [
        *flags_of(selection.rows, cells),
        *(flag for one in matches for flag in one.flags),
    ]
    notes = [f"{cell.name}: no runs of another framework to compare with" for cell in alone]
    notes.append(
        "time is that of training, of the slowest rank; intervals: 95 %, of medians by order statistics (6 runs or "
        "more), of ratios by Wilcoxon's signed-rank test of pairs of a seed (6 or more), else by Mann and Whitney's"
    )
    notes += tuned_notes(pairs) + many_comparisons(len(matches))
    return Finding(
        name="frameworks",
        question="Which framework is faster, and are the accuracies the same?",
        answer=_answer(matches, margin=margin),
        tables=[
            _verdicts(matches, margin=margin),
            times_table(cells, target=target),
            results_table(cells),
        ],
        plots=_plots(cells),
        flags=list(dict.fromkeys(flags)),
        notes=notes,
    )


def pairs_of(cells: Sequence[Cell]) -> tuple[list[tuple[Cell, Cell]], list[Cell]]:
    """Return pairs of cells, PyTorch's first, and the cells that have none.

    Cells of equal settings first; then those that differ in whether oneDNN, asked for alike, was in force; then those
    of the same model, data set and np that are left alone with each other.
    """
    places = {BASE: 0, OTHER: 1}
    alone = sorted(cells, key=lambda cell: places.get(cell.framework, len(places)))
    pairs: list[tuple[Cell, Cell]] = []
    for key in (_all_settings, _but_onednn, _place):
        groups: dict[Hashable, list[Cell]] = defaultdict(list)
        for cell in alone:
            if cell.framework in places:
                groups[key(cell)].append(cell)
        found = [(group[0], group[1]) for group in groups.values() if [one.framework for one in group] == [*places]]
        pairs += found
        paired = {id(cell) for pair in found for cell in pair}
        alone = [cell for cell in alone if id(cell) not in paired]
    order = {id(cell): number for number, cell in enumerate(cells)}
    return sorted(pairs, key=lambda pair: min(order[id(cell)] for cell in pair)), alone


def tuned_notes(pairs: Sequence[tuple[Cell, Cell]]) -> list[str]:
    """Return the note on pairs whose settings of speed may differ; where there are none, nothing."""
    if not any(cell.is_tuned for pair in pairs for cell in pair):
        return []
    return ["tuned: each framework has the settings of speed that `launch tune` found best for it"]


def _all_settings(cell: Cell) -> tuple[tuple[str, Hashable], ...]:
    return tuple((name, value) for name, value in cell.asked.items() if name not in ("framework", SERIES))


def _but_onednn(cell: Cell) -> Hashable:
    return tuple(item for item in _all_settings(cell) if item[0] != IN_FORCE)


def _place(cell: Cell) -> Hashable:
    run = cell.first
    return run.model, run.data_set, run.np, run.image_size, run.origin, cell.is_tuned


def _match(base: Cell, other: Cell, *, margin: float) -> Match:
    times = [cell.seconds("training_seconds") for cell in (other, base)]
    accuracies = [cell.results("accuracy") for cell in (other, base)]
    return Match(
        base=base,
        other=other,
        time=ratio(*times),
        accuracy=difference(*accuracies),
        equivalence=equivalence(*accuracies, margin=margin),
        flags=pair_flags(base, other),
        is_unlike=bool(unlike_flags(base, other)),
    )


def _answer(matches: Sequence[Match], *, margin: float) -> str:
    if not matches:
        return "No model was trained in both frameworks: there is nothing to compare."
    two_runs = _two_runs(matches)
    words = [two_runs] if two_runs else [_times(matches), _accuracies(matches, margin=margin)]
    if unlike := sum(one.is_unlike for one in matches):
        those = f"In {unlike} of them the two" if len(matches) > 1 else "The two"
        words.append(f"{those} are not shown to be the same experiment: see the flags.")
    return " ".join(words)


def _two_runs(matches: Sequence[Match]) -> str | None:
    """Return what can be said of a single run of each framework, and what cannot; None: there are more runs."""
    time = matches[0].time if len(matches) == 1 else None
    if time is None or time.n != (1, 1):
        return None
    return (
        f"In these two runs {framework_label(OTHER)} took {time.estimate:.3g} times as long as "
        f"{framework_label(BASE)}. One run of each shows neither which framework is faster nor whether their "
        "accuracies agree: repeat both with at least 6 seeds."
    )


def _times(matches: Sequence[Match]) -> str:
    won = [one for one in matches if one.faster]
    time = matches[0].time if len(matches) == 1 else None
    if time and time.interval:
        shown = "" if won else ": no difference is shown"
        return (
            f"{framework_label(OTHER)} takes {time.estimate:.2f} times {framework_label(BASE)}'s training time (95 % "
            f"interval {time.interval.low:.2f} to {time.interval.high:.2f}, n = {min(time.n)}){shown}."
        )
    if not won:
        few = all(one.verdict == _TOO_FEW for one in matches)
        return "Too few runs to show a difference in time." if few else "No difference in training time is shown."
    largest = max(won, key=lambda one: one.factor)
    wins = Counter(framework_label(str(one.faster)) for one in won)
    each = " and ".join(f"{label} trains faster in {count}" for label, count in wins.items())
    return f"Of {len(matches)} comparisons, {each}. The largest factor is {largest.factor:.2f}."


def _accuracies(matches: Sequence[Match], *, margin: float) -> str:
    points = f"to within {100 * margin:g} points"
    if len(matches) == 1:
        words = {"same": "the same", "not shown": "not shown to be the same"}
        n = min(matches[0].accuracy.n) if matches[0].accuracy else 0
        of_other = f" (n = {n})" if n not in (0, matches[0].runs) else ""  # metered runs have an accuracy, too
        return f"The accuracy is {words.get(matches[0].equivalence, 'not the same')} {points}{of_other}."
    counts = Counter(one.equivalence for one in matches)
    different = f", and different in {counts['different']}" if counts["different"] else ""
    return f"The accuracy is the same {points} in {counts['same']} of them{different}."


def _verdicts(matches: Sequence[Match], *, margin: float) -> Table:
    headings = ["model, data set, np", "pairs", "Keras / PyTorch time", "95 % interval", "p", "verdict",
                "accuracy: Keras - PyTorch, points", "95 % interval of it",
                f"within {100 * margin:g} points"]  # fmt: skip
    rows = []
    for one in matches:
        rows.append(
            [one.base.label, _pairs(one.time), *effect_cells(one.time, ".3f"), one.time.p_value if one.time else None,
             one.verdict, *effect_cells(one.accuracy, "+.2f", scale=100), one.equivalence]
        )  # fmt: skip
    formats = {headings[2]: ".3f", "p": ".2g", headings[6]: "+.2f"}
    return Table("Keras against PyTorch (below 1: Keras is faster)", headings, rows, formats)


def _pairs(comparison: Effect | None) -> str:
    if comparison is None:
        return "none"
    ours, theirs = comparison.n
    return f"{ours} by seed" if comparison.method == "paired by seed" else f"{ours} and {theirs} runs"


def times_table(cells: Sequence[Cell], *, target: float | None = None) -> Table:
    """Return times and rates, a row for each cell that has timed runs."""
    to_target = "s to target" if target is None else f"s to {100 * target:g} %"
    headings = ["framework", "model, data set, np", "n", "training, s", "95 % interval", "mean", "mean of the middle",
                "min", "max", "images/s", "s/epoch", "s/epoch after the first", to_target, "reached by"]  # fmt: skip
    rows: list[list[Any]] = []
    for cell in cells:
        seconds = list(cell.seconds("training_seconds").values())
        if not seconds:
            continue
        rates = list(cell.seconds("images_per_second").values())
        reached = list(cell.seconds("seconds_to_target").values())
        rows.append(
            [framework_label(cell.framework), cell.label, len(seconds), float(np.median(seconds)),
             shown_interval(median_interval(seconds), ".2f"), float(np.mean(seconds)), olympic_mean(seconds),
             min(seconds), max(seconds), harmonic_mean(rates), _median(cell, "epoch_seconds"),
             _median(cell, "steady_epoch_seconds"), median_of(reached),
             f"{len(reached)} of {len(seconds)}" if reached or target is not None else None]
        )  # fmt: skip
    formats = dict.fromkeys(("training, s", "mean", "mean of the middle", "min", "max", to_target), ".2f")
    formats |= {"images/s": ",.0f", "s/epoch": ".3f", "s/epoch after the first": ".3f", "n": "d"}
    return Table("Times (medians; images/s: harmonic means)", headings, rows, formats)


def _median(cell: Cell, of: str) -> float | None:
    return median_of(cell.seconds(of).values())


def results_table(cells: Sequence[Cell]) -> Table:
    """Return accuracies, a row for each cell that has finished runs."""
    headings = ["framework", "model, data set, np", "n", "accuracy, %", "95 % interval", "mean", "min", "max"]
    rows: list[list[Any]] = []
    for cell in cells:
        values = [100 * value for value in cell.results("accuracy").values()]
        lost = sum(math.isnan(run.accuracy) for run in cell.finished)
        if values:
            n = f"{len(values)} ({lost} without)" if lost else str(len(values))
            rows.append(
                [framework_label(cell.framework), cell.label, n, float(np.median(values)),
                 shown_interval(median_interval(values), ".2f"), float(np.mean(values)), min(values), max(values)]
            )  # fmt: skip
    formats = dict.fromkeys(("accuracy, %", "mean", "min", "max"), ".2f")
    title = "Accuracies (medians; on the test samples, of runs without them on the validation samples)"
    return Table(title, headings, rows, formats)


def _plots(cells: Sequence[Cell]) -> list[Plot]:
    plots = []
    for name, title, unit, scale, values_of in (
        ("frameworks-time", "Training time", "seconds", 1.0,
         lambda cell: cell.seconds("training_seconds")),
        ("frameworks-rate", "Training throughput", "images per second", 1.0,
         lambda cell: cell.seconds("images_per_second")),
        ("frameworks-accuracy", "Accuracy", "%", 100.0, lambda cell: cell.results("accuracy")),
    ):  # fmt: skip
        found = [(cell, values) for cell in cells if (values := values_of(cell))]
        if not found:
            continue
        labels = list(dict.fromkeys(cell.label for cell, _ in found))
        more = first_of_words(len(labels), "experiments")
        drawn = [(cell, values) for cell, values in found if cell.label in labels[:MOST_DRAWN]]
        groups: dict[str, list[Row]] = defaultdict(list)
        for cell, values in drawn:
            style = framework_style(cell.framework)
            groups[cell.label].append(Row(values=list(values.values()), style=style, published=cell.is_published))
        spread = spread_words([len(values) for _, values in drawn])
        figure = figure_of_rows(groups, f"{title}: Keras and PyTorch, {spread}{more}", unit=unit, scale=scale)
        data = Table(
            title, ["framework", "model, data set, np", "run", unit],
            [[cell.framework, cell.label, key, value * scale] for cell, values in drawn
             for key, value in values.items() if math.isfinite(value)], {unit: ".6g"},
        )  # fmt: skip
        plots.append(Plot(name, figure, data))
    return plots
